"""Train a recursive language model, ask it about documents, check problems and the machine.

Run it in the project's folder. `python -m flows.pipeline` and `flows.doctor` are the same functions
as modules.

Examples:

    rlm run --profile quick

    rlm ask --docs notes --base-url http://127.0.0.1:11434/v1 --model qwen3 "Who pays the rent?"

    rlm check-problems questions.jsonl --documents papers
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows import ask, pipeline
from flows.runtime import set_environment, unwrapped
from tasks.errors import ConfigError, stage_named

FIRST = ("run", "ask", "check-problems", "doctor", "models", "rollback")


class Commands(TyperGroup):
    """The commands, those that people use most first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return [*FIRST, *(name for name in super().list_commands(ctx) if name not in FIRST)]


app = typer.Typer(
    cls=Commands,
    help=unwrapped(__doc__),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine can run, and the command for each missing part."""
    from flows.doctor import main as examine

    sys.exit(examine(["--json"] if as_json else []))


@app.command()
def checklist() -> None:
    """Check what a published environment and its model need; run it after the chain."""
    from flows.checklist import main as examine

    pipeline.guarded(lambda: sys.exit(examine()))


@app.command()
def mcp(
    docs: ask.Docs,
    model: ask.ModelName = "champion",
    base_url: pipeline.BaseUrl = None,
    set_: ask.EndpointSettings = None,
) -> None:
    """Serve questions about your documents to other agents: MCP over stdio (docs/asking.md)."""

    def work() -> None:
        with stage_named("mcp"):
            ask.require_model(docs, model, base_url, set_)
            from flows.mcp_server import serve as speak

            speak(docs, model, base_url, set_)

    pipeline.guarded(work)


app.command("ask", cls=ask.Command, help=unwrapped(ask.__doc__))(ask.ask)
app.add_typer(pipeline.app)


def require_own_code() -> None:
    """Refuse to run the code of another project here, as the .venv of a copied project would."""
    here = Path("flows/cli.py")
    if here.is_file() and not here.samefile(__file__):
        typer.echo(
            f"error: this rlm is that of {Path(__file__).parents[1]}, not of this project. "
            "Run `make setup` here, then `.venv/bin/rlm`.",
            err=True,
        )
        sys.exit(ConfigError.exit_code)


def main() -> None:
    """The command."""
    require_own_code()
    set_environment()
    app(prog_name="rlm")


if __name__ == "__main__":
    main()
