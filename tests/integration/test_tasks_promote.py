"""Promotion, rollback and the list, on a real registry.

Where models must play, scripted policies stand for them and play real episodes on a real server.
Elsewhere rows of a known quality stand for the episodes.
"""

import json
import shutil
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from helpers.changed import changed
from helpers.recorder import recorded
from helpers.registry import SCRIPTS, add_version
from rich.console import Console

from agent.evaluation import promotion
from agent.policies.base import Policy
from agent.settings import GenerationSettings
from tasks import evaluate, paths, promote
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.registry import champions, versions
from tasks.tracking import runs
from tasks.tracking.runs import stage_run

pytestmark = pytest.mark.xdist_group("registry")  # so that one process imports MLflow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Path:
    """A working folder with an empty registry, and an untrained base of quality 0.2."""
    monkeypatch.chdir(tmp_path)
    paths.BASE.mkdir(parents=True)
    (paths.BASE / "model.safetensors").write_text("0.2 base")
    return tmp_path


@pytest.fixture
def played(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rows instead of episodes, by the quality that a model's weights say; the sets played."""
    sets: list[str] = []

    def rows(folder: Path, chosen: Any, name: str) -> list[dict[str, Any]]:
        words = weights_of(folder).split()
        quality, noise = float(words[0]), Random(f"{words}/{len(sets)}")
        same = {"mode": "greedy", "void": None, "reward": quality}
        return [
            {"problem_id": spec.problem_id, "collection_id": spec.collection_id, **same}
            | {"primary_objective": quality + noise.gauss(0, 0.05)}
            for spec in chosen
        ]

    def play_set(models: Any, url: str, chosen: Any, params: Any, label: str) -> Any:
        sets.append(label)
        return {name: rows(path, chosen, name) for name, path in models.items()}

    monkeypatch.setattr(promote, "play_set", play_set)
    monkeypatch.setattr(promote, "local_server", lambda *_: nullcontext("nowhere"))
    return sets


def weights_of(path: Path) -> str:
    return (path / "model.safetensors").read_text()


def challenger(weights: str) -> str:
    """A new version with these weights, as the stage register leaves it."""
    number = str(add_version(weights, {versions.SERVING: versions.serving(Params())}).version)
    runs.client(runs.tracking_uri()).set_registered_model_alias("rlm", "challenger", number)
    return number


def crowned(weights: str) -> None:
    """A new version with these weights, made champion."""
    version = versions.get_version("rlm", challenger(weights))
    champions.crown(version, instead_of=versions.champion("rlm"))


def promoted(params: Params) -> dict[str, Any]:
    """Report of the stage, without a run of MLflow."""
    run = recorded(promote, params)
    told: dict[str, Any] = json.loads(paths.PROMOTION.read_text())
    assert run.tags["promotion.verdict"] == told["verdict"]
    return told


def champion() -> str | None:
    return str(found.version) if (found := versions.champion("rlm")) else None


def listed() -> str:
    with (console := Console(width=200)).capture() as printed:
        console.print(champions.table("rlm"))
    return printed.get()


# --- who is promoted ---


def test_the_first_version_beats_the_base_on_two_fresh_sets(folder, server_params, monkeypatch):
    def load(path: Path, generation: GenerationSettings) -> Policy:
        """Weights are the name of a scripted policy."""
        assert generation.temperature == 0  # the mode that is served
        return SCRIPTS[weights_of(path)]()

    monkeypatch.setattr(evaluate, "load_policy", load)
    # Real episodes take their time, and these two differ by far.
    monkeypatch.setattr(promotion, "LEAST_PROBLEMS", 9)
    monkeypatch.setattr(promotion, "LEAST_COLLECTIONS", 3)
    (paths.BASE / "model.safetensors").write_text("silent")
    challenger("expert")
    few = server_params.promote.model_copy(update={"problems": 9})  # below the setting's bound
    params = server_params.model_copy(update={"promote": few})
    with stage_run("promote", params) as run:
        report = json.loads(promote.run(params, run).read_text())
    assert report["verdict"] == "promoted", report["reason"]
    kept = run.client.get_run(run.run_id).data
    assert kept.tags["promotion.verdict"] == "promoted"
    assert kept.metrics["promote/primary_objective_low"] > 0
    assert champion() == "1"
    assert report["opponent"]["kind"] == "base"
    assert len(report["sets"]) == 2
    for figures in report["sets"]:
        assert figures["n"] >= 9
        assert figures["primary_objective"]["interval"][0] > 0
        assert figures["reward"]["difference"] >= 0
    assert report["seed"] > 2**32
    assert str(report["seed"]) in report["problems"]
    tags = versions.get_version("rlm", "1").tags
    assert tags["promotion.verdict"] == "promoted"
    assert tags["promotion.opponent"] == "base"
    assert json.loads(tags["promotion.interval"])[0][0] > 0
    assert tags[champions.SINCE]


def test_a_better_challenger_is_promoted_and_a_worse_one_is_not(played, server_params):
    challenger("0.5 first")
    promoted(server_params)
    challenger("0.7 better")
    report = promoted(server_params)
    assert report["reason"].startswith("better than the champion, version 1: ")
    assert (report["verdict"], champion()) == ("promoted", "2")
    assert versions.get_version("rlm", "2").tags[champions.PREVIOUS] == "1"
    challenger("0.6 worse")
    report = promoted(server_params)
    assert report["reason"].startswith("against the champion, version 2: worse: ")
    assert (report["verdict"], champion()) == ("kept", "2")
    assert played == ["first", "second", "first", "second", "first"]


def test_a_small_gain_is_enough_for_a_low_confidence_only(played, server_params):
    crowned("0.5 first")
    for quality, level, verdict in ((0.515, 0.9999, "kept"), (0.5151, 0.9, "promoted")):
        challenger(f"{quality} slightly better")
        assert promoted(changed(server_params, promote={"level": level}))["verdict"] == verdict


def test_a_gain_that_the_second_set_does_not_confirm_is_none(played, server_params, monkeypatch):
    crowned("0.5 first")
    rows = promote.play_set

    def lucky(models: Any, url: str, chosen: Any, params: Any, label: str) -> Any:
        found = rows(models, url, chosen, params, label)
        for row in found["challenger"] if label == "first" else []:
            row["primary_objective"] += 0.3
        return found

    monkeypatch.setattr(promote, "play_set", lucky)
    challenger("0.5 lucky")
    report = promoted(server_params)
    assert "not confirmed on the second set: " in report["reason"]
    assert (report["verdict"], champion()) == ("kept", "1")


# --- nothing to compare ---


def test_a_decision_is_made_once(played: list[str], server_params: Params) -> None:
    challenger("0.5 first")
    first = promoted(server_params)
    again = promoted(server_params)
    said = first["said"].replace("promoted:", "promoted by an earlier run:")
    assert again == first | {"new": False, "said": said}
    challenger("0.4 worse")
    kept = promoted(server_params)
    assert promoted(server_params) == kept | {"new": False}
    assert played == ["first", "second", "first"]
    # Under another rule it is another question.
    promoted(changed(server_params, promote={"level": 0.95}))
    assert played == ["first", "second", "first", "first"]


def test_equal_weights_are_not_compared(played: list[str], server_params: Params) -> None:
    crowned("0.5 same")
    challenger("0.5 same")
    report = promoted(server_params)
    assert "it has the weights of the champion, version 1" in report["reason"]
    assert (report["verdict"], champion()) == ("kept", "1")
    assert played == []


def test_small_splits_prove_nothing(played: list[str], served_folder, server_params) -> None:
    challenger("0.9 much better")
    shutil.copy(paths.TEST, paths.VALIDATION)
    report = promoted(changed(server_params, prepare={"source": "files"}))
    assert "each of the two needs 200 in 30" in report["reason"]
    assert "validation and test problems" in report["problems"]
    assert (report["verdict"], champion()) == ("kept", None)
    assert played == []


# --- faults: nothing is half done ---


def test_killed_before_the_alias_moved_the_next_run_goes_on(played, server_params, capsys):
    crowned("0.5 first")
    challenger("0.7 better")
    alias = "mlflow.MlflowClient.set_registered_model_alias"
    with mock.patch(alias, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        promoted(server_params)
    assert champion() == "1"
    report = promoted(server_params)
    assert "version 2 had won before the last run was stopped" in capsys.readouterr().out
    assert (report["verdict"], report["new"], champion()) == ("promoted", True, "2")
    assert played == ["first", "second"]


def test_somebody_else_became_champion_meanwhile(played, server_params):
    crowned("0.5 first")
    challenger("0.6 second")
    write = champions.write_decision

    def meanwhile(version: Any, report: Any) -> None:
        write(version, report | {"rule": "longer than a tag once could be" * 200})
        runs.client(runs.tracking_uri()).set_registered_model_alias("rlm", "champion", "2")

    challenger("0.7 third")
    patched = mock.patch.object(champions, "write_decision", meanwhile)
    with patched, pytest.raises(StageError, match=r"did not become champion \(meanwhile rlm"):
        promoted(server_params)
    assert champion() == "2"
    loser = versions.get_version("rlm", "3").tags
    assert loser.keys().isdisjoint({champions.SINCE, champions.PREVIOUS})
    # The next run compares with the new one, and that is who a rollback leads to.
    assert promoted(server_params)["opponent"]["version"] == "2"
    assert versions.get_version("rlm", "3").tags[champions.PREVIOUS] == "2"


def test_a_deleted_champion_stops_the_run(played: list[str], server_params: Params) -> None:
    crowned("0.5 first")
    challenger("0.7 second")
    runs.client(runs.tracking_uri()).delete_model_version("rlm", "1")
    with pytest.raises(StageError, match=r"version 1, which is no longer .*rollback --to VERSION"):
        promoted(server_params)
    assert not paths.PROMOTION.exists()
    # As the message says: name another by hand.
    champions.rollback("rlm", "2")
    assert champion() == "2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (shutil.rmtree, r"rlm version 1.*artifact"),
        (lambda path: (path / "model.safetensors").write_text("0.4 other"), "contains other weigh"),
    ],
)
def test_a_champion_with_lost_or_altered_files_stops_the_run(played, server_params, change, told):
    crowned("0.5 first")
    challenger("0.7 second")
    change(Path("kept-1") / versions.ARTIFACT)
    with pytest.raises(StageError, match=told):
        promoted(server_params)
    assert champion() == "1"
    assert "promotion.verdict" not in versions.get_version("rlm", "2").tags


