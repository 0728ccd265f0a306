"""Figures that clients without the owner's key read: two digits, which find no gold by halving."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from helpers.episodes import episode

from env.models import AnswerMetrics
from env.problems.fields import LevelSettings, SyntheticSettings, sentences_with
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.server.scoring import rounded
from rewards.combine import score
from rewards.settings import RewardSettings

STORE = ProblemStore.generate(
    SyntheticSettings(
        collections={"train": 3, "validation": 1, "test": 2},
        levels={str(papers): LevelSettings(papers=papers) for papers in (2, 4, 8)},
        seed=9,
    )
)
REWARDS = RewardSettings()

Line = tuple[str, int, int]
"""Paper and place of a sentence: the unit of evidence in the small world."""
Figures = dict[str, Any]


def shown(figures: Figures) -> Figures:
    """Figures as a stranger reads them."""
    return rounded(figures, REWARDS.weights.process_quality)


def played(problem: Problem, answer: Sequence[Line], read: Collection[str] = ()) -> Figures:
    """Exact figures of an episode with one turn, this answer, and the papers that it read."""
    places = [{"paper_id": paper, "start": a, "end": b} for paper, a, b in answer]
    facts = episode(
        papers=problem.texts, evidence=problem.places, answer=places, papers_read=frozenset(read)
    )
    found = score(facts, REWARDS)
    return {
        "reward": found.total,
        "components": found.components,
        "metrics": AnswerMetrics.model_validate(found, from_attributes=True),
    }


def lines(problem: Problem) -> list[Line]:
    """Sentences of all papers, titles included."""
    return [(line.paper_id, line.start, line.end) for line in sentences_with("", problem.papers)]


def gold(problem: Problem) -> set[Line]:
    return {place for fact in problem.places for place in fact}


def characters(part: Sequence[Line]) -> int:
    return sum(end - start for _, start, end in part)


def halve(part: Sequence[Line], right: Callable[[Sequence[Line]], int]) -> set[Line]:
    """Gold by halving: `right` counts the characters of gold among some sentences."""
    count = right(part)
    if count in (0, characters(part)) or len(part) == 1:
        return set(part) if count else set()
    middle = len(part) // 2
    return halve(part[:middle], right) | halve(part[middle:], right)


NINE = [STORE.get(name) for level in STORE.difficulties() for name in STORE.ids("test", level)[:3]]


def attacked(problem: Problem, seen: Callable[[Figures], Figures]) -> tuple[set[Line], int]:
    """Gold that halving by `precision x characters` finds, and the episodes that it played."""
    episodes = 0

    def right(part: Sequence[Line]) -> int:
        nonlocal episodes
        episodes += 1
        precision: float = seen(played(problem, part))["metrics"].precision
        return round(precision * characters(part))

    return halve(lines(problem), right), episodes


def test_halving_finds_all_gold_in_exact_figures() -> None:
    found = [attacked(problem, seen=lambda figures: figures) for problem in NINE]
    assert [part for part, _ in found] == [gold(problem) for problem in NINE]
    assert max(episodes for _, episodes in found) < 64


def test_halving_finds_no_gold_in_a_strangers_figures() -> None:
    assert [attacked(problem, seen=shown) for problem in NINE] == [(set(), 1)] * 9


def test_papers_that_were_read_show_no_gold_in_a_strangers_figures() -> None:
    """Neither to who knows no gold sentence nor to who knows one of several."""
    answers = [(one, [line for line in lines(one) if line not in gold(one)]) for one in NINE]
    answers.append((NINE[-1], sorted(gold(NINE[-1]))))
    for problem, answer in answers:
        exact = [played(problem, answer[:1], [paper.paper_id]) for paper in problem.papers]
        seen = [(one["reward"], one["components"], one["metrics"]) for one in map(shown, exact)]
        assert all(one == seen[0] for one in seen)
        if len(problem.gold_papers) < len(problem.papers):
            quality = {one["components"]["process_quality"] > 0 for one in exact}
            assert quality == {True, False}  # exact figures do show them


def numbers(figures: Figures) -> list[float]:
    metrics = figures["metrics"]
    return [
        figures["reward"],
        *figures["components"].values(),
        *(metrics.precision, metrics.recall, metrics.f1, metrics.paper_f1),
    ]


def test_no_number_has_more_than_two_digits() -> None:
    hard = NINE[-1]
    exact = played(hard, [*sorted(gold(hard))[:2], lines(hard)[0]])
    seen = shown(exact)
    assert numbers(seen) == [round(value, 2) for value in numbers(exact)]
    assert numbers(seen) != numbers(exact)
    assert exact["components"]["primary_objective"] > 0
    whole = played(hard, sorted(gold(hard)), hard.gold_papers)
    assert whole["components"]["process_quality"] == 1.0
    assert numbers(shown(whole)) == [round(value, 2) for value in numbers(whole)]


def test_an_answer_that_earns_nothing_has_no_metrics() -> None:
    problem = NINE[0]
    everything = played(problem, lines(problem))
    assert everything["metrics"].recall == 1.0
    seen = shown(everything)
    assert seen["components"]["primary_objective"] == 0.0
    assert (seen["metrics"].recall, seen["metrics"].paper_f1) == (0.0, 0.0)
