"""A warm start from a registered version."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from helpers.recorder import Recorder

from agent.models import base_model
from agent.settings import ModelSettings
from tasks import paths, warmstart
from tasks.config.params import Params
from tasks.data.texts import question_key
from tasks.errors import StageError
from tasks.registry import trained_questions, versions, warm_start

CHAMPION = Params.model_validate({"warmstart": {"kind": "champion"}})
THIRD = Params.model_validate({"warmstart": {"kind": "champion", "version": "3"}})


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Path:
    """Version 3 with its weights; nothing else."""
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "artifacts/registered"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"weights")
    version = SimpleNamespace(name="rlm", version="3", run_id="r", tags={"commit": "abc"})
    monkeypatch.setattr(versions, "champion", lambda name: version)
    monkeypatch.setattr(versions, "get_version", lambda name, number: version)
    monkeypatch.setattr(versions, "download", lambda found: weights)
    monkeypatch.setattr(versions, "artifact", lambda found: tmp_path)
    return tmp_path


@pytest.mark.parametrize("params", [CHAMPION, THIRD])
def test_the_base_becomes_the_registered_weights_and_says_so(
    registry: Path, params: Params
) -> None:
    run = Recorder()
    base = warmstart.run(params, run)  # type: ignore[arg-type]
    assert base == Path("models/base")
    assert (base / "model.safetensors").read_bytes() == b"weights"
    told = json.loads((base / warm_start.PROVENANCE).read_text())
    assert (told["from"], told["tags"]) == ("rlm/3", {"commit": "abc"})
    assert run.tags["base"] == "rlm/3"


def test_what_the_version_was_trained_on_goes_from_model_to_model(registry: Path) -> None:
    (registry / "artifacts/trained.json").write_text(json.dumps(["earlier"]))
    warmstart.run(THIRD, Recorder())  # type: ignore[arg-type]
    Path("data/problems").mkdir(parents=True)
    asked = pd.DataFrame({"question": ["How many, in all?", "How many in all"]})
    asked.to_parquet(paths.TRAIN)
    assert json.loads(trained_questions.write(Params()).read_text()) == [
        "earlier"
    ]  # fresh each time
    own = Params.model_validate({"prepare": {"source": "files"}})
    written = json.loads(trained_questions.write(own).read_text())
    assert written == sorted(["earlier", question_key("how many in all?")])


def test_a_version_is_quantised_with_the_template_that_it_has(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(base_model, "prepare_base", lambda of, out: (asked.append(of), out.mkdir()))
    model = {
        "source": "org/first",
        "revision": "v1",
        "quantisation": "nf4",
        "template": "training",
        "template_kwargs": {"enable_thinking": False},
    }
    warmstart.run(CHAMPION.model_copy(update={"model": ModelSettings(**model)}), Recorder())  # type: ignore[arg-type]
    source = str(registry / "artifacts/registered")
    assert asked == [ModelSettings(source=source, quantisation="nf4")]


def test_a_version_that_cannot_be_read_leaves_the_old_base(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmstart.run(THIRD, Recorder())  # type: ignore[arg-type]

    def gone(version: Any) -> Path:
        raise StageError("rlm version 3: its artifact cannot be read")

    monkeypatch.setattr(versions, "download", gone)
    with pytest.raises(StageError, match="cannot be read"):
        warmstart.run(THIRD, Recorder())  # type: ignore[arg-type]
    assert Path("models/base", warm_start.PROVENANCE).is_file()


def test_a_version_of_another_registry_is_not_taken_for_the_one_that_was_named(
    registry: Path,
) -> None:
    named = {"kind": "champion", "version": "3"}
    right = named | {"weights_hash": versions.weights_hash(registry / "artifacts/registered")}
    warmstart.run(Params.model_validate({"warmstart": right}), Recorder())  # type: ignore[arg-type]
    other = Params.model_validate({"warmstart": named | {"weights_hash": "0" * 16}})
    with pytest.raises(StageError, match=r"rlm version 3 at sqlite.* the right registry"):
        warmstart.run(other, Recorder())  # type: ignore[arg-type]
