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

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assistant.listener import LOCAL, listen, url_of
from flows import ask
from flows.ask import Docs, EndpointSettings, ModelName
from flows.pipeline import BaseUrl, guarded
from tasks.errors import stage_named

if TYPE_CHECKING:
    from assistant.asking import AskedModel

PORT = 8020


def chat(
    docs: Docs,
    model: ModelName = "champion",
    base_url: BaseUrl = None,
    set_: EndpointSettings = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = PORT,
) -> None:
    """Serve the page until Ctrl-C."""

    def work() -> None:
        with stage_named("chat"):
            ask.require_model(docs, model, base_url, set_)
            bound = listen(LOCAL, port)
        with bound, suppress(KeyboardInterrupt):
            serve(bound, docs, ask.chosen(model, base_url, set_))

    guarded(work)


def serve(bound: socket.socket, docs: Path, model: AskedModel) -> None:
    """Load documents and model, then serve the page until a signal.

    Raises:
        StageError: the model does not load, or the documents cannot be read.
    """
    console = ask.terminal()
    documents, model = ask.read_folder(docs, model, console)
    with ask.loaded(model, console) as answers:
        from assistant.chat_page import Chat
        from assistant.question_queue import QuestionQueue, QuestionServer

        queue = QuestionQueue(answers, model, answers.at_once)
        server = QuestionServer(queue, Chat(queue, documents).application())
        count = ask.counted(len(documents), "document")
        console.print(f"{model.name} answers about {count} at {url_of(bound)}/\nCtrl-C stops.")
        server.run([bound])
