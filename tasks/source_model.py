"""The base model before any training of this project: `model.source`, in 16 bit or NF4.

With the source `made`, the model is first taught in a temporary folder, in float32. Then it is
quantised as a model of the Hub is. Neighbours: `warmstart.py` and `demonstrate.py`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agent.settings import MADE
from tasks.config import Params
from tasks.errors import ConfigError
from tasks.registry import warm_start
from tasks.reporting.progress import Steps

if TYPE_CHECKING:
    from tasks.tracking.runs import StageRun

_LOG_EVERY = 10
_SAY_EVERY = 100


def write(params: Params, run: StageRun, folder: Path) -> None:
    """Write the base, its origin and, with `nf4`, its twin into a folder.

    Raises:
        ConfigError: the made model's lessons do not fit the settings.
        PolicyError: the model cannot be read, or the disk has no room.
    """
    from agent.policies.base_model import prepare_base

    if params.model.source == MADE:
        check(params)
        with TemporaryDirectory() as made:
            _teach(params, run, Path(made))
            prepare_base(params.model.model_copy(update={"source": made}), folder)
        origin = f"made, seed {params.model.made.seed}"
    else:
        origin = prepare_base(params.model, folder).origin
    warm_start.write_provenance(folder, {"from": origin})
    run.set_tags({"base": origin})


def check(params: Params) -> None:
    """Refuse prompts that the made model cannot read.

    Raises:
        ConfigError: a setting is not supported.
    """
    if params.env.prompt_style != "compact":
        raise ConfigError(
            f"env.prompt_style is {params.env.prompt_style!r}, but model.source=made reads only "
            "compact prompts. Set compact, or another model.source."
        )


def _teach(params: Params, run: StageRun, folder: Path) -> None:
    import torch

    from agent.made.teach import teach

    settings = params.model.made
    torch.set_num_threads(params.threads)
    with Steps("warmstart", settings.steps, line_every=_SAY_EVERY) as progress:

        def on_step(step: int, loss: float) -> None:
            progress.done(step, f"loss {loss:.3f}")
            if step % _LOG_EVERY == 0:
                run.log_metrics({"warmstart/made_loss": loss}, step=step)

        made = teach(settings, params.prepare.synthetic.lexicon, on_step)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
