"""A tool for other agents: `rlm mcp --docs DIR` is an MCP server over stdio.

An agent starts it and calls its tools: `ask_documents` answers a question with quotes,
`list_documents` names the documents, `read_quote` reads a passage with the text around it. The
documents are read once, at the start. The model plays as in `rlm ask`, one question at a time.

It ends when its client closes the standard input. Only the protocol goes to the standard output;
messages go to the standard error.

Example of a client's settings:

    {"command": "sh", "args": ["-c", "cd PROJECT && exec .venv/bin/rlm mcp --docs NOTES"]}
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from threading import Event, Thread, main_thread
from typing import TextIO

import typer

from flows import ask
from flows.ask import BaseUrl, Docs, EndpointSettings, ModelName
from flows.pipeline import guarded
from flows.runtime import settle, unwrapped
from tasks.errors import stage_named

logger = logging.getLogger(__name__)


def claim_stdio() -> tuple[TextIO, TextIO]:
    """The standard input and output for the protocol alone.

    Other code, and processes that it starts, find an empty input, and print to the standard error.
    """
    sys.stdout.flush()
    incoming = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return incoming, outgoing


def serve(docs: Path, named: str, base_url: str | None, sets: list[str]) -> None:
    """Serve until the client closes the standard input.

    Raises:
        StageError: the model does not exist, or the documents cannot be read.
        ConfigError: a setting is wrong.
    """
    if sys.stdin.isatty():
        typer.echo("This is a server for an MCP client, which speaks JSON to it.", err=True)
    incoming, outgoing = claim_stdio()
    model = ask.chosen(named, base_url, sets)
    settle(model.params.threads)
    import asyncio

    from flows.mcp_tools import DocumentTools
    from tasks import asking

    documents, left_out = asking.read_documents(docs, model.params)
    asking.require_readable(model, documents)
    tools = DocumentTools(model, documents, left_out)
    left = Event()

    def speak() -> None:
        try:
            asyncio.run(tools.speak(incoming, outgoing))
        except Exception:  # the client closed its end of the output
            logger.warning("the client left", exc_info=logger.isEnabledFor(logging.DEBUG))
        left.set()
        # A signal, since it also ends an episode that is being played.
        signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)

    # Daemons, like the threads that they start: a read of the input can block for ever.
    Thread(target=speak, name="mcp", daemon=True).start()
    try:
        tools.play()
    except KeyboardInterrupt:
        if not left.is_set():
            raise


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=unwrapped(__doc__))
def mcp(
    docs: Docs,
    model: ModelName = "champion",
    base_url: BaseUrl = None,
    set_: EndpointSettings = None,
) -> None:
    """Serve the tools."""

    def work() -> None:
        ask.require_model("mcp", docs, model, base_url, set_)
        with stage_named("mcp"):
            serve(docs, model, base_url, set_ or [])

    guarded(work)
