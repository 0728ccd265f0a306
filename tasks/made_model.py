"""The source `made`: a small Qwen3 that is taught here, in place of a download.

It is taught in float32, in a temporary folder. Then it is written as a model of the Hub is, in
16 bit or NF4. Neighbour: `source_model.py`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tasks.errors import ConfigError
from tasks.params import Params
from tasks.reporting import progress

if TYPE_CHECKING:
    from tasks.tracking.runs import StageRun

_LOG_EVERY = 10


def write(params: Params, run: StageRun, folder: Path) -> str:
    """Teach the made model and write it as a base; returns its name.

    The metrics say what it knows, before and after its weights were shortened.

    Raises:
        ConfigError: its lessons do not fit the settings.
    """
    import torch

    from agent.made.lessons import MadeLessons
    from agent.made.teach import teach
    from agent.policies.base_model import prepare_base
    from agent.policies.hf_policy import load_model

    check(params)
    settings = params.model.made
    torch.set_num_threads(params.threads)
    lessons = MadeLessons(params.prepare.synthetic.lexicon, settings.seed)
    with progress.doing("teach the made model", "steps", settings.steps) as work:

        def on_step(step: int, loss: float) -> None:
            work.advance(figures=f"loss {loss:.3f}")
            if step % _LOG_EVERY == 0:
                run.log_metrics({"warmstart/made_loss": loss}, step=step)

        made = teach(settings, lessons, on_step)
    with TemporaryDirectory() as source:
        made.model.save_pretrained(source)
        made.tokenizer.save_pretrained(source)
        prepare_base(params.model.model_copy(update={"source": source}), folder)
    written = load_model(folder)
    for name, model in (("made", made.model), ("base", written[0])):
        found = lessons.probe(model, written[1])
        run.log_metrics({f"warmstart/{name}_{kind}": value for kind, value in found.items()})
    return f"made, seed {settings.seed}"


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
