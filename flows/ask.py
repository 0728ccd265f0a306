"""Ask a model about your own files: `rlm ask --docs DIR "question"`.

It reads the documents, plays one recursive episode on its own environment server, and prints the
quotes that the model found, with file and position. It writes only a log. The model is the
champion, another registered version, a model folder, or any model behind an OpenAI-compatible
endpoint. Without a champion that reads their language, it prints ranked passages.

Exit code 0: the model found evidence; 3: it found none; 1: it failed, or ended without an answer.

Examples:

    rlm ask --docs examples/nano_papers "How well does Jedkuf do on code?"

    rlm ask --docs notes --base-url http://127.0.0.1:11434/v1 --model qwen3 "Who pays the rent?"
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from flows.pipeline import BaseUrl, guarded
from flows.runtime import set_environment
from tasks.errors import StageError, stage_named, visible

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.asking import AskedAnswer, AskedModel
    from tasks.config.params import Params

HINT = "Quote the question; write -- before one that begins with a dash."
NO_EVIDENCE = 3
"""Exit code of an answer without evidence."""

Docs = Annotated[Path, typer.Option(help="Folder of PDF, text, Markdown, CSV and HTML files.")]
ModelName = Annotated[
    str, typer.Option(help="Version (3, champion, models:/rlm/3), folder, or the endpoint's model.")
]

EndpointSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Setting for an endpoint; repeatable."),
]


def ask(
    docs: Docs,
    question: Annotated[str | None, typer.Argument(help="The question; - is stdin.")] = None,
    model: ModelName = "champion",
    base_url: BaseUrl = None,
    set_: EndpointSettings = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Read a question from each line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of sampling, in the mode `sampled`.")] = 0,
) -> None:
    """Ask, and print the answer."""
    began = time.monotonic()

    def work() -> None:
        nonlocal question
        with stage_named("ask"):
            require_model(docs, model, base_url, set_)
            if interactive == (question is not None):
                raise StageError("write one question, or --interactive and no question.")
            if question == "-":
                question = sys.stdin.read().strip()
            if question is not None and not question.strip():
                raise StageError("the question is empty; write one.")
        sys.exit(talk(docs, question, asked_model(model, base_url, set_), as_json, seed, began))

    guarded(work)


class Command(TyperCommand):
    """`ask`, with a hint where the shell has split a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            kind, meant = type(error).__name__, getattr(error, "possibilities", None)
            if kind == "UsageError" or (kind == "NoSuchOption" and not meant):
                error.message = f"{str(error.message).rstrip('.')}. {HINT}"  # type: ignore[attr-defined]
            raise


def require_model(docs: Path, model: str, base_url: str | None, set_: list[str] | None) -> None:
    """Refuse wrong options of the commands about documents, before anything is imported or read.

    Raises:
        StageError: an option is wrong or missing.
    """
    if docs.is_file():
        raise StageError(f"--docs {docs} is a file. Name its folder.")
    if not docs.is_dir():
        raise StageError(f"--docs {docs}: no such folder. Name an existing one.")
    if base_url is not None and model == "champion":
        raise StageError("--base-url needs --model NAME, the model's name at the endpoint.")
    if set_ and base_url is None:
        raise StageError("--set is for endpoints. Other models keep their own settings.")


def asked_model(model: str, base_url: str | None, set_: list[str] | None) -> AskedModel:
    """The model that the options name.

    Raises:
        StageError: the model does not exist.
        ConfigError: a setting is wrong.
    """
    from tasks import asking, config

    if base_url is None:
        return asking.stored(model)
    return asking.AskedModel(model, config.resolve(asking.PROFILE, set_ or []), base_url=base_url)


