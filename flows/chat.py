"""Ask a model about your own files in the browser: `rlm chat --docs DIR`.

It serves a page on this machine alone. The page shows the tree of agents as it grows, then the
quotes, and each quote highlighted in its document. Documents and questions leave this machine only
for the endpoint that you name.

Examples:

    rlm chat --docs examples/nano_papers

    rlm chat --docs notes --base-url http://127.0.0.1:11434/v1 --model qwen3
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import os
import shlex
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flows.ask import chosen, require_model
from flows.pipeline import guarded
from flows.runtime import settle, unwrapped
from tasks.errors import StageError

HOST = "127.0.0.1"
PORT = 8020
LARGEST = 65_535

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=unwrapped(__doc__))
def chat(
    docs: Annotated[Path, typer.Option(help="Folder of PDF, text, Markdown and HTML files.")],
    model: Annotated[
        str,
        typer.Option(help="Number or alias of a version, a folder, or the endpoint's model."),
    ] = "champion",
    base_url: Annotated[
        str | None,
        typer.Option(help="Endpoint, such as http://127.0.0.1:8000/v1; OPENAI_API_KEY is its key."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Setting for an endpoint; repeatable."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = PORT,
) -> None:
    """Serve the page until Ctrl-C."""

    def work() -> None:
        require_model("chat", docs, model, base_url, set_)
        with listener(port) as bound, suppress(KeyboardInterrupt):
            serve(bound, docs, model, base_url, set_ or [])

    words = ["rlm", "chat", "--docs", str(docs)]
    words += ["--model", model] if model != "champion" else []
    words += ["--base-url", base_url] if base_url else []
    words += [word for text in set_ or [] for word in ("--set", text)]
    words += ["--port", str(port)] if port != PORT else []
    guarded(work, shlex.join(words))


def listener(port: int) -> socket.socket:
    """Listening socket on this machine; port 0 takes a free one.

    Raises:
        StageError: the port cannot be used.
    """
    if not 0 <= port <= LARGEST:
        raise StageError(f"chat: --port {port} is not a port. Use one from 0 to {LARGEST}.")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise StageError(
            f"chat: {HOST}:{port} cannot be used ({os.strerror(error.errno or 0)}). "
            "Choose another port: --port NUMBER, or --port 0 for a free one."
        ) from None


def serve(
    bound: socket.socket, docs: Path, named: str, base_url: str | None, sets: list[str]
) -> None:
    """Load documents and model, then serve the page until a signal.

    Raises:
        StageError: the model does not exist or does not load, or the documents cannot be read.
        ConfigError: a setting is wrong.
    """
    from rich.console import Console

    from tasks import asking

    model = chosen(named, base_url, sets)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    settle(model.params.threads)
    with console.status("reading the documents"):
        documents, left_out = asking.read_documents(docs, model.params)
    for reason in left_out:
        console.print(f"left out: {reason}", style="yellow")
    asking.require_readable(model, documents)
    loading = console.status(f"loading {model.name}")
    loading.start()
    try:
        with asking.opened(model) as ask:
            loading.stop()
            from flows.chat_server import Chat, ChatServer

            server = ChatServer(Chat(ask, model, documents))
            console.print(
                f"{model.name} answers about {len(documents)} documents at "
                f"http://{HOST}:{bound.getsockname()[1]}/\nCtrl-C stops."
            )
            server.run([bound])
    finally:
        loading.stop()


if __name__ == "__main__":
    settle()
    app(prog_name="rlm chat")
