"""Stage `promote`: make the challenger champion if it is proved better.

The registered weights of challenger and champion play the same problems with the same seeds, in
the mode that is served (`promote.mode`). `agent/evaluation/promotion.py` has the rule. Problems of
a synthetic source are generated from a seed that depends on the challenger's weights. No model was
trained on them. Other sources use the splits `validation` and `test`, which nothing is trained on.
Without a champion, the opponent is the base before GRPO.

The decision is written to reports/promotion.json and to tags of the version before the alias
moves, in one call (`tasks/registry/champions.py`). Two models are compared once per rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agent.evaluation import promotion
from agent.evaluation.report import episode_row
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.specs import EpisodeSpec, read_specs
from agent.settings import LEAST_COLLECTIONS, LEAST_PROBLEMS
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.errors import StageError, as_stage_error
from tasks.io import write_json
from tasks.registry import champions, versions
from tasks.tracking import lineage

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from agent.evaluation.report import EpisodeRow
    from tasks.tracking.runs import StageRun

SETS = ("first", "second")
RESAMPLES = 10_000
"""Of a bootstrap: the ends of a 99 % interval each have 50 of them beyond."""


def run(params: Params, run: StageRun) -> Path:
    """Decide, record the reason, and move the alias if the challenger won.

    Raises:
        StageError: the challenger is missing or would serve with other settings, the champion is
            missing or unreadable, or the registry or the environment fails. The alias has not
            moved then.
    """
    name = params.register_.model_name
    challenger = versions.by_alias(name, "challenger")
    if challenger is None:
        raise StageError(f"{name} has no challenger. Run `rlm register` first.")
    if challenger.tags.get(versions.SERVING) != versions.serving(params):
        raise StageError(
            f"{versions.named(challenger)} would serve with other settings than those in force "
            "(promote.mode, generation, env, rewards). Run `rlm register` first."
        )
    champion = versions.champion(name)
    if (report := known_report(challenger, champion, params)) is None:
        report = decide(challenger, champion, params)
        champions.write_decision(challenger, report)
    elif report["new"]:
        line = f"{versions.named(challenger)} had won before the last run was stopped"
        Console().print(line, highlight=False)
    before = not report["new"] and report["verdict"] == "promoted"
    said = f"{report['verdict']}{' by an earlier run' if before else ''}: {report['reason']}"
    if params.profile == "quick":
        said += " (profile quick: its figures mean nothing)"
    write_json(paths.PROMOTION, {**report, "said": said})
    log(report, run)
    if report["verdict"] == "promoted" and report["new"]:
        champions.crown(challenger, instead_of=champion)
    Console().print(said, highlight=False, soft_wrap=True)
    return paths.PROMOTION


def known_report(
    challenger: ModelVersion, champion: ModelVersion | None, params: Params
) -> dict[str, Any] | None:
    """The report if no comparison is needed, else None."""
    decision = json.loads(challenger.tags.get(champions.DECISION, "null"))
    if champion is not None and str(champion.version) == str(challenger.version):
        won = decision if decision and decision["verdict"] == "promoted" else None
        return {**(won or uncompared(challenger, "it is the champion already")), "new": False}
    weights = challenger.tags["weights_hash"]
    if champion is not None and champion.tags.get("weights_hash") == weights:
        reason = f"it has the weights of the champion, version {champion.version}"
        return uncompared(challenger, reason)
    for version in versions.list_versions(challenger.name):  # equal weights are the same model
        when = version.tags.get(champions.ROLLED_BACK)
        if when and version.tags.get("weights_hash") == weights:
            command = f"rlm rollback --to {version.version}"
            reason = f"it was champion and was rolled back at {when}; `{command}` restores it"
            return uncompared(challenger, reason)
    same = decision and decision["sets"] and decision["rule"] == rule(params)
    if same and decision["opponent"] == opponent_entry(champion):
        return {**decision, "new": decision["verdict"] == "promoted"}
    return None


def uncompared(challenger: ModelVersion, reason: str) -> dict[str, Any]:
    """Report of a challenger without a comparison."""
    return {
        "name": challenger.name,
        "version": str(challenger.version),
        "verdict": "kept",
        "reason": f"nothing to compare: {reason}",
        "new": False,
        "sets": [],
    }


def rule(params: Params) -> dict[str, Any]:
    """Conditions of a decision besides the two models; a change permits a new comparison."""
    return {
        **params.promote.model_dump(),
        "bootstrap": RESAMPLES,
        "temperature": params.serving.temperature,
        "least_pairs": LEAST_PROBLEMS,
        "least_collections": LEAST_COLLECTIONS,
        "data": "fresh" if params.prepare.source == "synthetic" else lineage.data_hash(),
        "text": "promoted if, on both sets, primary_objective is higher and the mean reward is not "
        "lower. Higher: the whole interval of the paired difference (bootstrap by collection) is "
        "above 0",
    }


def opponent_entry(champion: ModelVersion | None) -> dict[str, Any]:
    """Entry of the opponent in the report."""
    if champion is None:
        return {"kind": "base", "version": None, "weights_hash": versions.weights_hash(paths.BASE)}
    return {
        "kind": "champion",
        "version": str(champion.version),
        "weights_hash": champion.tags.get("weights_hash"),
    }


def opponent_weights(champion: ModelVersion | None) -> Path:
    """Folder of the champion's registered weights, or of the base before GRPO.

    Raises:
        StageError: the champion's artifact is missing or altered, or the base is missing.
    """
    if champion is not None:
        return versions.download(champion)
    if not any(paths.BASE.glob("*.safetensors")):
        raise StageError(
            f"no champion is registered and no base is in {paths.BASE}. Run `rlm warmstart` first."
        )
    return paths.BASE


def decide(
    challenger: ModelVersion, champion: ModelVersion | None, params: Params
) -> dict[str, Any]:
    """Play both models on two sets and apply the rule; returns the report.

    Raises:
        StageError: a model cannot be read, the environment fails, or too many episodes are void.
    """
    import torch

    torch.set_num_threads(params.threads)
    models = {"opponent": opponent_weights(champion), "challenger": versions.download(challenger)}
    seed = fresh_seed(challenger)
    bootstrap = Bootstrap(RESAMPLES, seed, params.promote.level)
    outcomes: list[promotion.Outcome] = []
    with as_stage_error(ValueError), pool(params, seed) as (folder, problems, source):
        sets = promotion.two_sets(problems, params.promote.problems, seed)
        lack = promotion.too_small(sets)
        if lack is None:
            with local_server(params, folder) as url:
                for label, specs in zip(SETS, sets, strict=True):
                    rows = play_set(models, url, specs, params, label)
                    outcomes.append(promotion.compare_on_set(**rows, bootstrap=bootstrap))
                    if not outcomes[-1].won:
                        break
    won = [outcome.won for outcome in outcomes]
    return {
        "name": challenger.name,
        "version": str(challenger.version),
        "verdict": "promoted" if won == [True, True] else "kept",
        "reason": verdict_reason(outcomes, champion, source, lack),
        "new": True,
        "weights_hash": challenger.tags["weights_hash"],
        "opponent": opponent_entry(champion),
        "rule": rule(params),
        "problems": source,
        "seed": seed,
        "sets": [outcome.figures for outcome in outcomes],
        "decided_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def verdict_reason(
    outcomes: Sequence[promotion.Outcome],
    champion: ModelVersion | None,
    source: str,
    lack: str | None,
) -> str:
    """Reason of the verdict."""
    opponent = f"the champion, version {champion.version}" if champion else "the base before GRPO"
    if not outcomes:
        return f"not compared with {opponent}: {lack} ({source})"
    if not outcomes[-1].won:
        confirming = "not confirmed on the second set: " if len(outcomes) > 1 else ""
        return f"against {opponent}: {confirming}{outcomes[-1].reason}"
    first, second = outcomes
    return f"better than {opponent}: {first.reason}; on a second set {second.reason}"


def fresh_seed(challenger: ModelVersion) -> int:
    """Seed that no model was trained on: it depends on the challenger's weights.

    It is at least 2**32, far from seeds that people choose.
    """
    return 2**32 + int(challenger.tags["weights_hash"][:8], 16)


@contextmanager
def pool(params: Params, seed: int) -> Iterator[tuple[Path, list[EpisodeSpec], str]]:
    """Problems for two sets, with their folder, which exists while the block runs, and source.

    Raises:
        SettingsError: a split is missing.
    """
    if params.prepare.source != "synthetic":
        source = f"validation and test problems of the source {params.prepare.source}"
        specs = [spec for split in (paths.VALIDATION, paths.TEST) for spec in read_specs(split)]
        yield paths.PROBLEMS, specs, source
        return
    from env.problems.fields import generate
    from env.problems.schema import to_row
    from tasks.prepare import write_parquet

    settings = params.prepare.synthetic
    level = len(settings.levels) * settings.questions_per_collection
    # One spare collection per set.
    collections = 2 * (-(-params.promote.problems // level) + 1)
    counts = dict.fromkeys(settings.collections, 0) | {"test": collections}
    fresh = settings.model_copy(update={"seed": seed, "collections": counts})
    with TemporaryDirectory(prefix="rlm-promote-") as name:
        path = Path(name) / "test.parquet"
        write_parquet(path, [to_row(item) for item in generate(fresh)])
        yield Path(name), read_specs(path), f"synthetic, generated from the seed {seed}"


def play_set(
    models: dict[str, Path], url: str, chosen: Sequence[EpisodeSpec], params: Params, label: str
) -> dict[str, list[EpisodeRow]]:
    """Rows by model, of both models on the same problems and seeds."""
    from tasks.evaluate import play_model

    generation = params.serving
    sessions = min(len(chosen), params.env.max_sessions, generation.batch_frames)
    return {
        name: [
            episode_row(episode, name, params.promote.mode)
            for episode in play_model(
                folder, url, chosen, generation, sessions=sessions, label=f"{name}, {label} set"
            )
        ]
        for name, folder in models.items()
    }


def log(report: dict[str, Any], run: StageRun) -> None:
    """Log the verdict and, at steps 1 and 2, the figures of the sets."""
    run.set_tags({f"promotion.{key}": report[key] for key in ("version", "verdict", "reason")})
    for number, figures in enumerate(report["sets"], 1):
        low, high = figures["primary_objective"]["interval"]
        metrics = {
            "primary_objective_difference": figures["primary_objective"]["difference"],
            "primary_objective_low": low,
            "primary_objective_high": high,
            "reward_difference": figures["reward"]["difference"],
        }
        run.log_metrics({f"promote/{key}": value for key, value in metrics.items()}, step=number)
    run.log_artifact(paths.PROMOTION)
