"""The audit of the problems: what it plays, what it refuses, what its page shows."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.recorder import recorded

from agent.rollouts.trajectory import Trajectory
from env.models import AnswerMetrics
from env.problems.schema import from_row, to_row
from tasks import audit, paths, prepare
from tasks.config.params import Params
from tasks.config.settings import AuditSettings
from tasks.data.rows import Found
from tasks.errors import StageError
from tasks.reporting.html import problems_page


@pytest.fixture
def data(served_folder: Path) -> Path:
    """The served problems, and the report that prepare writes beside them."""
    rows = pd.read_parquet(paths.TEST).to_dict("records")
    problems = [from_row(row) for row in rows]
    by_split: dict[Any, list[dict[str, str]]] = {"train": [], "validation": [], "test": rows}
    report = prepare.describe(Found(problems), by_split, "synthetic")
    paths.PREPARED.write_text(json.dumps(report))
    return served_folder


def run(params: Params) -> dict[str, Any]:
    recorded(audit, params.model_copy(update={"audit": AuditSettings(problems=4)}))
    return dict(json.loads(audit.REPORT.read_text()))


def test_known_gold_earns_all_and_the_page_shows_it_in_place(data, server_params):
    report = run(server_params)
    assert list(report["levels"]) == ["easy", "medium", "hard"]
    for row in report["levels"].values():
        scores = {name: numbers["reward"] for name, numbers in row["policies"].items()}
        assert row["problems"] == 4
        assert scores["oracle"] > 0.95
        assert max(scores["keyword"], scores["random"]) < 0.4
    assert report["unsolved"] == {}

    problem = audit.choose(paths.PROBLEMS, 4)[0]
    hostile = tuple(
        paper.model_copy(update={"text": f"{paper.text}\n<script>alert(1)</script>"})
        for paper in problem.papers
    )
    shown = [problem.model_copy(update={"papers": hostile})]
    about = json.loads(paths.PREPARED.read_text())
    page = problems_page(report, shown, data=about, samples=1, profile="nano")
    assert f"<mark>{problem.evidence[0].spans[0].text}</mark>" in page
    assert "<script>" not in page


def test_gold_that_earns_nothing_stops_the_chain_and_is_named(data, server_params):
    chosen, other = audit.choose(paths.PROBLEMS, 4)[:2]
    # The stored gold of the first problem is another's, but not on the server.
    wrong = other.model_copy(update={"problem_id": chosen.problem_id})
    frame = pd.read_parquet(paths.TEST)
    frame.loc[list(frame["problem_id"]).index(chosen.problem_id)] = pd.Series(to_row(wrong))
    frame.to_parquet(paths.TEST)
    with pytest.raises(StageError, match=r"1 of 12 problems") as stopped:
        run(server_params)
    assert chosen.problem_id in str(stopped.value)
    assert chosen.problem_id in audit.PAGE.read_text()  # the page is there, to look at


def test_a_void_episode_is_left_out_of_the_means_and_only_voids_are_an_error() -> None:
    components = dict.fromkeys(audit.COMPONENTS, 1.0)
    perfect = AnswerMetrics(precision=1, recall=1, f1=1)
    played = Trajectory("q", "easy", reward=1.0, components=components, metrics=perfect)
    lost = Trajectory("q", "easy", void="the sandbox failed")
    report = audit.describe({"oracle": [played, lost]})
    numbers = report["levels"]["easy"]["policies"]["oracle"]
    assert (numbers["episodes"], numbers["void"], numbers["reward"]) == (1, 1, 1.0)
    assert report["unsolved"] == {}
    with pytest.raises(StageError, match="the sandbox failed"):
        audit.describe({"oracle": [lost]})
