"""The registry: one version for new weights, with lineage and aliases; and it answers."""

import json
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from helpers.changed import changed
from helpers.untaught import untaught

from agent.nano.sizes import NanoSettings
from agent.nano.teaching import save
from tasks import config, evaluate, paths, register
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError
from tasks.registry import champions, versions
from tasks.tracking import lineage, runs
from tasks.tracking.runs import stage_run

pytestmark = pytest.mark.xdist_group("registry")  # so that one process imports MLflow

ROOT = Path(__file__).parents[2]


def compared(after: float) -> dict[str, Any]:
    return {"before": 0.2, "after": after, "difference": after - 0.2, "ci95": [0.1, 0.5]}


def evaluated(params: Params) -> None:
    """Leave the report of an evaluation of what is there."""
    names = ("reward", "f1_greedy", "f1_sampled", "primary_objective")
    told = {"n": 240, "improvement": "Improvement: 50.0 %", **{n: compared(0.3) for n in names}}
    paths.EVALUATION.write_text(json.dumps({**told, "inputs": evaluate.inputs(params)}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, server_params, empty_store) -> Iterator[Path]:
    """A working folder in which everything before `register` was done."""
    path = tmp_path_factory.mktemp("work")
    shutil.copy(empty_store, path)
    for name in (*register.PACKAGES, "mlflow"):
        (path / name).symlink_to(ROOT / name)
    # MLflow compares each line with what is installed, a second for all of ours.
    (path / "constraints.txt").write_text(f"mlflow=={metadata.version('mlflow')}\n")
    save(untaught(NanoSettings()), path / "models/merged")
    (path / "reports").mkdir()
    (path / "dvc.lock").write_text(
        "stages: {prepare: {outs: [{path: data/problems, md5: abc.dir}, {path: data/report.json}]},"
        " plots: {outs: [{path: reports/plots/reward_curve.png, md5: def}]}}"
    )
    (path / "data").mkdir()
    (path / "data/report.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}/mlflow.db")
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        config.write_resolved(server_params)
        evaluated(server_params)
        yield path


def registered(params: Params) -> dict[str, Any]:
    with stage_run("register", params) as run:
        return dict(json.loads(register.run(params, run).read_text()))


@pytest.fixture(scope="module")
def first(folder: Path, server_params: Params) -> dict[str, Any]:
    """The report of the first registration."""
    return registered(server_params)


def test_new_weights_make_a_version_and_unchanged_ones_do_not(folder, server_params, first):
    assert first == {"name": "rlm", "version": "1", "new": True, "aliases": ["challenger"]}
    assert registered(server_params) == first | {"new": False}

    # A note beside the weights does not make a new model; a changed weight does.
    (folder / "models/merged/note.txt").write_text("later")
    assert not registered(server_params)["new"]
    weights = next((folder / "models/merged").glob("*.safetensors"))
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(StageError, match=r"other settings or models. Run `rlm evaluate`"):
        registered(server_params)
    evaluated(server_params)
    with pytest.raises(StageError, match=r"other settings or models. Run `rlm evaluate`"):
        registered(changed(server_params, env={"search_window": 7}))
    second = registered(server_params)
    weights.write_bytes(kept)
    assert (second["version"], second["new"], second["aliases"]) == ("2", True, ["challenger"])
    assert versions.get_version("rlm", "1").aliases == []
    # Weights of an older version are that version, with all that was decided about it.
    assert registered(server_params) == first | {"new": False}
    # A run that was killed before it named its version challenger.
    runs.client(runs.tracking_uri()).delete_registered_model_alias("rlm", "challenger")
    assert registered(server_params) == first | {"new": False}


def test_weights_that_are_to_be_served_otherwise_make_a_version(folder, server_params, first):
    sampled = changed(server_params, promote={"mode": "sampled"})
    evaluated(sampled)
    config.write_resolved(sampled)
    try:
        report = registered(sampled)
    finally:
        config.write_resolved(server_params)
    assert report["new"]
    for params, version in ((server_params, first["version"]), (sampled, report["version"])):
        assert versions.settings(versions.get_version("rlm", version)) == params
        # Each way of serving keeps its version, with all that was decided about it.
        assert (registered(params)["version"], registered(params)["new"]) == (version, False)


def test_a_version_of_other_code_is_refused_with_the_folder_to_ask(folder, first):
    version = versions.get_version("rlm", first["version"])
    path = versions.artifact(version) / "artifacts" / config.RESOLVED.name
    kept = path.read_text()
    path.write_text(kept.replace("\ntrain:\n", "\ntrain:\n  method: lora\n  kl_beta: 0.0\n"))
    told = rf"train\.method: unknown key.* --model {path.parent}/merged$"
    with pytest.raises(ConfigError, match=told):
        versions.settings(version)
    with pytest.raises(StageError, match="contains other files than were registered"):
        versions.download(version)
    path.write_text(kept)


def test_a_version_carries_its_lineage(folder, server_params, first):
    version = versions.get_version("rlm", "1")
    told = version.tags
    assert told["weights_hash"] == versions.weights_hash(Path("models/merged"))
    assert versions.FILES in told
    rest = json.loads(told["lineage"])
    assert rest["dvc"] == {"data.problems": "abc.dir"}  # only what the weights are made of
    assert rest["params_hash"] == lineage.params_hash(server_params)
    evaluated = {"evaluation.n": "240", "evaluation.reward.after": "0.300000"}
    assert (evaluated | {"seed": "0", champions.PROFILE: "nano"}).items() <= told.items()
    assert told["data_report"] == lineage.files_hash([Path("data/report.json")], Path("data"))
    assert rest["seeds"] == {"prepare": 0, "warmstart": 0, "train": 0}
    assert {"versions", "sandbox"} <= rest.keys()
    assert {"commit", "data_hash"} <= told.keys()
    assert told["commit"] in version.description
    run = runs.client(runs.tracking_uri()).get_run(version.run_id)
    assert run.data.tags["registered"] == "rlm/1"


@pytest.fixture(scope="module")
def loaded(folder: Path, first: dict[str, Any]) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model("models:/rlm/1")


PAPERS = ["A study of Tolgum.\nKalvot scores 41 on Mirbex.", "Mirbex is not in it."]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"question": " ", "documents": PAPERS}, "question 1: the question is empty"),
        ({"question": "q" * 9000, "documents": PAPERS}, r"more than 8000\. Shorten"),
        ({"question": "q", "documents": []}, "comes without documents"),
        ({"question": "q", "documents": ["a", ""]}, "document 'p2' holds no text"),
        ({"question": "q", "documents": ["a", {"id": "p1", "text": "b"}]}, "have the same id"),
        ({"question": "q", "documents": ["a" * 2_000_001]}, "ask about fewer"),
        ({"question": "q\ud800", "documents": ["a"]}, r"question holds .* at 1, a lone surrogate"),
        ({"question": "q", "documents": [{"id": "\udc00", "text": "a"}]}, r"id '.udc00' holds"),
        ({"question": "q", "papers": {"a": "b"}}, r"documents\\n  Field required"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_clear_error(loaded, asked, told):
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=told):
        loaded.predict([asked])


