"""Ask a registered model about your own files: `python -m flows.ask --docs DIR "question"`.

Reads the folder's documents, plays one recursive episode with an environment of its own, and
prints the quotes it found with their files and places. Writes nothing but a log.
"""

# Nothing heavy is imported before it is needed: --help answers at once.
from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.pipeline import guarded
from flows.surroundings import settle
from tasks.errors import StageError

if TYPE_CHECKING:
    from agent.answers import Answer
    from tasks.config import Params

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    docs: Annotated[Path, typer.Option(help="Folder of PDF, text, Markdown and HTML files.")],
    model: Annotated[
        str, typer.Option(help="A version's number or alias, or a folder with a model.")
    ] = "champion",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    seed: Annotated[int, typer.Option(help="Of sampling, in the mode `sampled`.")] = 0,
) -> None:
    """Ask."""

    def work() -> None:
        from rich.console import Console

        console = Console(stderr=True)
        with console.status("reading the documents"):
            folder, params = find_model(model)
            settle(params.threads)
            documents, left_out = read(docs, params)
        for reason in left_out:
            console.print(f"left out: {reason}", style="yellow", highlight=False, markup=False)
        with console.status(f"asking {model} about {len(documents)} documents"):
            found = play(folder, params, question, documents, seed)
        if found.void is not None:
            raise StageError(f"ask: the episode was lost: {found.void}; ask again")
        if as_json:
            typer.echo(json.dumps({"question": question, "model": model, **asdict(found)}))
        else:
            show(found, len(documents))

    guarded(work, f"python -m flows.ask --docs {shlex.quote(str(docs))} {shlex.quote(question)}")


def find_model(wanted: str) -> tuple[Path, Params]:
    """Folder and settings of a version or of a model's own folder.

    Raises:
        StageError: there is no such version, or no champion, or its artifact is gone.
        ConfigError: the version was registered with settings that this code does not know.
    """
    from tasks import config, register

    here = config.load_resolved()
    if Path(wanted).is_dir():
        return Path(wanted), here
    name = here.register_.model_name
    if wanted.isdecimal():
        version = register.version(name, wanted)
    elif wanted == "champion":
        found = register.champion(name)
        if found is None:
            raise StageError(
                f"ask: {name} has no champion yet; `make full` trains and promotes one, "
                "--model names another version or a folder"
            )
        version = found
    else:
        found = register.by_alias(name, wanted)
        if found is None:
            raise StageError(
                f"ask: {name} has no version {wanted!r}, and there is no such folder; "
                "`python -m flows.pipeline models` lists the versions"
            )
        version = found
    return register.download(version), register.settings(version)


def read(docs: Path, params: Params) -> tuple[dict[str, str], list[str]]:
    """Text by path within the folder, and why other files were left out.

    Raises:
        StageError: no such folder, or nothing in it can be read.
    """
    from env.problems.documents import READABLE, Documents
    from env.problems.schema import Paper

    if not docs.is_dir():
        raise StageError(f"ask: --docs {docs}: no such folder")
    folder = Documents(docs, params.env.document_chars, params.prepare.files.max_mb)
    read = [folder.get(name) for name in folder.names()]
    texts = {paper.paper_id: paper.text for paper in read if isinstance(paper, Paper)}
    left_out = [str(paper) for paper in read if not isinstance(paper, Paper)]
    if not texts:
        reasons = "".join(f"\n  {reason}" for reason in left_out)
        raise StageError(f"ask: no document ({', '.join(READABLE)}) can be read in {docs}{reasons}")
    return texts, left_out


def play(
    folder: Path, params: Params, question: str, documents: dict[str, str], seed: int
) -> Answer:
    """One episode of the model on the documents.

    Raises:
        StageError: the question cannot be asked, or the model or the environment fails.
    """
    from agent import answers
    from agent.errors import PolicyError
    from agent.models import TransformersPolicy, load_model
    from env.errors import EpisodeError
    from tasks import serving

    asked = answers.Question(question, documents, seed)
    params = serving.for_documents(params)
    if reason := answers.fault(asked, params.env):
        raise StageError(f"ask: {reason}")
    try:
        policy = TransformersPolicy(*load_model(folder), params.serving)
        with serving.own_server(params) as url:
            return serving.answer(policy, url, [asked], params)[0]
    except (PolicyError, EpisodeError) as error:
        raise StageError(f"ask: {error}") from error


def show(found: Answer, documents: int) -> None:
    """Quotes by their files, then what it took."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if found.evidence:
        table = Table("file", "characters", "quote", show_lines=True)
        for quote in found.evidence:
            table.add_row(Text(quote.document), f"{quote.start}-{quote.end}", Text(quote.text))
        console.print(table)
    elif found.stop_reason == "final":
        console.print("The model found no evidence in these documents.")
    else:
        console.print(f"The model gave no answer; its episode ended by {found.stop_reason!r}.")
    if found.unfounded:
        console.print(f"{found.unfounded} quotes of its answer stand in no document: left out.")
    console.print(
        f"{documents} documents, {found.turns} turns, {found.sub_calls} sub-calls, "
        f"depth {found.depth}, {found.seconds:.1f} s",
        style="dim",
    )


if __name__ == "__main__":
    settle()
    app(prog_name="python -m flows.ask")
