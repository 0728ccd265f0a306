"""Lineage of a run: hashes, seeds, the commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tasks import evaluate, gate
from tasks.config.params import Params
from tasks.tracking import lineage


def test_a_hash_follows_names_and_contents_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    first = lineage.folder_hash(folder)
    os.utime(folder / "a", (1, 1))
    assert lineage.folder_hash(folder) == first
    (folder / "a").write_bytes(b"2")
    second = lineage.folder_hash(folder)
    (folder / "a").rename(folder / "b")
    assert len({first, second, lineage.folder_hash(folder)}) == 3


def test_each_stage_is_recorded_with_its_own_seed() -> None:
    own = {"prepare": {"synthetic": {"seed": 1}}, "warmstart": {"nano": {"seed": 2}}}
    params = Params.model_validate({**own, "train": {"seed": 4}})
    seeds = {"prepare": 1, "warmstart": 2, "zeroshot": gate.SEED, "gate": gate.SEED, "train": 4}
    seeds |= {"evaluate": evaluate.SEED, "push": 4}
    assert {stage: lineage.seed_of(params, stage) for stage in seeds} == seeds


def test_a_commit_is_dirty_by_changed_sources_and_not_by_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lineage.commit.__wrapped__() == "no git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "code.py").write_text("first")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    clean = lineage.commit.__wrapped__()
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("untracked")
    assert lineage.commit.__wrapped__() == clean
    (tmp_path / "code.py").write_text("changed")
    assert lineage.commit.__wrapped__() == f"{clean}-dirty"
