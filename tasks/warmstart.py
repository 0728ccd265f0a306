"""Stage `warmstart`: the base model, built on this machine and taught by demonstrations.

The demonstrations play the training problems of `prepare.synthetic`, generated here: nano's
language is that small world, whatever the problems that it is trained on later. An interrupted
stage starts anew; models/base is never half written. With `warmstart.kind: champion` nothing is
taught: `tasks/inherit.py` takes a registered model.

Writes models/base: a folder that transformers loads as a Llama with its tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent.nano.settings import NanoSettings
from env.problems.synthetic import generate
from tasks import inherit
from tasks.config import Params
from tasks.errors import ConfigError
from tasks.outputs import replacing
from tasks.progress import Steps

if TYPE_CHECKING:
    from tasks.tracking import StageRun

BASE = Path("models/base")
_LOG_EVERY = 10
_SAY_EVERY = 100

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Write the base model; returns its folder.

    Raises:
        ConfigError: prompts or limits that the demonstrations do not know, or no problems.
        StageError: the champion is missing or cannot be read.
    """
    if params.warmstart.kind == "champion":
        return inherit.run(params, run, BASE)
    import torch

    from agent.nano.warmstart import save, teach, untaught

    settings = params.warmstart.nano
    check(params)
    torch.set_num_threads(params.threads)
    problems = [p for p in generate(params.prepare.synthetic) if p.split == "train"]
    if not problems:
        raise ConfigError("prepare.synthetic.groups.train: the warm start needs training problems")
    if params.warmstart.kind == "none":
        taught = untaught(settings, problems)
    else:
        with Steps("warmstart", settings.steps, line_every=_SAY_EVERY) as progress:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                progress.done(step, f"loss {metrics['warmstart/loss']:.3f}")
                if step % _LOG_EVERY == 0:
                    run.log_metrics(metrics, step=step)

            taught = teach(settings, problems, on_step)
        run.log_metrics(taught.metrics, step=int(taught.metrics["warmstart/steps"]))
        _judge(settings, taught.metrics)
    with replacing(BASE) as folder:
        save(taught, folder)
    return BASE


def check(params: Params) -> None:
    """Refuse settings under which the demonstrations would not be what the policy meets.

    Raises:
        ConfigError: one of them.
    """
    if params.prepare.source != "synthetic" and params.warmstart.kind == "nano":
        raise ConfigError(
            f"prepare.source: {params.prepare.source!r}, but nano reads nothing but its synthetic "
            "world; set prepare.source=synthetic, or warmstart.kind=none for an untaught base"
        )
    if params.env.prompt_style != "compact":
        raise ConfigError(
            f"env.prompt_style: {params.env.prompt_style!r}, but nano knows only `compact` prompts"
        )
    if params.env.search_window != 0:
        raise ConfigError("env.search_window: nano's demonstrations need whole sentences; set 0")
    if params.env.limits.max_depth < 1 or params.env.limits.max_turns < 2:
        raise ConfigError(
            "env.limits: nano's demonstrations open children in their second turn; "
            "max_depth must be at least 1 and max_turns at least 2"
        )


def _judge(settings: NanoSettings, metrics: Mapping[str, float]) -> None:
    """Say when the probe ended below its marks; whether to go on is for the gate to decide."""
    from agent.nano.warmstart import passed

    if not passed(settings, metrics):
        found = ", ".join(
            f"{name.split('probe_')[-1]} {value:.2f}"
            for name, value in metrics.items()
            if "/probe_" in name
        )
        logger.warning(
            "warmstart: names are copied less well than wanted, %g greedy and %g sampled: %s; "
            "raise warmstart.nano.steps",
            settings.probe_greedy,
            settings.probe_sampled,
            found,
        )
