"""The base: nano, a registered version, and what the bare model plays before."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from helpers.changed import changed
from helpers.problem_files import write_problems
from helpers.recorder import Recorder, recorded

from agent.models import base_model
from agent.policies.base import TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.policies.scripted import Scripted, oracle
from agent.settings import GenerationSettings, ModelSettings
from env.models import Message
from env.problems.store import ProblemStore
from tasks import paths, warmstart, zeroshot
from tasks.config import resolve
from tasks.config.params import Params
from tasks.data.texts import question_key
from tasks.errors import ConfigError, StageError
from tasks.io import read_json, replacing
from tasks.registry import base_sources, trained_questions, versions
from tasks.training import demonstrate, problem_data

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


FEW = ["threads=1", "prepare.synthetic.collections={train: 3, validation: 1, test: 1}"]
UNTAUGHT = [*FEW, "warmstart.kind=none"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    base = tmp_path / "models" / "base"
    monkeypatch.setattr(paths, "BASE", base)
    return base


def test_none_writes_an_untaught_base(place):
    run = recorded(warmstart, resolve(overrides=UNTAUGHT))
    policy = TransformersPolicy(*load_model(place), GenerationSettings(temperature=0.0))
    messages = [Message(role="user", content="Report Kesrog on Toxlim.")]
    request = TurnRequest((0, 0), messages, depth=0, kind="rlm", first=True, seed=0)
    assert "```repl" not in policy.act([request])[0].text
    assert "warmstart/loss" not in run.metrics


def test_an_interrupt_leaves_the_old_base(place, monkeypatch):
    place.mkdir(parents=True)
    (place / "old").touch()

    monkeypatch.setattr("tasks.warmstart.save", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        recorded(warmstart, resolve(overrides=UNTAUGHT))
    assert [path.name for path in place.iterdir()] == ["old"]
    assert [path.name for path in place.parent.iterdir()] == ["base"]


UNKNOWN = ("prepare.source=files", "env.prompt_style=full")
UNKNOWN += ("env.limits.max_depth=0", "env.limits.max_turns=1")


@pytest.mark.parametrize("override", UNKNOWN)
def test_settings_that_the_demonstrations_do_not_know_are_refused(place, override):
    section, _, name = override.partition("=")[0].rpartition(".")
    with pytest.raises(ConfigError, match=rf"{section}.*{name}"):
        recorded(warmstart, resolve(overrides=[*FEW, override]))
    assert not place.exists()


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
def test_the_base_becomes_the_registered_weights_and_says_so(registry, params):
    run = recorded(warmstart, params)
    assert (paths.BASE / "model.safetensors").read_bytes() == b"weights"
    told = json.loads((paths.BASE / base_sources.PROVENANCE).read_text())
    assert (told["from"], told["tags"]) == ("rlm/3", {"commit": "abc"})
    assert run.tags["base"] == "rlm/3"


def test_what_the_version_was_trained_on_goes_from_model_to_model(registry: Path) -> None:
    (registry / "artifacts/trained.json").write_text(json.dumps(["earlier"]))
    recorded(warmstart, THIRD)
    Path("data/problems").mkdir(parents=True)
    pd.DataFrame({"question": ["How many, in all?", "How many in all"]}).to_parquet(paths.TRAIN)
    fresh = json.loads(trained_questions.write(Params()).read_text())
    assert fresh == ["earlier"]  # synthetic problems are new each time
    own = Params.model_validate({"prepare": {"source": "files"}})
    written = json.loads(trained_questions.write(own).read_text())
    assert written == sorted(["earlier", question_key("how many in all?")])


def test_a_version_is_quantised_with_the_template_that_it_has(registry, monkeypatch):
    asked = []
    monkeypatch.setattr(base_model, "prepare_base", lambda of, out: (asked.append(of), out.mkdir()))
    own = {"template": "training", "template_kwargs": {"enable_thinking": False}}
    model = {"source": "org/first", "revision": "v1", "quantisation": "nf4", **own}
    recorded(warmstart, CHAMPION.model_copy(update={"model": ModelSettings(**model)}))
    source = str(registry / "artifacts/registered")
    assert asked == [ModelSettings(source=source, quantisation="nf4")]


def test_a_version_of_another_registry_is_not_taken_and_leaves_the_old_base(registry):
    named = {"kind": "champion", "version": "3"}
    right = named | {"weights_hash": versions.weights_hash(registry / "artifacts/registered")}
    recorded(warmstart, Params.model_validate({"warmstart": right}))
    other = Params.model_validate({"warmstart": named | {"weights_hash": "0" * 16}})
    with pytest.raises(StageError, match=r"rlm version 3 at sqlite.* the right registry"):
        recorded(warmstart, other)
    assert Path("models/base", base_sources.PROVENANCE).is_file()


@pytest.fixture
def params(served_folder: Path, server_problems: ProblemStore, server_params: Params) -> Params:
    """Settings of a small nano; training problems are data of the working folder."""
    problems = map(server_problems.get, server_problems.ids("train"))
    write_problems("data/problems/train.parquet", problems)
    return server_params


def played_by(policy: Scripted, monkeypatch: pytest.MonkeyPatch, params: Params) -> dict[str, Any]:
    monkeypatch.setattr("agent.policies.hf_policy.TransformersPolicy", lambda *_: policy)
    recorded(zeroshot, params)
    return dict(json.loads(paths.ZERO_SHOT.read_text()))


def test_a_nano_of_random_weights_plays_ten_episodes_and_earns_nothing(params: Params) -> None:
    run = recorded(zeroshot, params)
    report = json.loads(paths.ZERO_SHOT.read_text())
    assert (report["level"], report["episodes"], report["earned"]) == ("easy", 10, 0)
    assert report["advice"] == (
        "the bare model earns too little, so demonstrations follow (easy: 0 of 10 episodes earn a "
        "primary objective, 0 by reading, and 0 succeed)"
    )
    assert not report["passed"]
    assert sum(report["stop_reasons"].values()) == 10
    assert run.metrics["zeroshot/error_rate"] == report["error_rate"] > 0
    assert run.metrics["zeroshot/primary_objective"] == run.metrics["zeroshot/f1"] == 0
    assert run.tags["zero_shot"] == report["advice"]
    assert [path.name for path in run.artifacts] == ["zeroshot.json"]
    assert not paths.BASE.exists()


def test_a_bare_model_that_earns_may_need_no_demonstrations(params, server_problems, monkeypatch):
    policy = oracle(server_problems.get(name) for name in server_problems.ids())
    report = played_by(policy, monkeypatch, params)
    assert report["passed"]
    assert report["earned"] == report["succeeded"] == 10
    assert report["advice"].startswith("the gate is open for the bare model, so demonstrations may")


@pytest.mark.parametrize(("passed", "taught"), [(True, []), (False, ["sft"])])
def test_what_the_bare_model_earned_decides_if_it_is_taught(passed, taught, params, monkeypatch):
    made: list[str] = []
    paths.ZERO_SHOT.parent.mkdir(exist_ok=True)
    paths.ZERO_SHOT.write_text(json.dumps({"passed": passed}))
    monkeypatch.setattr(demonstrate, "write_base", lambda *_: made.append("sft"))
    monkeypatch.setattr(base_sources, "write_source", lambda _, run, folder: folder.mkdir())
    kind = {"kind": "auto", "sft": {"problems": 3}}
    auto = changed(params, model={"source": "tiny"}, warmstart=kind)
    recorded(warmstart, auto)
    assert made == taught
    assert paths.BASE.is_dir() == passed
    problems = problem_data.read_problems(paths.TRAIN, ["easy"])
    assert (problem_data.unseen(problems, auto) == problems) == passed


def test_the_model_of_demonstrations_is_played_bare_and_read_once(params, monkeypatch):
    made: list[str] = []

    def prepare(settings: ModelSettings, out: Path, targets: object) -> Any:
        out.mkdir()
        (out / "model.safetensors").write_text(settings.source)
        made.append(settings.source)
        return SimpleNamespace(origin=f"{settings.source} at 1")

    (paths.BARE / "of a run that was killed").mkdir(parents=True)
    monkeypatch.setattr(base_model, "prepare_base", prepare)
    monkeypatch.setattr("agent.policies.hf_policy.load_model", lambda folder: (folder, None))
    sft = changed(params, model={"source": "tiny"}, warmstart={"kind": "sft"})
    report = played_by(Scripted(lambda seen: "I do not know."), monkeypatch, sft)
    assert (report["kind"], report["episodes"]) == ("sft", 10)
    with replacing(paths.BASE) as killed:
        base_sources.write_source(sft, Recorder(), killed)  # type: ignore[arg-type]
    shutil.rmtree(paths.BASE)
    other = changed(sft, model={"source": "other"})
    for folder, settings in ((paths.BASE, sft), (Path("models/other"), other)):
        name = settings.model.source
        assert base_sources.write_source(settings, Recorder(), folder) == f"{name} at 1"  # type: ignore[arg-type]
        assert read_json(folder / base_sources.PROVENANCE) == {"from": f"{name} at 1"}
        assert (folder / "model.safetensors").read_text() == name
    assert made == ["tiny", "other"]


@pytest.mark.parametrize("kind", ["none", "champion"])
def test_without_demonstrations_nothing_is_played(kind, params, monkeypatch):
    monkeypatch.setattr(zeroshot, "play_bare", lambda *_: pytest.fail("it played"))
    recorded(zeroshot, changed(params, warmstart={"kind": kind}))
    report = json.loads(paths.ZERO_SHOT.read_text())
    assert report == {"kind": kind, "played": False, "advice": zeroshot.NOT_PLAYED[kind]}
