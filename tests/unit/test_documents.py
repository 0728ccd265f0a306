"""Shell commands of the documents name what exists."""

import importlib.util
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from helpers.documents import PAGES, ROOT, commands

from flows import cli
from flows.services import __main__ as services
from tasks import config

LINES = [(page, one.strip()) for page in PAGES for row in commands(page) for one in row.split("&&")]


def lines(program: str) -> list[tuple[str, list[str]]]:
    """Documents with the words of each command of a program, without its name."""
    start = re.compile(rf"{program} (?!\$)")
    found = [(page, re.sub(r"\$\(.*\)", "1", line)) for page, line in LINES if start.match(line)]
    return [(page, shlex.split(line)) for page, line in found]


def accepts(app: typer.Typer, words: list[str]) -> None:
    """Let an application read its command line, without running the command.

    Raises:
        UsageError: a command, an argument or an option is wrong.
    """
    group = typer.main.get_command(app)
    context = group.make_context("rlm", [*words], resilient_parsing=True)
    name, command, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "words"), lines("rlm"))
def test_a_command_line_is_one_that_rlm_reads(page: str, words: list[str]) -> None:
    accepts(cli.app, words[1:])
    config.resolve(overrides=[after for word, after in pairwise(words) if word == "--set"])


@pytest.mark.parametrize(("page", "words"), lines("make"))
def test_a_target_is_one_of_the_makefile(page: str, words: list[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = re.findall(r"^([a-z0-9-]+):.*## ", text, re.M)
    assert max(map(len, known)) < int(re.findall(r"expand -t (\d+)", text)[0])  # of `make help`
    assert {word for word in words[1:] if "=" not in word} <= {*known}


@pytest.mark.parametrize(("page", "words"), lines("python -m"))
def test_a_module_exists_and_has_the_options(page: str, words: list[str]) -> None:
    _, _, name, *rest = words
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    if name == "flows.services":
        accepts(services.app, rest)
        return
    path = Path(found.origin)
    source = (path.with_name("__main__.py") if path.name == "__init__.py" else path).read_text()
    for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
        assert f'"{option}"' in source


def test_readme_tells_the_results_of_its_run() -> None:
    told = (ROOT / "README.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "plots/evaluation.json").read_text(encoding="utf-8"))
    rows = [f"on {found['n']} held-out problems", f", +{found['improvement_percent']:.1f} % |"]
    named = {"mean episode reward, sampled": found["reward"], "F1, greedy": found["f1_greedy"]}
    for row, one in named.items():
        changed = "{:+.3f} ({:+.3f} to {:+.3f})".format(one["difference"], *one["ci95"])
        rows.append(f"| {row} | {one['before']:.3f} | {one['after']:.3f} | {changed}")
    rate = "{:.1%} | {:.1%}".format(*(found[at]["success_rate"] for at in ("before", "after")))
    rows.append(f"| successful episodes, sampled | {rate} |")
    assert [row for row in rows if row not in told] == []
