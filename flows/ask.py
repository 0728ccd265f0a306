"""Ask a registered model about your own files: `python -m flows.ask --docs DIR "question"`.

It reads the documents, plays one recursive episode on its own environment server, and prints the
quotes that the model found, with file and position. It writes only a log.
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.pipeline import guarded
from flows.runtime import settle
from tasks.errors import StageError

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from agent.rollouts.own_documents import Answer
    from tasks.params import Params

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    docs: Annotated[Path, typer.Option(help="Folder of PDF, text, Markdown and HTML files.")],
    model: Annotated[
        str, typer.Option(help="Number or alias of a version, or a model folder.")
    ] = "champion",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of sampling, in the mode `sampled`.")] = 0,
) -> None:
    """Ask, and print the answer."""

    def work() -> None:
        from rich.console import Console

        console = Console(stderr=True)
        with console.status("reading the documents"):
            folder, params = find_model(model)
            settle(params.threads)
            documents, left_out = read_documents(docs, params)
        for reason in left_out:
            console.print(
                f"left out: {reason}", style="yellow", highlight=False, markup=False, soft_wrap=True
            )
        with console.status(f"asking {model} about {len(documents)} documents"):
            found = play(folder, params, question, documents, seed)
        if found.void is not None:
            raise StageError(f"ask: the episode was lost ({found.void}). Ask again.")
        if as_json:
            typer.echo(json.dumps({"question": question, "model": model, **asdict(found)}))
        else:
            show(found, len(documents))

    guarded(work, f"python -m flows.ask --docs {shlex.quote(str(docs))} {shlex.quote(question)}")


def find_model(wanted: str) -> tuple[Path, Params]:
    """Folder and settings of a registered version, or of a model folder.

    Raises:
        StageError: the version does not exist, or its artifact is gone.
        ConfigError: the version was registered with settings unknown to this code.
    """
    from tasks import config
    from tasks.registry import versions

    here = config.load_resolved()
    if Path(wanted).is_dir():
        return Path(wanted), here
    name = here.register_.model_name
    version: ModelVersion | None
    if wanted.isdecimal():
        version = versions.get_version(name, wanted)
    else:
        champion = wanted == "champion"
        version = versions.champion(name) if champion else versions.by_alias(name, wanted)
    if version is None and wanted == "champion":
        raise StageError(
            f"ask: {name} has no champion yet. Train and promote one with `make full`, or name "
            "another version or a folder with --model."
        )
    if version is None:
        raise StageError(
            f"ask: {name} has no version {wanted!r}, and no such folder exists. List the versions "
            "with `python -m flows.pipeline models`."
        )
    return versions.download(version), versions.settings(version)


def read_documents(docs: Path, params: Params) -> tuple[dict[str, str], list[str]]:
    """Text of each readable document by its path in the folder, and why others were left out.

    Raises:
        StageError: the folder does not exist, or no document in it can be read.
    """
    from env.problems.schema import Paper
    from tasks.data.documents import READABLE, Documents

    if not docs.is_dir():
        raise StageError(f"ask: --docs {docs}: no such folder. Name an existing one.")
    folder = Documents(docs, params.env.document_chars, params.prepare.files.max_mb)
    papers = [folder.get(name) for name in folder.names()]
    texts = {paper.paper_id: paper.text for paper in papers if isinstance(paper, Paper)}
    left_out = [str(paper) for paper in papers if not isinstance(paper, Paper)]
    if not texts:
        reasons = "".join(f"\n  {reason}" for reason in left_out)
        raise StageError(f"ask: no document ({', '.join(READABLE)}) can be read in {docs}{reasons}")
    return texts, left_out


def play(
    folder: Path, params: Params, question: str, documents: dict[str, str], seed: int
) -> Answer:
    """Play one episode of the model on the documents.

    Raises:
        StageError: the question cannot be asked, or the model or the environment fails.
    """
    from agent.errors import PolicyError
    from agent.rollouts import own_documents
    from env.errors import EpisodeError
    from tasks import evaluate
    from tasks.registry import serving

    task = own_documents.Question(question, documents, seed)
    params = serving.for_documents(params)
    if reason := own_documents.fault(task, params.env):
        raise StageError(f"ask: {reason}")
    try:
        policy = evaluate.load_policy(folder, params.serving)
        with serving.own_server(params) as url:
            return serving.answer(policy, url, [task], params)[0]
    except (PolicyError, EpisodeError) as error:
        raise StageError(f"ask: {error}") from error


def show(found: Answer, documents: int) -> None:
    """Print the quotes with their files, then the cost of the episode."""
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
        console.print(f"The model gave no answer; its episode ended with {found.stop_reason!r}.")
    if found.unfounded:
        console.print(f"{found.unfounded} quotes of its answer occur in no document: left out.")
    console.print(
        f"{documents} documents, {found.turns} turns, {found.sub_calls} sub-calls, "
        f"depth {found.depth}, {found.seconds:.1f} s",
        style="dim",
    )


if __name__ == "__main__":
    settle()
    app(prog_name="python -m flows.ask")