OTHERWISE = [{"promote": {"mode": "sampled"}}, {"generation": {"max_turn_tokens": 8}}]
OTHERWISE += [{"env": {"search_window": 7}}, {"rewards": {"free_misses": 4}}]


@pytest.mark.parametrize("other", OTHERWISE)
def test_who_would_serve_otherwise_than_it_would_play_is_not_compared(played, other):
    challenger("0.9 better")
    with pytest.raises(StageError, match="rlm version 1 would serve with other settings"):
        promoted(Params.model_validate(other))
    assert (champion(), played) == (None, [])


def test_a_registry_that_fails_while_tags_are_written_promotes_nobody(played, server_params):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    challenger("0.5 first")
    write, written = MlflowClient.set_model_version_tag, count(1)

    def locked(*args: Any, **kwargs: Any) -> None:
        if next(written) == 3:
            raise MlflowException("(sqlite3.OperationalError) database is locked\n[SQL: ...]")
        write(*args, **kwargs)

    told = r"^tags of rlm version 1 cannot be written: MLflow at .*database is locked\)[^\n]*$"
    patched = mock.patch.object(MlflowClient, "set_model_version_tag", locked)
    with patched, pytest.raises(StageError, match=told):
        promoted(server_params)
    assert champion() is None
    assert "promotion.verdict" in versions.get_version("rlm", "1").tags
    assert "not compared" in listed()
    assert (promoted(server_params)["verdict"], champion()) == ("promoted", "1")