def notices() -> Console:
    """Where notices are printed: the standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def waiting(console: Console, what: str) -> AbstractContextManager[object]:
    """Show what is done: at a terminal at once, else by a line every half minute."""
    from tasks.reporting import progress

    return console.status(what) if console.is_terminal else progress.doing(what)


def read_folder(
    docs: Path, model: AskedModel, console: Console
) -> tuple[dict[str, str], AskedModel]:
    """Text of each readable document by its name, and who answers; prints what is left out.

    Raises:
        StageError: no document can be read, or a named model does not know their language.
    """
    from tasks import asking

    set_environment(model.params.threads)
    with waiting(console, f"reading the documents of {docs}"):
        documents, left_out = asking.read_documents(docs, model.params)
    for reason in left_out:
        console.print(f"left out: {visible(reason)}", style="yellow")
    reader = asking.reader_of(model, documents)
    if not reader.reads:
        why = f"{model.name} learnt from made-up problems" if model.reads else "no champion yet"
        console.print(
            f"{why}: passages are ranked, and nobody reads them. Train a model on documents "
            "(docs/own_data.md), or name one: --model FOLDER, or --base-url URL --model NAME.",
            style="yellow",
        )
    return documents, reader


def talk(
    docs: Path, question: str | None, model: AskedModel, as_json: bool, seed: int, began: float
) -> int:
    """Answer one question, or one for each line of the standard input; returns the exit code.

    One question's time is that since `began`, too, with loading.
    """
    from tasks import asking

    console = notices()
    documents, model = read_folder(docs, model, console)
    code, about = 0, counted(len(documents), "document")
    with ExitStack() as stack:
        with waiting(console, f"loading {model.name}"):
            answered = stack.enter_context(asking.opened(model))
        for text in lines(console) if question is None else [question]:
            try:
                with waiting(console, f"asking {model.name} about {about}"):
                    reply = answered(text, documents, seed)
            except StageError as error:
                if question is not None:
                    raise
                console.print(visible(str(error)), style="red")
                continue
            spent = f" ({time.monotonic() - began:.1f} s in all)" if question else ""
            code = print_answer(text, model, reply, about, as_json, spent)
    return code if question is not None else 0


def lines(console: Console) -> Iterator[str]:
    """Questions of the standard input, until its end; at a terminal, until an empty line."""
    typed = sys.stdin.isatty()
    while True:
        if typed:
            console.print("question> ", end="")
        if not (line := sys.stdin.readline()) or (typed and not line.strip()):
            return
        if line.strip():
            yield line.strip()


def print_answer(
    question: str, model: AskedModel, reply: AskedAnswer, about: str, as_json: bool, spent: str
) -> int:
    """Print an answer; returns the exit code that it stands for."""
    answer = reply.answer
    if reply.instead:
        notices().print(visible(reply.instead), style="yellow")
    if as_json:
        paid = {"usage": reply.usage.told()} if reply.usage else {}
        body = {"question": question, "model": reply.by or model.name, **answer.model_dump()}
        typer.echo(json.dumps(body | paid))
    else:
        show(reply, model.params, about, spent)
    if answer.evidence:
        return 0
    return NO_EVIDENCE if answer.stop_reason == "final" else 1


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show(reply: AskedAnswer, params: Params, about: str, spent: str) -> None:
    """Print the quotes with their files, then the cost of the episode.

    Quotes are printed as they are: no line is wrapped or filled.
    """
    from tasks import asking

    answer = reply.answer
    for quote in answer.evidence:
        typer.secho(f"{visible(quote.document)}, characters {quote.start}-{quote.end}", bold=True)
        typer.echo(f"{visible(quote.text)}\n")
    if not answer.evidence:
        typer.echo(asking.verdict(reply))
    if answer.unfounded:
        quotes = counted(answer.unfounded, "quote")
        typer.echo(f"Left out, since no document contains it: {quotes} of its answer.")
    work = (
        f"{counted(answer.turns, 'turn')}, {counted(answer.sub_calls, 'sub-call')}, "
        f"depth {answer.depth}"
    )
    if reply.usage:
        price = reply.cost(params)
        spent += f", {counted(reply.usage.requests, 'request')}, {reply.usage.tokens}"
        spent += f", cost {price:.4f}" if price else ""
    typer.secho(
        f"{about}, {work if answer.turns else 'read by no model'}, {answer.seconds:.1f} s{spent}",
        dim=True,
    )
