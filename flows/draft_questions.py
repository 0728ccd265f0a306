"""Propose questions with quotes about a folder of your documents.

A model behind an endpoint reads passages and proposes questions; each quote is checked against its
document. The endpoint needs OpenAI's structured output, which vLLM, llama.cpp and Ollama have. The
file is one that `rlm check-problems` reads. Read the questions before you train or measure on them.

Example:

    rlm draft-questions --docs notes --output q.jsonl --base-url http://127.0.0.1:8000/v1 --model m
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flows.ask import ADDRESS, Docs, EndpointSettings
from flows.pipeline import guarded
from flows.runtime import unwrapped
from tasks.errors import StageError, stage_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=unwrapped(__doc__))
def draft_questions(
    docs: Docs,
    output: Annotated[Path, typer.Option(help="New .jsonl file; it is never overwritten.")],
    base_url: Annotated[str, ADDRESS],
    model: Annotated[str, typer.Option(help="The endpoint's model.")],
    count: Annotated[int, typer.Option(min=1, max=2000, help="Questions wanted.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the passages and of sampling.")] = 0,
    set_: EndpointSettings = None,
) -> None:
    """Draft, check and write the questions."""

    def work() -> None:
        with stage_named("draft-questions"):
            if not docs.is_dir():
                raise StageError(f"--docs {docs} is not a folder. Name an existing one.")
            draft(docs, output, base_url, model, count, seed, set_ or [])

    guarded(work)


def draft(
    docs: Path, output: Path, base_url: str, named: str, count: int, seed: int, sets: list[str]
) -> None:
    """Draft the questions and print what became of them.

    Raises:
        StageError: the file exists, no document can be read, or no question was found.
    """
    from rich.console import Console

    from assistant import asking
    from assistant import drafting as steps
    from tasks import config

    steps.require_new(output)
    params = config.resolve(asking.PROFILE, sets)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with console.status("reading the documents"):
        documents, left_out = steps.readable(docs, params)
    for reason in left_out:
        console.print(f"left out: {reason}", style="yellow")
    model = asking.AskedModel(named, params, base_url=base_url)
    with console.status(f"asking {named}") as status:
        drafts = steps.drafted(
            *(model, documents, count, seed),
            lambda found: status.update(f"asking {named}: {found} of {count} questions"),
        )
    checked = steps.write(output, docs, params, drafts)
    problems, used, prices = checked.found.problems, drafts.usage, params.evaluate_model
    several = sum(problem.difficulty != "easy" for problem in problems)
    price = used.cost(prices.prompt_price, prices.completion_price)
    typer.echo(
        f"{output}: {len(problems)} questions about {len(documents)} documents, {several} with "
        f"quotes from several; {count} were wanted\n"
        f"{used.requests} requests, {used.prompt_tokens:,} + {used.completion_tokens:,} tokens"
        + (f", cost {price:.4f}" if price else "")
    )
    if drafts.stopped:
        typer.echo(f"stopped early: {drafts.stopped}")
    for reason, number in drafts.dropped.items():
        typer.echo(f"dropped: {number} {reason}")
    for stop in checked.stops:
        typer.echo(f"note: {stop}")
    words = ["rlm", "check-problems", str(output), "--documents", str(docs)]
    typer.echo(f"Read them, then: {shlex.join([*words, '--profile', asking.PROFILE])}")