# --- going back ---


@pytest.fixture
def three(folder: Path) -> None:
    """Versions 1, 2 and 3, each champion after the one before it."""
    for weights in ("a", "b", "c"):
        crowned(weights)


def test_rollback_goes_back_one_champion_at_a_time(three: None) -> None:
    for to, told in (("7", "Choose one of: 3, 2, 1"), ("3", "version 3 is already champion")):
        with pytest.raises(StageError, match=told):
            champions.rollback("rlm", to)
    was, now = champions.rollback("rlm", None)
    assert (str(was.version), str(now.version), champion()) == ("3", "2", "2")
    tags = versions.get_version("rlm", "3").tags
    assert tags[champions.ROLLED_BACK]
    assert tags["rolled_back_to"] == "2"
    champions.rollback("rlm", None)
    assert champion() == "1"
    for profile, marks in (("nano", 0), ("quick", 1)):  # nothing was compared
        champions._tag(versions.get_version("rlm", "1"), {champions.PROFILE: profile})
        assert listed().count("profile quick") == marks
    with pytest.raises(StageError, match=r"version 1 is the first champion\. Name"):
        champions.rollback("rlm", None)
    assert champion() == "1"


def test_rollback_to_whom_an_older_version_replaced_goes_on_backwards(three: None) -> None:
    champions.crown(versions.get_version("rlm", "1"), instead_of=versions.champion("rlm"))
    for expected in ("3", "2", "1"):
        champions.rollback("rlm", None)
        assert champion() == expected


def test_what_was_rolled_back_is_not_promoted_again_by_itself(three, played, server_params):
    champions.rollback("rlm", None)
    report = promoted(server_params)
    assert "it was champion and was rolled back" in report["reason"]
    assert (report["verdict"], champion()) == ("kept", "2")
    # But by hand, and then it counts as champion again.
    champions.rollback("rlm", "3")
    assert champion() == "3"
    assert champions.ROLLED_BACK not in versions.get_version("rlm", "3").tags
    champions.rollback("rlm", None)
    assert champion() == "2"
