"""Files that a deployment copies: tracked ones, no links, and no others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.deployment import build_context
from tasks.errors import StageError

FILES = (
    *("Dockerfile", ".dockerignore", "constraints.txt", "openenv.yaml", "env/__init__.py"),
    *("env/requirements.txt", "env/server/app.py", "env/server/page/page.js", "rewards/combine.py"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the files of a server, without git."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    monkeypatch.setattr(build_context, "SOURCE", tmp_path)
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(project), *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(project: Path) -> Path:
    git(project, "init")
    git(project, "add", ".")
    return project


def test_only_tracked_files_are_copied_and_the_others_are_named(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (checkout / "env/notes.txt").write_text("a password")
    (checkout / "rewards/new.py").write_text("x = 1\n")
    (checkout / "env/link.txt").symlink_to("/etc/hostname")
    (checkout / "secrets.py").write_text("outside of the packages")
    assert sorted(build_context.source_files()) == sorted(FILES)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "deploy: git does not track env/link.txt, env/notes.txt, rewards/new.py. These files are "
        "not deployed"
    )


@pytest.mark.parametrize("link", ["env/data.toml", "env/server"])
def test_a_tracked_link_is_refused(checkout: Path, link: str) -> None:
    target = checkout / "elsewhere"
    if (checkout / link).is_dir():
        (checkout / link).rename(target)
    else:
        target.write_text("x")
    (checkout / link).symlink_to(target)
    git(checkout, "add", "--all")
    with pytest.raises(StageError, match=rf"{link}.* leads elsewhere: a deployment copies no link"):
        build_context.source_files()


def test_without_git_the_suffix_decides(project: Path) -> None:
    (project / "env/notes.txt").write_text("a password")
    (project / "env/.env").write_text("KEY=1")
    (project / "env/app.pyc").write_bytes(b"x")
    assert sorted(build_context.source_files()) == sorted(FILES)


@pytest.mark.parametrize("link", ["env/link.txt", "env/server/more"])
def test_without_git_every_link_is_refused(project: Path, link: str) -> None:
    (project / link).symlink_to("/etc")
    with pytest.raises(StageError, match=rf"{link} .*leads elsewhere"):
        build_context.source_files()
