"""The command line: the whole chain, or one stage by its name.

`run` plays the chain of `flows/chain.py` under Prefect; a stage's name runs that stage alone, as
DVC and people call it.
"""

# Nothing heavy is imported before it is needed: --help answers at once.
from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Annotated, NoReturn

import typer

from flows.stages import INTERRUPTED, STAGES, run_stage, under_chain
from flows.surroundings import settle
from tasks.errors import PipelineError

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


Profile = Annotated[str, typer.Option(help="nano is params.yaml itself; others lie in profiles/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable."),
]


@app.command()
def run(profile: Profile = "nano", set_: Overrides = None) -> None:
    """Play the whole chain, from data to a registered model."""

    def work() -> None:
        from tasks import config

        # A wrong setting stops here, before Prefect is even imported.
        settle(config.resolve(profile, set_ or []).threads)
        from flows.chain import play

        sys.exit(play(profile, set_ or []))

    words = ["python -m flows.pipeline run", f"--profile {profile}"]
    guarded(work, " ".join([*words, *(f"--set {shlex.quote(text)}" for text in set_ or [])]))


@app.command()
def resolve(profile: Profile = "nano", set_: Overrides = None) -> None:
    """Write the settings in force to params.resolved.yaml, for `dvc repro` and single stages."""

    def work() -> None:
        from flows.lock import exclusive
        from tasks import config

        params = config.resolve(profile, set_ or [])
        with exclusive():  # a run that is on reads the file before each stage
            typer.echo(config.write_resolved(params))

    guarded(work, "python -m flows.pipeline resolve")


@app.command("check-problems")
def check_problems(
    path: Annotated[str, typer.Argument(help="JSONL or Parquet, as docs/own_data.md describes.")],
    documents: Annotated[
        str | None, typer.Option(help="Folder of the documents that the problems quote.")
    ] = None,
    profile: Profile = "nano",
    set_: Overrides = None,
) -> None:
    """Say row by row what is wrong with your own problems; writes nothing.

    Ends with 0 when the chain would take all rows, else with 1; with 2 when nothing can be read.
    """

    def work() -> None:
        from tasks import check_problems, config

        found = check_problems.read(config.resolve(profile, set_ or []), path, documents)
        typer.echo("\n".join(check_problems.told(found)))
        sys.exit(0 if found.good else 1)

    guarded(work, f"python -m flows.pipeline check-problems {shlex.quote(path)}")


@app.command()
def models(profile: Profile = "nano") -> None:
    """List the registered versions: aliases, figures, what promotion said, who was champion."""

    def work() -> None:
        from rich.console import Console

        from tasks import champions, config

        Console().print(champions.table(config.resolve(profile).register_.model_name))

    guarded(work, "python -m flows.pipeline models")


@app.command()
def rollback(
    to: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Not the previous champion but this one.")
    ] = None,
    profile: Profile = "nano",
) -> None:
    """Make the previous champion champion again; a server of it must be started anew."""

    def work() -> None:
        from tasks import champions, config

        was, now = champions.rollback(config.resolve(profile).register_.model_name, to)
        before = f"version {was.version}" if was else "nobody"
        typer.echo(f"{now.name}: version {now.version} is champion, {before} was")

    guarded(work, "python -m flows.pipeline rollback")


def _stage_command(name: str) -> Callable[[], None]:
    def work() -> None:
        from flows.lock import exclusive

        with nullcontext() if under_chain() else exclusive():
            run_stage(name)
            if name == "promote":
                from flows import notices
                from tasks import config

                notices.promotion(config.load_resolved().register_.model_name)

    return lambda: guarded(work, f"python -m flows.pipeline {name}")


for _name, _does in STAGES.items():
    app.command(_name, help=_does)(_stage_command(_name))


def guarded(work: Callable[[], None], again: str) -> None:
    """Run a command: errors of the pipeline become one message and an exit code.

    SIGTERM ends it like Ctrl-C, so that servers and half-written files are cleaned up; a second
    signal does not interrupt the cleaning.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)  # some libraries set their own loggers to INFO
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # no 4-bit kernels on a CPU: fine
    try:
        work()
    except PipelineError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if not under_chain():  # else the chain says it
            typer.echo(f"\nInterrupted. Finished stages are kept; go on with: {again}", err=True)
        sys.exit(INTERRUPTED)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    settle()
    app(prog_name="python -m flows.pipeline")
