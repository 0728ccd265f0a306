"""The files of pinned versions, against pyproject.toml and each other."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def wanted(extra: str | None) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in found]


@pytest.mark.parametrize(
    ("file", "extra"),
    [
        ("constraints.txt", None),
        ("constraints.txt", "dev"),
        ("constraints.txt", "postgres"),
        ("constraints.txt", "s3"),
        ("constraints.txt", "cluster"),
        ("constraints-cuda.txt", None),
        ("constraints-cuda.txt", "dev"),
        ("constraints-cuda.txt", "cuda"),
    ],
)
def test_each_direct_dependency_is_pinned_to_a_version_that_it_allows(
    file: str, extra: str | None
) -> None:
    pinned = pins(file)
    for requirement in wanted(extra):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, requirement.name
        assert requirement.specifier.contains(version), requirement


def test_the_cuda_extra_adds_packages_and_changes_none() -> None:
    plain, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    changed = {name for name in plain.keys() & cuda.keys() if plain[name] != cuda[name]}
    assert changed == set(), "run make lock-cuda"
    assert plain.keys() - cuda.keys() <= {"uv", "pip"}
    assert {"nvidia-cudnn-cu13", "unsloth", "triton"} <= cuda.keys() - plain.keys()


def vllm_pins(python: str) -> dict[str, Version]:
    """Versions in constraints-vllm.txt for Linux and a version of Python."""
    here = {"python_version": python, "python_full_version": f"{python}.1"}
    machine = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints-vllm.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({**machine, **here}):
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(requirement.name) not in found, line
            found[canonicalize_name(requirement.name)] = Version(specifier.version)
    return found


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_vllm_has_an_environment_of_its_own_because_it_excludes_what_others_need(
    python: str,
) -> None:
    project, vllm = pins("constraints.txt"), vllm_pins(python)
    assert {"vllm", "torch", "transformers", "fastapi", "mcp", "numpy"} <= vllm.keys()
    for name in ("fastapi", "numpy"):
        (needed,) = [one for one in wanted(None) if one.name == name]
        assert not needed.specifier.contains(vllm[name])
    assert project["mcp"].major < vllm["mcp"].major


def test_the_file_says_that_builds_for_older_drivers_are_not_in_it() -> None:
    head = (ROOT / "constraints-cuda.txt").read_text(encoding="utf-8").splitlines()[:2]
    assert "580" in head[0]
    assert "not resolved here" in head[1]
