"""The committed answers of `rlm benchmark oolong`: whole, packed, and those of the documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from agent.evaluation.statistics import Interval
from benchmarks.oolong.__main__ import KEPT, MODEL, PLAN, ROOT, keep, unpacked
from tasks.errors import StageError
from tasks.oolong import report
from tasks.oolong.figure import draw
from tasks.oolong.report import OolongCell

SHORT = replace(PLAN, lengths=(1024, 2048))


def test_the_documents_show_the_committed_answers_to_today_s_problems(tmp_path: Path) -> None:
    plan = replace(SHORT, out=tmp_path)
    made = report.table(plan, unpacked(KEPT, plan)).splitlines()
    shown = (ROOT / "docs" / "oolong_table.md").read_text().splitlines()
    rows = [line for line in made if line.startswith(("| 1k |", "| 2k |", "| length |"))]
    assert len(rows) == 4 * 3  # scores and tokens, without and with labels
    assert [line for line in rows if line not in shown] == []


def test_answers_to_other_problems_are_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"not those to all problems.*--keep"):
        unpacked(KEPT, replace(SHORT, out=tmp_path, seed=PLAN.seed + 1))


def test_the_same_answers_are_packed_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("expert", MODEL):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"model": "{name}"}}\n')
    keep(tmp_path, tmp_path / "one")
    keep(tmp_path, tmp_path / "two")
    files = sorted((tmp_path / "one").iterdir())
    assert [path.name for path in files] == ["expert.jsonl.gz", f"{MODEL}.jsonl.gz"]
    assert [path.read_bytes() for path in files] == [
        (tmp_path / "two" / path.name).read_bytes() for path in files
    ]


def cell(mean: float, tokens: float, cut: bool = False) -> OolongCell:
    return OolongCell(Interval(mean, mean - 0.1, mean + 0.1, 200), tokens, 0.1, 0, cut)


def hollow(axes: Axes) -> list[tuple[float, float]]:
    white = to_rgba("white")
    found = [line for line in axes.get_lines() if to_rgba(line.get_markerfacecolor()) == white]
    return [(float(x), float(y)) for line in found for x, y in zip(*line.get_data(), strict=True)]


def test_the_figure_marks_cut_prompts_and_names_the_lengths_of_costs() -> None:
    plain = {1024: cell(0.9, 1100), 2048: cell(0.5, 1500, cut=True)}
    tree = {1024: cell(0.8, 1445), 2048: cell(0.8, 1445)}
    words = {1024: cell(0.3, 0), 2048: cell(0.2, 0)}
    series = {"m, plain (1k window)": plain, "m, recursive": tree, "keywords": words}
    figure = draw(SHORT, {False: series, True: {"m, recursive": tree}})
    above, _, below, other = figure.axes
    assert hollow(above) == [(2048, 0.5)]
    assert hollow(below) == [(1500, 0.5)]
    assert [text.get_text() for text in below.texts] == ["1k", "2k", "1k to 2k"]
    assert [text.get_text() for text in other.texts] == ["1k to 2k"]
    assert [line.get_label() for line in below.get_lines() if line.get_label() in series] == [
        "m, plain (1k window)",
        "m, recursive",
    ]


def test_the_figure_of_one_value_of_labels_has_one_column() -> None:
    figure = draw(replace(SHORT, labels=(True,)), {True: {"keywords": {1024: cell(1.0, 0)}}})
    assert len(figure.axes) == 2
