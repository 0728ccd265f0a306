"""The registry: one version for new weights, with lineage and aliases; and it answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from agent.nano.warmstart import save, untaught
from env.problems.store import ProblemStore
from tasks import config, register, tracking
from tasks.config import Params
from tasks.errors import StageError
from tasks.tracking import stage_run

ROOT = Path(__file__).parent.parent


def compared(after: float) -> dict[str, Any]:
    return {"before": 0.2, "after": after, "difference": after - 0.2, "ci95": [0.1, 0.5]}


@pytest.fixture(scope="module")
def model(
    tmp_path_factory: pytest.TempPathFactory,
    server_params: Params,
    server_problems: ProblemStore,
) -> Path:
    """A nano model that was taught nothing, as a folder."""
    problems = [server_problems.get(item) for item in server_problems.ids("train", None)]
    taught = untaught(server_params.warmstart.nano, problems)
    path = tmp_path_factory.mktemp("model") / "merged"
    save(taught, path)
    return path


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, model: Path, server_params: Params
) -> Iterator[Path]:
    """A working folder in which everything before `register` was done."""
    path = tmp_path_factory.mktemp("work")
    for name in (*register.PACKAGES, "mlflow"):
        (path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "constraints.txt", path)
    shutil.copytree(model, path / "models/merged")
    (path / "reports").mkdir()
    names = ("reward", "f1_greedy", "f1_sampled", "primary_objective")
    told = {"n": 240, "improvement": "Improvement: 50.0 %"} | {n: compared(0.3) for n in names}
    (path / "reports/evaluation.json").write_text(json.dumps(told))
    (path / "dvc.lock").write_text(
        "stages: {prepare: {outs: [{path: data/problems, md5: abc.dir}, {path: data/report.json}]}}"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}/mlflow.db")
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        config.write_resolved(server_params)
        yield path


def registered(params: Params) -> dict[str, Any]:
    with stage_run("register", params) as run:
        told: dict[str, Any] = json.loads(register.run(params, run).read_text())
    return told


def test_new_weights_make_a_version_and_unchanged_ones_do_not(
    folder: Path, server_params: Params
) -> None:
    first = registered(server_params)
    assert first == {
        "name": "rlm",
        "version": "1",
        "new": True,
        "aliases": ["challenger", "champion"],
    }
    assert registered(server_params) == first | {"new": False}

    # A note beside the weights is no new model; a changed weight is.
    (folder / "models/merged/note.txt").write_text("later")
    assert not registered(server_params)["new"]
    weights = next((folder / "models/merged").glob("*.safetensors"))
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    second = registered(server_params)
    weights.write_bytes(kept)
    assert (second["version"], second["new"], second["aliases"]) == ("2", True, ["challenger"])
    store = tracking.client(tracking.tracking_uri())
    assert str(store.get_model_version_by_alias("rlm", "champion").version) == "1"


def test_a_version_carries_its_lineage(folder: Path, server_params: Params) -> None:
    name = "lineage"
    params = server_params.model_copy(
        update={"register_": config.RegisterSettings(model_name=name)}
    )
    registered(params)
    store = tracking.client(tracking.tracking_uri())
    version = store.get_model_version_by_alias(name, "champion")
    told = version.tags
    assert told["weights_hash"] == register.weights_hash(Path("models/merged"))
    assert told["dvc.data.problems"] == "abc.dir"
    assert told["params_hash"] == tracking.params_hash(params)
    assert told["seed"] == "0"
    assert told["evaluation.n"] == "240"
    assert told["evaluation.reward.after"] == "0.3000"
    assert {"commit", "data_hash", "versions", "sandbox"} <= told.keys()
    run = store.get_run(version.run_id)
    assert run.data.tags["registered"] == f"{name}/1"


def test_the_registered_model_plays_a_whole_episode(folder: Path, server_params: Params) -> None:
    registered(server_params)
    loaded = mlflow.pyfunc.load_model("models:/rlm@champion")
    questions = [
        {
            "question": "What does Kalvot score on Mirbex?",
            "papers": {"p1": "A study of Tolgum.\nKalvot scores 41 on Mirbex."},
        },
        {"question": "Report Kalvot on Mirbex.", "papers": {"p1": "x", "p2": "y"}},
    ]
    answers = loaded.predict(questions)
    # Nothing was taught, so nothing is found; but both trees were played to their end.
    assert len(answers) == 2
    for answer in answers:
        assert answer["void"] is None
        assert answer["stop_reason"] in ("final", "max_turns", "truncated", "error", "budget")
        assert answer["turns"] >= 1


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("models/merged", "run the stage export first"),
        ("reports/evaluation.json", "run the stage evaluate first"),
    ],
)
def test_nothing_unproved_is_registered(
    folder: Path, server_params: Params, missing: str, told: str
) -> None:
    (folder / missing).rename(folder / "aside")
    params = server_params.model_copy(
        update={"register_": config.RegisterSettings(model_name="unproved")}
    )
    try:
        with pytest.raises(StageError, match=told):
            registered(params)
    finally:
        (folder / "aside").rename(folder / missing)
    assert register.newest_version("unproved") is None
