"""Propose questions with quotes about a folder of your documents.

A model behind an endpoint reads passages and proposes questions; each quote is checked against its
document. Without an endpoint, rules make rough questions from names, numbers and definitions. The
file is one that `rlm check-problems` reads. Read the questions before you train or measure on them.

Answers of an interrupted run are kept beside the file, and the same command goes on with them.

Examples:

    rlm draft-questions --docs notes --output questions.jsonl

    rlm draft-questions --docs notes --output q.jsonl --base-url http://127.0.0.1:8000/v1 --model m
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.pipeline import guarded
from flows.runtime import settle, unwrapped
from tasks.errors import StageError, stage_named

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.asking import AskedModel
    from tasks.draft_questions import Drafts, KeptAnswers
    from tasks.params import Params

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=unwrapped(__doc__))
def draft_questions(
    docs: Annotated[Path, typer.Option(help="Folder of PDF, text, Markdown and HTML files.")],
    output: Annotated[Path, typer.Option(help="New .jsonl file; it is never overwritten.")],
    base_url: Annotated[
        str | None,
        typer.Option(help="Endpoint, such as http://127.0.0.1:8000/v1; OPENAI_API_KEY is its key."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The endpoint's model.")] = None,
    count: Annotated[int, typer.Option(min=1, max=2000, help="Questions wanted.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the passages and of sampling.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable."),
    ] = None,
) -> None:
    """Draft, check and write the questions."""

    def work() -> None:
        with stage_named("draft-questions"):
            if not docs.is_dir():
                raise StageError(f"--docs {docs} is not a folder. Name an existing one.")
            if (base_url is None) != (model is None):
                raise StageError("--base-url and --model belong together. Give both, or neither.")
            draft(docs, output, base_url, model or "", count, seed, set_ or [])

    words = ["rlm", "draft-questions", "--docs", str(docs), "--output", str(output)]
    words += ["--base-url", base_url] if base_url else []
    words += ["--model", model] if model else []
    words += ["--count", str(count), "--seed", str(seed)]
    words += [word for text in set_ or [] for word in ("--set", text)]
    guarded(work, shlex.join(words), kept="Answers")


def draft(
    docs: Path,
    output: Path,
    base_url: str | None,
    named: str,
    count: int,
    seed: int,
    sets: list[str],
) -> None:
    """Draft the questions and print what became of them.

    Raises:
        StageError: the file exists, no document can be read, or no question was found.
    """
    from rich.console import Console

    from tasks import asking, config
    from tasks import draft_questions as steps
    from tasks.data.question_rules import by_rules

    steps.require_new(output)
    params = config.resolve(asking.PROFILE, sets)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with console.status("reading the documents"):
        documents, left_out = steps.readable(docs, params)
    for reason in left_out:
        console.print(f"left out: {reason}", style="yellow")
    kept = steps.KeptAnswers(output)
    if base_url is None:
        drafts = steps.Drafts(by_rules(documents, count, seed))
        if not drafts.questions:
            raise StageError(
                "the rules find no question: no sentence has a name that few others have. Use "
                "--base-url URL --model NAME."
            )
    else:
        model = asking.AskedModel(named, params, base_url=base_url)
        drafts = ask_endpoint(model, documents, count, seed, kept, console)
    checked, refused = steps.write(
        output, docs, params, drafts.questions, "draft" if base_url else "rough"
    )
    kept.remove()
    drafts.dropped["questions that check-problems rejects"] += refused
    problems = checked.found.problems
    several = sum(problem.difficulty != "easy" for problem in problems)
    typer.echo(
        f"{output}: {len(problems)} questions about {len(documents)} documents, {several} with "
        f"quotes from several; {count} were wanted"
    )
    if base_url is None:
        typer.echo("They are rough: made by rules, without a model. Their ids begin with rough-.")
    else:
        typer.echo(work_of(drafts, params))
    for reason, number in drafts.dropped.items():
        if number:
            typer.echo(f"dropped: {number} {reason}")
    for stop in checked.stops:
        typer.echo(f"note: {stop}")
    words = ["rlm", "check-problems", str(output), "--documents", str(docs)]
    typer.echo(f"Read them, then: {shlex.join([*words, '--profile', asking.PROFILE])}")


def ask_endpoint(
    model: AskedModel,
    documents: dict[str, str],
    count: int,
    seed: int,
    kept: KeptAnswers,
    console: Console,
) -> Drafts:
    """Questions of a model, with an estimate before and a line of progress.

    Raises:
        StageError: the endpoint refuses, or proposes nothing usable.
    """
    from tasks import draft_questions as steps

    asked = steps.prompts(documents, count, seed)
    tokens = steps.estimated_tokens(asked)
    price = tokens * model.params.evaluate_model.prompt_price / 1e6
    console.print(
        f"at most {len(asked)} requests with about {tokens:,} prompt tokens"
        + (f", which cost {price:.4f} without the answers" if price else "")
    )
    with console.status(f"asking {model.name}") as status:
        try:
            return steps.by_endpoint(
                model,
                asked,
                count,
                seed,
                kept,
                lambda found: status.update(f"asking {model.name}: {found} of {count} questions"),
            )
        except StageError as error:
            if kept.path.exists():
                error.args = (f"{error} Its answers are kept; the same command goes on.",)
            raise


def work_of(drafts: Drafts, params: Params) -> str:
    """Requests, tokens and price of the drafts."""
    used, prices = drafts.usage, params.evaluate_model
    price = used.cost(prices.prompt_price, prices.completion_price)
    return (
        f"{used.requests} requests, {used.prompt_tokens:,} + {used.completion_tokens:,} tokens"
        + (f", cost {price:.4f}" if price else "")
        + (f"; {drafts.reused} answers of an earlier run" if drafts.reused else "")
    )


if __name__ == "__main__":
    settle()
    app(prog_name="rlm draft-questions")
