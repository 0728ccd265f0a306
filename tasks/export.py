"""Stage `export`: one 16-bit model out of base and adapter, proved before it is kept.

The folder is written under a temporary name. A process of its own loads it from disk, and its
logits, greedy completions and one episode are held against the live model; only then does it
become models/merged. A mismatch leaves no models/merged, not even that of an earlier run: it
would not be this training's.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import ExportError, PolicyError
from agent.export import Measured, Record, judge, merge, observe, relative_errors
from env.errors import EpisodeError
from tasks.config import Params
from tasks.errors import StageError
from tasks.outputs import replacing, write_json

if TYPE_CHECKING:
    from tasks.tracking import StageRun

BASE = Path("models/base")
TRAINED = {"lora": Path("models/adapter"), "full": Path("models/policy")}
MERGED = Path("models/merged")
REPORT = Path("reports/export.json")
TEST = Path("data/problems/test.parquet")
ROOT = Path(__file__).resolve().parent.parent

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Merge, prove, keep; returns models/merged.

    Raises:
        StageError: an input is missing, the base is quantised and may not be dequantised, or the
            merged model does not behave like the live one.
    """
    import torch

    from tasks.deploy import environment

    trained = TRAINED[params.train.method]
    for stage, path in (("warmstart", BASE), ("train", trained)):
        if not path.is_dir():
            raise StageError(f"export: {path} is missing; run the stage {stage} first")
    if MERGED.exists():
        shutil.rmtree(MERGED)
    torch.set_num_threads(params.threads)
    try:
        with environment(params) as url, replacing(MERGED) as temporary:
            report = export(params, trained, temporary, url)
            write_json(REPORT, report)
            log(report, run)
            if report["wrong"]:
                raise StageError(
                    f"export: the merge of {trained} into {BASE} does not behave like the live "
                    f"model: {'; '.join(report['wrong'])}. No {MERGED} was written; {REPORT} has "
                    "the figures. Check that the adapter belongs to this base, or set "
                    "export.dtype=bfloat16 with export.max_logit_error=0.01"
                )
    except (ExportError, PolicyError, EpisodeError) as error:
        raise StageError(f"export: {error}") from error
    return MERGED


def export(params: Params, trained: Path, out: Path, url: str) -> dict[str, Any]:
    """Write the merged model to `out` and hold it against the live one.

    Returns:
        The content of reports/export.json; `wrong` is empty when all is well.
    """
    settings = params.export
    adapter = trained if params.train.method == "lora" else None
    merge(
        BASE if adapter else trained,
        adapter,
        out,
        dtype=settings.dtype,
        dequantise=settings.dequantise,
    )
    live, effect, problem = record_live(params, trained, url)
    measured = check(out, live, params, url=url, problem=problem)
    return {
        "base": str(BASE),
        "trained": str(trained),
        "dtype": settings.dtype,
        "megabytes": sum(f.stat().st_size for f in out.rglob("*") if f.is_file()) / 1e6,
        "prompts": len(live.prompts),
        "tokens_compared": sum(len(completion) for completion in live.completions),
        "effect": effect,
        "limit": settings.max_logit_error,
        **vars(measured),
        "wrong": judge(measured, effect, settings.max_logit_error),
    }


def record_live(params: Params, trained: Path, url: str) -> tuple[Record, float, str]:
    """What the live model does on prompts that the environment gives it.

    Returns:
        The record; how far training moved the logits; the id of a problem to play.
    """
    import torch

    from agent.chat import ChatFormat
    from agent.models import load_model

    adapter = trained if params.train.method == "lora" else None
    model, tokenizer = load_model(
        BASE if adapter else trained, adapter=adapter, dtype=torch.float32
    )
    prompts, problem = gather_prompts(model, tokenizer, params, url)
    stop_ids = sorted(ChatFormat(tokenizer).stop_ids)
    limits: dict[str, Any] = {
        "stop_ids": stop_ids,
        "max_new_tokens": params.evaluate.generation.max_turn_tokens,
    }
    live = observe(model, prompts, **limits)
    if adapter:
        with model.disable_adapter():
            base = observe(model, prompts, **limits, completions=live.completions)
    else:
        untrained, _ = load_model(BASE, dtype=torch.float32)
        base = observe(untrained, prompts, **limits, completions=live.completions)
    return live, max(relative_errors(live.logits, base.logits)), problem


def gather_prompts(
    model: Any, tokenizer: Any, params: Params, url: str
) -> tuple[list[list[int]], str]:
    """First prompts of roots and children, from episodes that the live model plays greedily.

    Returns:
        `export.prompts` token lists, roots and children in turn, and the first problem's id.
    """
    from agent.models import TransformersPolicy
    from agent.rollout import play
    from tasks.evaluate import choose

    wanted = params.export.prompts
    specs = choose(TEST, wanted, params.export.seed)
    greedy = params.evaluate.generation.model_copy(update={"temperature": 0.0})
    sessions = min(wanted, params.env.max_sessions)
    episodes = play(TransformersPolicy(model, tokenizer, greedy), url, specs, sessions=sessions)
    frames = [frame for episode in episodes for frame in episode.frames.values() if frame.turns]
    roots = [frame.turns[0].prompt_ids for frame in frames if frame.parent is None]
    children = [frame.turns[0].prompt_ids for frame in frames if frame.parent is not None]
    half = min(len(children), wanted // 2)
    prompts = roots[: wanted - half] + children[:half]
    if not prompts:
        reason = next((e.void for e in episodes if e.void), "no frame was played")
        raise StageError(f"export: the environment gave no prompts: {reason}")
    return prompts, specs[0].problem_id


def check(
    model: Path, live: Record, params: Params, *, url: str | None = None, problem: str = ""
) -> Measured:
    """Measure a model folder in a fresh process, which can know nothing but the files.

    Raises:
        StageError: the process failed; its last lines are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="rlm-export-") as folder:
        record, out = Path(folder, "live.npz"), Path(folder, "measured.json")
        live.save(record)
        command: Sequence[str] = [
            *(sys.executable, "-m", "agent.export", str(model.resolve()), str(record), str(out)),
            *("--threads", str(params.threads)),
        ]
        if url:
            generation = params.evaluate.generation.model_dump_json()
            command = [*command, "--url", url, "--problem", problem, "--generation", generation]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise StageError(f"export: {model} could not be loaded and measured:\n{tail}")
        return Measured(**json.loads(out.read_text(encoding="utf-8")))


def log(report: dict[str, Any], run: StageRun) -> None:
    """Figures of the check to the run."""
    run.log_metrics(
        {
            "export/logit_error": report["logit_error"],
            "export/effect": report["effect"],
            "export/completions_equal": report["completions_equal"] / report["prompts"],
            "export/megabytes": report["megabytes"],
        }
    )
    run.log_artifact(REPORT)
