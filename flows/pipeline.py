"""The command line: the whole chain, or one stage by its name.

`python -m flows.pipeline run` plays the chain of `flows/chain.py`; `python -m flows.pipeline
STAGE` is what DVC and people call for one stage. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import typer

from flows.surroundings import settle
from tasks.errors import PipelineError

STAGES = {
    "prepare": "Make the problems: data/problems/.",
    "validate": "Check them with Great Expectations: reports/data_docs/.",
    "deploy": "Start the environment, smoke-test it over the wire: reports/deployment.json.",
    "warmstart": "Build and teach the base model: models/base/.",
    "gate": "Refuse a base that never earns a reward; measure the baseline: reports/gate.json.",
    "train": "GRPO on trees under the curriculum: models/adapter/, reports/train.parquet.",
    "export": "Merge to 16 bits, reload, prove it still behaves: models/merged/.",
    "evaluate": "Before and after on the same held-out problems: reports/evaluation.json.",
    "plots": "Figures and the report with transcripts: plots/, reports/index.html.",
    "register": "A model version with its lineage in the MLflow registry.",
    "version": "Push data and checkpoints to the DVC remote.",
}
INTERRUPTED = 130

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run_stage(name: str) -> None:
    """One stage under its own MLflow run, with the settings of params.resolved.yaml.

    Raises:
        PipelineError: the stage refused or failed, with one clear message.
    """
    from tasks import config

    params = config.load_resolved()
    settle(params.threads)
    from tasks import tracking

    stage = importlib.import_module(f"tasks.{name}")
    with tracking.stage_run(name, params) as run:
        stage.run(params, run)


def _stage_command(name: str) -> Callable[[], None]:
    def command() -> None:
        guarded(lambda: run_stage(name), f"python -m flows.pipeline {name}")

    return command


for _name, _does in STAGES.items():
    app.command(_name, help=_does)(_stage_command(_name))


def guarded(work: Callable[[], None], again: str) -> None:
    """Run a command: errors of the pipeline become one message and an exit code.

    SIGTERM ends it like Ctrl-C, so that servers and half-written files are cleaned up.
    """
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        work()
    except PipelineError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. Finished stages are kept; go on with: {again}", err=True)
        sys.exit(INTERRUPTED)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    settle()
    app()
