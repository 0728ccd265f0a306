from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from agent.nano import drills, strategies
from agent.nano.demonstrations import demonstrate, line_f1, names_of, play
from agent.nano.settings import MixtureSettings
from env.problems.names import NAMES
from env.problems.settings import SyntheticSettings
from env.problems.synthetic import QUESTIONS, generate

MIXTURE = MixtureSettings()
_NAME = re.compile("|".join(NAMES))


@pytest.fixture(scope="module")
def problems():
    return generate(SyntheticSettings(collections={"train": 30}))


def test_the_best_strategy_finds_everything(problems):
    for problem in problems:
        found = play(problem, strategies.BEST_ROOT, [strategies.BEST_CHILD] * 8)
        assert found.f1 == 1.0, problem.problem_id


@pytest.mark.parametrize(
    "worse",
    [{"papers": 1}, {"prompt": "first"}, {"prompt": "second"}, {"merge_all": False}],
)
def test_each_root_decision_matters(problems, worse):
    plan = strategies.RootPlan(**(vars(strategies.BEST_ROOT) | worse))
    child = strategies.BEST_CHILD
    if "prompt" in worse:  # a child with one name cannot filter
        child = strategies.ChildPlan(True, "none")
    mean = sum(play(p, plan, [child] * 8).f1 for p in problems) / len(problems)
    assert mean < 0.85


@pytest.mark.parametrize("keep", ["none", "one", "whole"])
def test_each_child_decision_matters(problems, keep):
    child = strategies.ChildPlan(True, keep)
    mean = sum(play(p, strategies.BEST_ROOT, [child] * 8).f1 for p in problems) / len(problems)
    assert mean < 0.85


def test_the_mixture_is_mediocre_but_not_hopeless(problems):
    trees = list(demonstrate(problems, 2000, MIXTURE, seed=0))
    mean = sum(tree.f1 for tree in trees) / len(trees)
    assert 0.25 < mean < 0.45
    assert sum(tree.f1 > 0.9 for tree in trees) > 20


def test_decisions_follow_their_shares_and_each_other_not(problems):
    roots = [tree.root for tree in demonstrate(problems, 4000, MIXTURE, seed=0)]
    for papers, share in MIXTURE.papers.items():
        assert sum(r.papers == int(papers) for r in roots) / len(roots) == pytest.approx(
            share, abs=0.03
        )
    merged = [r for r in roots if r.merge_all]
    apart = [r for r in roots if not r.merge_all]
    for share in (
        lambda rs: sum(r.papers == 8 for r in rs) / len(rs),
        lambda rs: sum(r.filter_papers for r in rs) / len(rs),
    ):
        assert share(merged) == pytest.approx(share(apart), abs=0.04)


def test_a_share_of_0_for_answers_without_children_changes_nothing(problems):
    assert all(tree.root.alone is None for tree in demonstrate(problems, 300, MIXTURE, seed=0))


def test_a_share_of_the_roots_ends_by_final_var(problems):
    trees = list(demonstrate(problems, 2000, MIXTURE, seed=0))
    ended = [tree.conversations[0][-1]["content"].endswith('FINAL_VAR("r")\n```') for tree in trees]
    assert ended == [tree.root.final_var for tree in trees]
    assert sum(ended) / len(trees) == pytest.approx(MIXTURE.final_var, abs=0.03)


def test_demonstrations_contain_no_wording_of_the_test_split(problems):
    common = {form.format(x="*", y="*") for form in QUESTIONS}
    talks = [tree.conversations[0] for tree in demonstrate(problems, 500, MIXTURE, seed=0)]
    talks += [drills.root_binding(Random(i), MIXTURE) for i in range(200)]
    questions = {talk[1]["content"].splitlines()[0] for talk in talks}
    found = {_NAME.sub("*", question) for question in questions}
    assert found == common


def test_no_good_choice_is_rare_or_usual():
    good = [MIXTURE.filter_papers, MIXTURE.merge_all, MIXTURE.papers["8"]]
    good += [MIXTURE.prompt["both"], MIXTURE.child["other"]]
    assert all(0.2 <= share < 0.5 for share in good)


def test_the_same_seed_gives_the_same_trees(problems):
    one, again, other = (list(demonstrate(problems, 50, MIXTURE, seed)) for seed in (3, 3, 4))
    assert one == again
    assert one != other


def test_a_child_with_one_name_never_filters():
    plans = [strategies.draw_child(Random(i), MIXTURE, names=1) for i in range(300)]
    assert Counter(p.keep for p in plans).keys() == {"none", "one", "whole"}


def test_shares_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ValueError, match="sum to 1"):
        MixtureSettings(papers={"1": 0.5, "8": 0.4})


def test_names_of_a_question_keep_their_order():
    assert names_of("Report Kesrog on Toxlim.") == ("Kesrog", "Toxlim")
    with pytest.raises(ValueError, match="two names"):
        names_of("What does it score?")


def test_line_f1_by_hand():
    gold = [("p1", "a" * 30), ("p2", "b" * 10)]
    assert line_f1([], gold) == 0.0
    assert line_f1(gold, gold) == 1.0
    assert line_f1([("p1", "a" * 30)], gold) == pytest.approx(2 * 30 / (30 + 40))
    assert line_f1([("p2", "a" * 30)], gold) == 0.0
