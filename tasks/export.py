"""Stage `export`: merge base and adapter into one 16-bit model, and verify it.

The folder is written under a temporary name. A separate process loads it from disk and compares
its logits, greedy completions and one episode with the live model. Only then is it renamed to
models/merged. After a mismatch models/merged does not exist: one of an earlier run would not be
the result of this training.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent.models.model_files import ADAPTER, free_memory
from agent.training import export as comparison
from agent.training.merge import merge
from env import variables
from tasks import paths
from tasks.config.params import Params
from tasks.errors import StageError, as_stage_error
from tasks.io import replacing, require, write_json
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.runs import StageRun


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Merge the model and verify it; returns models/merged.

    Raises:
        StageError: an input is missing, the base is quantised and has no twin, or the merged model
            differs from the live one.
    """
    import torch

    from tasks.deployment.environment import environment

    require(paths.BASE, "warmstart")
    require(paths.TRAINED, "train")
    if paths.MERGED.exists():
        shutil.rmtree(paths.MERGED)
    torch.set_num_threads(params.threads)
    with environment(params) as url, replacing(paths.MERGED) as temporary:
        report = export(params, paths.TRAINED, temporary, url)
        write_json(paths.EXPORT, report)
        log(report, run)
        if report["wrong"]:
            raise StageError(
                f"the merge of {paths.TRAINED} into {paths.BASE} differs from the live model: "
                f"{'; '.join(report['wrong'])}. {paths.MERGED} was not written; {paths.EXPORT} "
                "has the figures. Check that the adapter belongs to this base, or set "
                "export.dtype or export.max_logit_error."
            )
    return paths.MERGED


def export(params: Params, adapter: Path, out: Path, url: str) -> dict[str, Any]:
    """Write the merged model to `out` and compare it with the live one.

    Returns:
        Content of reports/export.json; `wrong` lists the differences that are too large.
    """
    settings = params.export
    with progress.doing("merge"):
        merge(paths.BASE, adapter, out, dtype=settings.dtype)
    started = time.monotonic()
    live, effect, whole_effect, problem = record_live(params, adapter, url)
    took_s = time.monotonic() - started
    free_memory()  # for the process that loads the merged model
    limit = settings.max_logit_error or comparison.error_limit(settings.dtype, live.dtype)
    # It repeats the completions, and plays one episode.
    with progress.doing("compare the merged model in a new process", expected_s=took_s):
        measured = compare_reloaded(out, live, params, url=url, problem=problem)
    return {
        "base": str(paths.BASE),
        "trained": str(adapter),
        "dtype": settings.dtype,
        "arithmetic": live.dtype,
        "megabytes": sum(f.stat().st_size for f in out.rglob("*") if f.is_file()) / 1e6,
        "prompts": len(live.prompts),
        "tokens_compared": sum(len(completion) for completion in live.completions),
        "effect": effect,
        "whole_effect": whole_effect,
        "limit": limit,
        **vars(measured),
        "wrong": comparison.faults(measured, effect, limit, whole_effect),
    }


def record_live(
    params: Params, adapter: Path, url: str
) -> tuple[comparison.Record, float, float, str]:
    """Logits and completions of the live model on prompts of the environment.

    Returns:
        The record, two relative changes of the logits, and the id of a problem to play. The first
        change is by training, the second is against the base without its own adapter.
    """
    from agent.models.chat_template import ChatFormat
    from agent.policies.hf_policy import load_model

    with progress.doing("load the trained model"):
        model, tokenizer = load_model(paths.BASE, adapter=adapter)
    prompts, problem = gather_prompts(model, tokenizer, params, url)
    live = comparison.observe(
        model,
        prompts,
        stop_ids=sorted(ChatFormat(tokenizer).stop_ids),
        max_new_tokens=params.generation.max_turn_tokens,
        counted=progress.counted,
    )
    del model
    free_memory()  # two may not fit into the memory of a GPU
    with progress.doing("compare the trained model with its base"):
        before, _ = load_model(paths.BASE)
        effect = whole_effect = max(comparison.relative_errors(live, before))
    if (paths.BASE / ADAPTER).is_dir():
        with before.disable_adapter():
            whole_effect = max(comparison.relative_errors(live, before))
    return live, effect, whole_effect, problem


def gather_prompts(
    model: Any, tokenizer: Any, params: Params, url: str
) -> tuple[list[list[int]], str]:
    """First prompts of roots and children, from greedy episodes of the live model.

    Returns:
        At most `export.prompts` token lists, first those of roots; the first problem's id.

    Raises:
        StageError: the episodes have no prompts.
    """
    from agent.policies.hf_policy import TransformersPolicy
    from tasks.evaluate import choose

    wanted = params.export.prompts
    specs = choose(paths.TEST, wanted, seed=0)
    sessions = min(wanted, params.env.max_sessions)
    policy = TransformersPolicy(model, tokenizer, params.generation.greedy)
    episodes = play_shown("prompts", policy, url, specs, sessions=sessions)
    frames = [frame for episode in episodes for frame in episode.frames.values() if frame.turns]
    roots = [frame.turns[0].prompt_ids for frame in frames if frame.parent is None]
    children = [frame.turns[0].prompt_ids for frame in frames if frame.parent is not None]
    half = min(len(children), wanted // 2)
    prompts = roots[: wanted - half] + children[:half]
    if not prompts:
        reason = next((e.void for e in episodes if e.void), "no frame was played")
        raise StageError(f"the environment gave no prompts ({reason}). Read its log.")
    return prompts, specs[0].problem_id


def compare_reloaded(
    model: Path, live: comparison.Record, params: Params, *, url: str, problem: str
) -> comparison.MergeDifference:
    """Compare a model folder with the record in a new process, which knows only the files.

    Raises:
        StageError: the process failed; the message has its last lines.
    """
    with tempfile.TemporaryDirectory(prefix="rlm-export-") as folder:
        record, out = Path(folder, "live.npz"), Path(folder, "measured.json")
        live.save(record)
        command = [sys.executable, "-m", "agent.training.export", str(model.resolve())]
        command += [str(record), str(out), "--threads", str(params.threads)]
        command += ["--url", url, "--problem", problem]
        command += ["--generation", params.generation.model_dump_json()]
        env = os.environ | {"PYTHONPATH": variables.python_path()}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise StageError(f"{model} could not be loaded and compared:\n{tail}")
        return comparison.MergeDifference(**json.loads(out.read_text(encoding="utf-8")))


def log(report: dict[str, Any], run: StageRun) -> None:
    """Log the figures of the comparison to the run."""
    run.log_metrics(
        {
            "export/logit_error": report["logit_error"],
            "export/effect": report["effect"],
            "export/completions_equal": report["completions_equal"] / report["prompts"],
            "export/megabytes": report["megabytes"],
        }
    )
    run.log_artifact(paths.EXPORT)
