"""Stage `warmstart`: write the base model, nano trained on demonstrations.

Demonstrations are of the world `fields`, with the lexicon of `prepare.synthetic`, whatever problems
nano is trained on later. An interrupted stage starts again; models/base is never incomplete. With
`warmstart.kind: champion` no model is trained: `tasks/registry/base_sources.py` copies a registered
one. With `none` and another `model.source` than nano, `agent/models/base_model.py` fetches it;
with `sft`, `tasks/training/demonstrate.py` also trains an adapter for it. With `auto`, the gate of
the stage `zeroshot` has chosen one of these two.

Writes models/base: a folder that transformers loads with its tokenizer, in 16 bit, or in 4 bit with
the 16-bit twin in models/base/twin. The base of nano is a Llama in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from agent.models.model_files import warn_without_gpu
from agent.nano.lessons import MOST_SENTENCES, ReadingLessons
from agent.nano.sizes import NanoSettings
from agent.nano.teaching import build, save, teach
from agent.settings import NANO
from env.problems.lexicon import untaught
from tasks import paths
from tasks.config.params import Params
from tasks.errors import ConfigError, as_stage_error
from tasks.io import read_report, replacing
from tasks.registry import base_sources
from tasks.reporting import progress
from tasks.tracking.runs import StageRun
from tasks.training import demonstrate

_LOG_EVERY = 10


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Write the base model; returns its folder.

    Raises:
        ConfigError: the demonstrations do not support the prompts, limits or lexicon.
        StageError: the champion is missing or cannot be read; `model.source` cannot be
            read; the vocabulary is too small; or the disk has no room.
    """
    warn_without_gpu(params.model)
    if params.warmstart.kind == "champion":
        return base_sources.write_base(params, run, paths.BASE)
    if kind_in_force(params) == "sft":
        return demonstrate.write_base(params, run, paths.BASE)
    if params.model.source != NANO:
        with replacing(paths.BASE) as folder:
            base_sources.write_source(params, run, folder)
        base_sources.forget_source()
        return paths.BASE
    settings = nano(params)
    require_teachable(params)
    torch.set_num_threads(params.threads)
    taught_by = lessons(params)
    if params.warmstart.kind == "none":
        taught = build(settings, taught_by)
    else:
        with progress.doing("", "steps", settings.steps) as work:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                work.advance()
                if step % _LOG_EVERY == 0:
                    run.log_metrics(metrics, step=step)

            taught = teach(settings, taught_by, on_step)
        run.log_metrics(taught.metrics, step=int(taught.metrics["warmstart/steps"]))
    with replacing(paths.BASE) as folder:
        save(taught, folder)
    return paths.BASE


def kind_in_force(params: Params) -> str:
    """Kind of warm start; the stage `zeroshot` has chosen that of `auto`."""
    if params.warmstart.kind != "auto":
        return params.warmstart.kind
    return "none" if read_report(paths.ZERO_SHOT, "zeroshot")["passed"] else "sft"


def require_teachable(params: Params) -> None:
    """Refuse settings under which episodes would differ from the demonstrations.

    Raises:
        ConfigError: a setting is not supported.
    """
    if params.prepare.source != "synthetic" and params.warmstart.kind == "nano":
        raise ConfigError(
            f"prepare.source is {params.prepare.source!r}, but nano reads only synthetic problems. "
            "Set prepare.source=synthetic, or warmstart.kind=none for an untrained base."
        )
    if params.env.prompt_style != "compact":
        raise ConfigError(
            f"env.prompt_style is {params.env.prompt_style!r}, but nano requires compact prompts. "
            "Set compact."
        )
    if params.env.search_window != 0:
        raise ConfigError("env.search_window: demonstrations search whole sentences. Set 0.")
    if params.env.limits.max_depth < 1 or params.env.limits.max_turns < 2:
        raise ConfigError(
            "env.limits: demonstrations start children in their second turn. "
            "Set max_depth to at least 1 and max_turns to at least 2."
        )


def lessons(params: Params) -> ReadingLessons:
    """Lessons with the lexicon of `prepare`.

    Raises:
        ConfigError: the lexicon is too small.
    """
    size = params.prepare.synthetic.lexicon
    taught = size - len(untaught(size))
    if taught < MOST_SENTENCES:
        raise ConfigError(
            f"prepare.synthetic.lexicon is {size}, of which {taught} names are taught, but "
            f"demonstrations show {MOST_SENTENCES} different ones. Raise it."
        )
    return ReadingLessons(nano(params), size)


def nano(params: Params) -> NanoSettings:
    """The warm start of nano, as long as the settings say."""
    return NanoSettings(**params.warmstart.nano.model_dump())
