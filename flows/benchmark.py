"""Measure a model on long contexts: `rlm benchmark oolong`.

Each context holds dated messages of several users. Questions ask for counts over their topics,
which no line names: each message must be read. The same contexts with printed topics are a task
for code. Without a model, the scripted expert answers.

Each answer is kept at once in DIR/MODEL.jsonl, so a stopped run continues with the same command.
Table and figure show all models with results in DIR, and answers without a model.

Examples:

    rlm benchmark oolong --lengths 1k,2k --problems 16

    rlm benchmark oolong --base-url http://127.0.0.1:11434/v1 --model qwen3 --window 32k
"""

# Heavy modules are imported where they are needed, so that --help is instant.
from __future__ import annotations

import re
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.pipeline import guarded
from flows.runtime import settle, unwrapped
from tasks.errors import ConfigError, StageError, stage_named

app = typer.Typer(
    help="Measure a model on long contexts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
MOST_LOST = 0.05
"""Share of lost answers of a model beyond which its figures would be of a selection."""
_LEAST, _MOST = 512, 1 << 20
"""Tokens of a context; shorter ones have too few messages for questions without ties."""


class LabelChoice(StrEnum):
    """Whether topics are printed beside the messages."""

    BOTH = "both"
    WITHOUT = "without"
    WITH = "with"


@app.callback()
def group() -> None:
    """Measure a model on long contexts."""


@app.command(help=unwrapped(__doc__))
def oolong(
    model: Annotated[
        str,
        typer.Option(help="expert, champion, a version, a folder, or the endpoint's model."),
    ] = "expert",
    base_url: Annotated[
        str | None,
        typer.Option(help="Endpoint, such as http://127.0.0.1:8000/v1; OPENAI_API_KEY is its key."),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Tokens of the contexts, about four characters each.")
    ] = "1k,2k,4k,8k,16k,32k,64k,128k",
    problems: Annotated[
        int, typer.Option(min=8, max=100_000, help="Problems of each length; 8 share a context.")
    ] = 200,
    labels: Annotated[
        LabelChoice, typer.Option(help="Print the topics beside the messages.")
    ] = LabelChoice.BOTH,
    window: Annotated[
        str | None,
        typer.Option(help="Ask the model plainly too: one request of at most these tokens."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")] = Path(
        "reports/oolong"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Setting for an endpoint; repeatable."
        ),
    ] = None,
) -> None:
    """Ask all questions, then write the table and the figure."""

    def work() -> None:
        with stage_named("benchmark"):
            sizes = tuple(sorted({tokens(text) for text in lengths.split(",")}))
            cut_at = None if window is None else tokens(window)
            require_known(model, base_url, set_, window)
            chosen = {"both": (False, True), "without": (False,), "with": (True,)}[labels.value]
            settle()
            run(model, base_url, set_ or [], sizes, problems, chosen, cut_at, out, seed)

    words = ["rlm", "benchmark", "oolong", "--model", model]
    words += ["--base-url", base_url] if base_url else []
    words += ["--lengths", lengths, "--problems", str(problems), "--labels", labels.value]
    words += ["--window", window] if window else []
    words += ["--out", str(out), "--seed", str(seed)]
    words += [word for text in set_ or [] for word in ("--set", text)]
    guarded(work, shlex.join(words), kept="Answers")


def run(
    model: str,
    base_url: str | None,
    sets: list[str],
    sizes: tuple[int, ...],
    count: int,
    labels: tuple[bool, ...],
    window: int | None,
    out: Path,
    seed: int,
) -> None:
    """Play all arms and print the table.

    Raises:
        ConfigError: a setting is wrong, or the results are of other settings.
        StageError: the model or the environment fails, or too many answers were lost.
    """
    from tasks.oolong import play, players, report

    plan = play.OolongPlan(sizes, count, labels, window, seed, out)
    with players.opened(model, base_url, sets, sizes) as player:
        play.answer_all(player, plan, typer.echo)
    play.answer_baselines(plan)
    scores = report.read_scores(plan)
    paths = report.write_report(plan, scores)
    typer.echo(report.table(plan, scores))
    typer.echo("\n".join(map(str, paths)))
    cells = [
        cell
        for of_labels in scores.values()
        for name, series in of_labels.items()
        if name.startswith(f"{player.name}, ")
        for cell in series.values()
    ]
    lost, answered = sum(cell.lost for cell in cells), sum(cell.score.n for cell in cells)
    if lost > MOST_LOST * (lost + answered):
        raise StageError(
            f"{lost} of {lost + answered} answers of {player.name} were lost. Run the same command "
            "again to repeat them; a lower evaluate_model.concurrency may help."
        )


def tokens(text: str) -> int:
    """Tokens of a length such as 4096 or 4k.

    Raises:
        ConfigError: it is not such a number.
    """
    found = re.fullmatch(r"(\d{1,9})(k?)", text.strip().lower())
    size = int(found[1]) * (1024 if found[2] else 1) if found else 0
    if not _LEAST <= size <= _MOST:
        raise ConfigError(
            f"{text!r} is not a length. Write tokens from {_LEAST} to {_MOST:,}, such as 4k or "
            "1k,2k,4k."
        )
    return size


def require_known(
    model: str, base_url: str | None, sets: list[str] | None, window: str | None
) -> None:
    """Refuse options that do not fit together, before anything is imported.

    Raises:
        ConfigError: an option is wrong or missing.
    """
    if base_url is not None and model in ("expert", "champion"):
        raise ConfigError("--base-url needs --model NAME, the model's name at the endpoint.")
    if base_url is None and sets:
        raise ConfigError("--set is for endpoints. Other models keep their own settings.")
    if base_url is None and window is not None:
        raise ConfigError("--window is for endpoints: other models are not asked plainly.")


if __name__ == "__main__":
    settle()
    app(prog_name="rlm benchmark")