def test_an_environment_that_dies_is_told_and_started_anew(loaded: Any) -> None:
    import psutil
    from mlflow.exceptions import MlflowException

    def servers() -> list[psutil.Process]:
        """Servers that this process started, the registered model's last."""
        found = [p for p in psutil.Process().children() if "env.server.app" in p.cmdline()]
        return sorted(found, key=lambda process: process.create_time())

    asked = [
        {"question": "What does Kalvot score on Mirbex?", "documents": PAPERS, "seed": 3},
        {"question": "Report Kalvot on Mirbex.", "documents": [{"id": "x", "text": PAPERS[0]}]},
    ]
    # Nothing was taught, so nothing is found; but both trees are played to their end.
    assert [(one["void"], one["evidence"]) for one in loaded.predict(asked)] == [(None, [])] * 2
    server = servers()[-1]
    server.kill()
    with pytest.raises(MlflowException, match=r"environment of this model failed.*ask again"):
        loaded.predict(asked)
    assert [one["void"] for one in loaded.predict(asked)] == [None] * 2
    assert servers()[-1].pid != server.pid


MADE_BY = {"models/merged": "export", "reports/evaluation.json": "evaluate"}


@pytest.mark.parametrize(("missing", "stage"), MADE_BY.items())
def test_nothing_unproved_is_registered(folder, server_params, missing, stage):
    (folder / missing).rename(folder / "aside")
    unproved = changed(server_params, register={"model_name": "unproved"})
    try:
        with pytest.raises(StageError, match=f"Run `rlm {stage}` first"):
            registered(unproved)
    finally:
        (folder / "aside").rename(folder / missing)
    assert versions.list_versions("unproved") == []


def test_a_version_requires_no_package_that_is_not_installed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("constraints.txt").write_text("# pins\nruamel.yaml==0.19.1\nno-such-package==1.0\n")
    assert register.requirements() == ["ruamel.yaml==0.19.1"]
