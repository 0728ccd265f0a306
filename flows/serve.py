"""Serve your documents to any OpenAI client: `rlm serve --docs NAME=DIR`.

A client asks at `/v1/chat/completions`. Its model names the documents, the last message of the user
is the question, and the answer has quotes with file and position. A stream shows progress as
comments. The documents are read once, at the start.

It listens on this machine alone. Another `--host` needs a key in the environment variable
RLM_SERVE_KEY. Put a proxy with TLS before it.

Examples:

    rlm serve --docs examples/nano_papers

    rlm serve --docs laws=texts/2026 --base-url http://127.0.0.1:11434/v1 --model qwen3
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import json
import os
import shlex
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assistant.listener import LOCAL, listen, url_of
from env import variables
from flows import ask
from flows.ask import EndpointSettings, ModelName
from flows.pipeline import BaseUrl, guarded
from tasks.errors import ConfigError, StageError, as_stage_error, stage_named

if TYPE_CHECKING:
    from assistant.asking import AskedModel

PORT = 8010


def serve(
    docs: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]DIR", help="Folder, and the name that clients use; repeatable."
        ),
    ],
    model: ModelName = "champion",
    base_url: BaseUrl = None,
    set_: EndpointSettings = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOCAL,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = PORT,
) -> None:
    """Serve until Ctrl-C."""

    def work() -> None:
        with stage_named("serve"):
            folders = named_folders(docs)
            for folder in folders.values():
                ask.require_model(folder, model, base_url, set_)
            key = take_key()
            require_private(host, key)
            bound = listen(host, port)
        with bound, suppress(KeyboardInterrupt):
            run(bound, folders, ask.chosen(model, base_url, set_), key)

    guarded(work)


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
            raise StageError(f"--docs {text} names no collection. Write --docs NAME=DIR.")
        if name in folders:
            raise StageError(
                f"two collections have the name {name!r}. Write --docs OTHER={folder}."
            )
        folders[name] = Path(folder)
    return folders


def take_key() -> str | None:
    """Key in the environment, removed from it: processes that it starts do not inherit it.

    Raises:
        StageError: it is short enough to be guessed.
    """
    with as_stage_error():
        key = variables.read_key(variables.SERVE_KEY, os.environ)
    os.environ.pop(variables.SERVE_KEY, None)
    return key


def require_private(host: str, key: str | None) -> None:
    """Refuse to open documents to a network without a key.

    Raises:
        ConfigError: other machines reach the host, and a key is not set.
    """
    from env.web.origin import is_loopback

    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} opens your documents to the network. Set a key "
            f"({variables.SERVE_KEY}), or leave --host out."
        )


def run(bound: socket.socket, folders: dict[str, Path], model: AskedModel, key: str | None) -> None:
    """Load documents and model, then serve until a signal.

    Raises:
        StageError: the model does not load, or documents cannot be read.
    """
    console = ask.terminal()
    read = {name: ask.read_folder(folder, model, console) for name, folder in folders.items()}
    collections = {name: documents for name, (documents, _) in read.items()}
    # Ranked passages for all, if one folder needs them.
    model = min((reader for _, reader in read.values()), key=lambda reader: reader.reads)
    with ask.loaded(model, console) as answers:
        from assistant.openai_api import Completions
        from assistant.question_queue import QuestionQueue, QuestionServer

        queue = QuestionQueue(answers, model, answers.at_once)
        server = QuestionServer(queue, Completions(queue, collections).application(key))
        for name, documents in collections.items():
            console.print(f"{name}: {ask.counted(len(documents), 'document')} of {folders[name]}")
        url, first = f"{url_of(bound)}/v1", next(iter(collections))
        console.print(f"{model.name} answers at {url}; Ctrl-C stops. Ask, for example:")
        console.print(example(url, first, key is not None))
        server.run([bound])


def example(url: str, collection: str, keyed: bool) -> str:
    """Command that asks the server a question."""
    body = {"model": collection, "messages": [{"role": "user", "content": "QUESTION"}]}
    key = f' -H "Authorization: Bearer ${variables.SERVE_KEY}"' if keyed else ""
    return f"curl {url}/chat/completions{key} -d {shlex.quote(json.dumps(body))}"
