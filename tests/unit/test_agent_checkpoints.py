"""Checkpoints of another run: set aside, named, never deleted."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from agent.errors import CheckpointError
from agent.training import checkpoints


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one checkpoint."""
    return saved(tmp_path / "checkpoints", 4)


def saved(folder: Path, step: int) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    state = {"step": step, "fingerprint": {"code": "one"}}
    (place / checkpoints.STATE).write_text(json.dumps(state))
    return folder


def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_half_one(folder: Path) -> None:
    # Messages of torch.save and of safetensors, whose errors are not OSErrors.
    for said in ("basic_ios::clear: iostream error", "I/O error: No space left on device"):
        with pytest.raises(CheckpointError, match=r"step 5 could not be written .*make room"):
            write_half(folder, said)
    with pytest.raises(RuntimeError, match=r"^shapes$"):
        write_half(folder, "shapes")
    assert list(checkpoints.steps(folder)) == [4]
    assert [path.name for path in folder.rglob("weights")] == []


def write_half(folder: Path, said: str) -> None:
    with checkpoints.writing(folder, 5) as aside:
        (aside / "weights").write_text("half")
        raise RuntimeError(said)


def test_unfitting_checkpoints_are_renamed_and_named(folder: Path) -> None:
    assert checkpoints.choose(folder, {"code": "two"}).reason == "code changed: starting clean"
    message = checkpoints.set_aside(folder)
    (place,) = folder.parent.glob("checkpoints.*")
    assert message == f"The earlier checkpoints are kept in {place}."
    date = datetime.strptime(place.name, "checkpoints.%Y-%m-%d-%H%M%S")
    assert abs((datetime.now() - date).total_seconds()) < 60
    assert list(folder.iterdir()) == []

    # Renamed back, it fits again.
    folder.rmdir()
    place.rename(folder)
    assert checkpoints.choose(folder, {"code": "one"}).reason.startswith("resuming after step 4 ")


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a half-written checkpoint"])
def test_a_folder_without_checkpoints_is_not_set_aside(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "models/checkpoints"
    if left != "nothing":
        folder.mkdir(parents=True)
    if left == "a half-written checkpoint":
        (folder / checkpoints.WRITING / "checkpoint-5").mkdir(parents=True)
    assert checkpoints.set_aside(folder) == ""
    assert list(folder.iterdir()) == []
    assert list(folder.parent.iterdir()) == [folder]


def test_a_checkpoint_that_cannot_be_read_is_set_aside_too(folder: Path) -> None:
    (folder / "checkpoint-4" / checkpoints.STATE).write_text("{")
    assert checkpoints.choose(folder, {}).checkpoint is None
    checkpoints.set_aside(folder)
    (place,) = folder.parent.glob("checkpoints.*")
    assert (place / "checkpoint-4" / checkpoints.STATE).read_text() == "{"


def test_a_folder_that_cannot_be_renamed_is_not_overwritten(folder, monkeypatch):
    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    told = r"cannot be set aside .*busy.*\. Move them elsewhere"
    with pytest.raises(CheckpointError, match=told):
        checkpoints.set_aside(folder)
    assert list(checkpoints.steps(folder)) == [4]


def test_too_little_space_is_told_with_the_number_that_is_needed(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"3 x .* make room or lower"):  # one is there
        checkpoints.require_space(folder, checkpoint_bytes=10**15, keep=2)
    checkpoints.set_aside(folder)
    with pytest.raises(CheckpointError, match="4 x"):
        checkpoints.require_space(folder, checkpoint_bytes=10**15, keep=2)
