"""Serve the recursive model to any OpenAI client: `rlm serve --docs NAME=DIR`.

A client asks at `/v1/chat/completions`. The model `rlm/NAME` names the documents, the last message
of the user is the question, and the answer has quotes with file and position. A stream shows
progress as comments. The documents are read once, at the start.

It listens on this machine alone. Another `--host` needs a key: the environment variable
RLM_SERVE_KEY or `--key-file`. Put a proxy with TLS before it.

Examples:

    rlm serve --docs notes --base-url http://127.0.0.1:11434/v1 --model qwen3

    rlm serve --docs laws=texts/laws --docs news=texts/2026 --port 8011
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import json
import os
import shlex
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from env import auth
from flows.ask import chosen, require_model
from flows.pipeline import guarded
from flows.runtime import settle, unwrapped
from tasks.errors import ConfigError, StageError

HOST = "127.0.0.1"
PORT = 8010
LARGEST = 65_535

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=unwrapped(__doc__))
def serve(
    docs: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]DIR", help="Folder of a collection; repeatable."),
    ],
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
    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = PORT,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key, in place of RLM_SERVE_KEY.")
    ] = None,
) -> None:
    """Serve until Ctrl-C."""

    def work() -> None:
        folders = named_folders(docs)
        for folder in folders.values():
            require_model("serve", folder, model, base_url, set_)
        key = read_key(key_file)
        require_private(host, key)
        with listener(host, port) as bound:
            run(bound, folders, model, base_url, set_ or [], key)

    words = ["rlm", "serve", *(word for text in docs for word in ("--docs", text))]
    words += ["--model", model] if model != "champion" else []
    words += ["--base-url", base_url] if base_url else []
    words += [word for text in set_ or [] for word in ("--set", text)]
    words += ["--host", host] if host != HOST else []
    words += ["--port", str(port)] if port != PORT else []
    words += ["--key-file", str(key_file)] if key_file else []
    guarded(work, shlex.join(words))


def named_folders(docs: list[str]) -> dict[str, Path]:
    """Folder of each collection by its name.

    Raises:
        StageError: a name is missing or occurs twice.
    """
    folders: dict[str, Path] = {}
    for text in docs:
        name, equals, folder = text.partition("=")
        if not equals or Path(text).is_dir():
            folder, name = text, Path(text).resolve().name
        if not name or not folder:
            raise StageError(f"serve: --docs {text} names no collection. Write --docs NAME=DIR.")
        if name in folders:
            raise StageError(
                f"serve: two collections have the name {name!r}. Write --docs OTHER={folder}."
            )
        folders[name] = Path(folder)
    return folders


def read_key(file: Path | None) -> str | None:
    """Key of the file, else of the environment; None without one.

    Raises:
        ConfigError: the file cannot be read, or the key can be guessed or sent in no header.
    """
    where = f"--key-file {file}" if file else auth.SERVE_KEY
    try:
        key = file.read_text(encoding="utf-8") if file else os.environ.get(auth.SERVE_KEY, "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"serve: {where} cannot be read ({error}). Name a text file.") from None
    key = key.strip()
    if not key and not file:
        return None
    if len(key) < auth.KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"serve: {where} is no key of {auth.KEY_CHARS} letters and digits or more. Use the "
            'output of `python -c "import secrets; print(secrets.token_urlsafe(32))"`.'
        )
    return key


def require_private(host: str, key: str | None) -> None:
    """Refuse to open documents to a network without a key.

    Raises:
        ConfigError: the host is not of this machine alone, and there is no key.
    """
    from env.guard.origin import is_loopback

    if key is None and not is_loopback(host):
        raise ConfigError(
            f"serve: --host {host} opens your documents to the network. Set a key "
            f"({auth.SERVE_KEY} or --key-file), or leave --host out."
        )


def listener(host: str, port: int) -> socket.socket:
    """Listening socket; port 0 takes a free one.

    Raises:
        StageError: the address cannot be used.
    """
    if not 0 <= port <= LARGEST:
        raise StageError(f"serve: --port {port} is not a port. Use one from 0 to {LARGEST}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StageError(
            f"serve: {host}:{port} cannot be used ({error.strerror}). Stop the program that "
            f"listens there, or choose another port: --port {port % LARGEST + 1}."
        ) from None


def run(
    bound: socket.socket,
    folders: dict[str, Path],
    named: str,
    base_url: str | None,
    sets: list[str],
    key: str | None,
) -> None:
    """Load documents and model, then serve until a signal.

    Raises:
        StageError: the model does not exist or does not load, or documents cannot be read.
        ConfigError: a setting is wrong.
    """
    from rich.console import Console

    from tasks import asking

    model = chosen(named, base_url, sets)
    settle(model.params.threads)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    collections = {}
    for name, folder in folders.items():
        with console.status(f"reading {folder}"):
            collections[name], left_out = asking.read_documents(folder, model.params)
        for reason in left_out:
            console.print(f"left out: {reason}", style="yellow")
        asking.require_readable(model, collections[name])
    with console.status(f"loading {model.name}") as loading, asking.opened(model) as ask:
        from env.guard.logs import limit_repeats
        from tasks.desk import Desk
        from tasks.openai_api import ApiServer

        server = ApiServer(Desk(ask, model.name), collections, key)
        limit_repeats()
        loading.stop()
        for name, documents in collections.items():
            typer.echo(f"rlm/{name}: {len(documents)} documents of {folders[name]}")
        typer.echo(ready(url_of(bound), next(iter(collections)), model.name, key is not None))
        with suppress(KeyboardInterrupt):
            server.run([bound])
    typer.echo("Stopped.")


def url_of(bound: socket.socket) -> str:
    """Address of the API."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def ready(url: str, collection: str, model: str, keyed: bool) -> str:
    """Lines that say where the server listens, and how to ask it."""
    body = json.dumps(
        {"model": f"rlm/{collection}", "messages": [{"role": "user", "content": "QUESTION"}]}
    )
    header = f' -H "Authorization: Bearer ${auth.SERVE_KEY}"' if keyed else ""
    return (
        f"{model} answers at {url}; Ctrl-C stops. Ask, for example:\n"
        f"curl {url}/chat/completions{header} -H 'Content-Type: application/json' -d "
        f"{shlex.quote(body)}"
    )


if __name__ == "__main__":
    settle()
    app(prog_name="rlm serve")
