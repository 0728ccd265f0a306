"""The command line: the whole chain, or one stage by its name.

`run` executes the chain of `flows/chain.py` under Prefect. The name of a stage runs that stage
alone; DVC uses the same commands.
"""

# Heavy modules are imported where they are needed, so that --help is instant.
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

from agent.errors import disk_is_full
from flows.runtime import exclusive, set_environment, unwrapped
from flows.stages import INTERRUPTED, STAGES, run_measurement, run_stage, under_chain
from tasks.errors import ConfigError, PipelineError, StageError, full_disk, visible

app = typer.Typer(
    help=unwrapped(__doc__),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


Profile = Annotated[str, typer.Option(help="nano is params.yaml itself; others are in profiles/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable."),
]


def _refuse_password(url: str | None) -> str | None:
    from agent.settings import refuse_password

    try:
        return url and refuse_password(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="Endpoint, such as http://127.0.0.1:8000/v1; OPENAI_API_KEY is its key.",
        callback=_refuse_password,
    ),
]


@app.command()
def run(profile: Profile = "nano", set_: Overrides = None) -> None:
    """Run the whole chain, from data to a registered model."""

    def work() -> None:
        from tasks import config

        # A wrong setting or a second run ends here, before Prefect is imported.
        set_environment(config.resolve(profile, set_ or []).threads)
        with exclusive():
            pass
        from flows.chain import play

        sys.exit(play(profile, set_ or []))

    guarded(work, kept="Finished stages")


@app.command()
def resolve(profile: Profile = "nano", set_: Overrides = None) -> None:
    """Write the resolved settings to params.resolved.yaml, for `dvc repro` and single stages."""

    def work() -> None:
        from tasks import config

        params = config.resolve(profile, set_ or [])
        with exclusive():  # a running chain reads the file before each stage
            typer.echo(config.write_resolved(params))

    guarded(work)


@app.command("check-problems")
def check_problems(
    path: Annotated[str, typer.Argument(help="JSONL file, see docs/own_data.md.")],
    documents: Annotated[
        str | None, typer.Option(help="Folder of the documents that the problems quote.")
    ] = None,
    profile: Profile = "nano",
    set_: Overrides = None,
) -> None:
    """List what is wrong with each row of your own problems; writes nothing.

    Exit code 0: the chain accepts all rows; 1: some are wrong; 2: nothing can be read.
    """

    def work() -> None:
        from tasks import check_problems, config

        checked = check_problems.read_problem_rows(
            config.resolve(profile, set_ or []), path, documents
        )
        typer.echo("\n".join(check_problems.report_lines(checked)))
        sys.exit(0 if checked.good else 1)

    guarded(work)


@app.command()
def models(profile: Profile = "nano") -> None:
    """List the registered versions: aliases, figures, promotion decision, former champions."""

    def work() -> None:
        from rich.console import Console

        from tasks import config
        from tasks.registry import champions

        Console().print(champions.table(config.resolve(profile).register_.model_name))

    guarded(work)


@app.command()
def rollback(
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version to restore; without it, the previous champion."
        ),
    ] = None,
    profile: Profile = "nano",
) -> None:
    """Restore the previous champion. Restart any server of the model afterwards."""

    def work() -> None:
        from tasks import config
        from tasks.registry import champions

        was, now = champions.rollback(config.resolve(profile).register_.model_name, to)
        before = f"version {was.version}" if was else "none"
        typer.echo(f"{now.name}: version {now.version} is champion (before: {before})")

    guarded(work)


def evaluate(
    model: Annotated[
        str | None,
        typer.Option(
            help="Measure this instead: models:/rlm/3, models:/rlm@champion, a folder, or the name "
            "that an endpoint knows. The report is in reports/measured/."
        ),
    ] = None,
    base_url: BaseUrl = None,
) -> None:
    """The stage, or with --model the same problems played by one model."""
    if model is None and base_url is None:
        _stage_command("evaluate")()
        return

    def work() -> None:
        if model is None:
            raise ConfigError("--base-url needs --model, the name that the endpoint knows.")
        with exclusive():  # a training at the same time would distort the latencies
            run_measurement(model, base_url, typer.echo)

    guarded(work)


def _stage_command(name: str) -> Callable[[], None]:
    def work() -> None:
        with nullcontext() if under_chain() else exclusive():
            run_stage(name)

    return lambda: guarded(work, kept="Finished stages")


for _name, _does in STAGES.items():
    _command = evaluate if _name == "evaluate" else _stage_command(_name)
    app.command(_name, help=_does, rich_help_panel="Single stages")(_command)


def guarded(work: Callable[[], None], kept: str = "") -> None:
    """Run a command; a pipeline error becomes one message and an exit code.

    SIGTERM ends it like Ctrl-C, so that servers and half-written files are cleaned up. A second
    signal does not interrupt the cleanup.

    Args:
        work: the command.
        kept: what an interrupt leaves for the next time, such as "Finished stages".
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)  # some libraries set their own loggers to INFO
    try:
        work()
    except PipelineError as error:
        if not (under_chain() and error.recorded):  # else the chain prints this
            typer.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if not disk_is_full(error):
            raise
        typer.echo(f"error: {full_disk(error)}", err=True)
        sys.exit(StageError.exit_code)
    except KeyboardInterrupt:
        if not under_chain():  # else the chain prints this
            how = f"{kept} are kept; continue with" if kept else "To run it again"
            typer.echo(f"\nInterrupted. {how}: {shlex.join(['rlm', *sys.argv[1:]])}", err=True)
        sys.exit(INTERRUPTED)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    set_environment()
    app(prog_name="python -m flows.pipeline")
