"""F1 by the number of papers, of a model and of code without training."""

import pytest

from agent.evaluation.sizes import by_papers
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.trajectory import Trajectory
from env.models import AnswerMetrics
from env.problems.fields import LevelSettings, SyntheticSettings
from env.problems.store import ProblemStore

WORLD = SyntheticSettings.model_validate(
    {
        "collections": {"test": 3},
        "questions_per_collection": 1,
        "levels": {"many": LevelSettings(papers=16), "few": LevelSettings(papers=4)},
    }
)
BOOTSTRAP = Bootstrap(200, 0)


def test_each_number_of_papers_has_the_model_s_mean_and_that_of_each_line():
    store = ProblemStore.generate(WORLD)
    episodes = []
    for level, f1 in {"many": 0.5, "few": 1.0}.items():
        for problem_id in store.ids("test", level):
            tree = Trajectory(problem_id, level)
            tree.metrics = AnswerMetrics(precision=f1, recall=f1, f1=f1)
            episodes.append(tree)
    episodes[0].metrics = None  # a root without an answer
    episodes.append(Trajectory(episodes[1].problem_id, "many", void="connection: lost"))
    few, many = by_papers(episodes, store, BOOTSTRAP)
    assert [(row["papers"], row["n"]) for row in (few, many)] == [(4, 3), (16, 3)]
    assert few["f1"] == [1.0, 1.0, 1.0]
    assert many["f1"][0] == pytest.approx(1 / 3)
    for row in (few, many):
        assert row["lines"]["every sentence of the method"] == pytest.approx(0.25, abs=0.06)
        assert 0 < row["lines"]["keyword search, eight sentences"] < 0.4
