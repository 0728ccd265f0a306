"""Every function of the reward against brute force, and properties over arbitrary evidence.

Papers are short and of two letters, so that overlaps, repeats and several occurrences of one
text really happen. The brute force is `rewards_oracle.py`.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import pytest
from helpers import rewards_oracle as oracle
from helpers.episodes import episode
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.combine import COMPONENTS, EpisodeFacts, Score, score
from rewards.components import by_papers, process_quality
from rewards.found import papers_found
from rewards.papers_read import papers_read
from rewards.primary import primary_objective
from rewards.settings import RewardSettings
from rewards.spans import exact_match, locate, paper_f1, span_f1

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)


@dataclass(frozen=True)
class World:
    """A problem and an answer to it."""

    papers: dict[str, str]
    facts: list[list[oracle.Alternative]]
    answer: list[Any]
    settings: RewardSettings
    read: frozenset[str]

    def episode(self, answer: Any = None) -> EpisodeFacts:
        return episode(
            papers=self.papers,
            evidence=self.facts,
            answer=self.answer if answer is None else answer,
            papers_read=self.read,
            turns=4,
            turns_with_error=1,
            turns_with_one_block=3,
            sub_calls=2,
        )

    def score(self, answer: Any = None) -> Score:
        return score(self.episode(answer), self.settings)

    def primary(self, answer: Any = None) -> float:
        return self.score(answer).components["primary_objective"]


@st.composite
def alternatives(draw: st.DrawFn, papers: dict[str, str]) -> oracle.Alternative:
    paper_id = draw(st.sampled_from(sorted(papers)))
    start = draw(st.integers(0, len(papers[paper_id]) - 1))
    return paper_id, start, draw(st.integers(start + 1, len(papers[paper_id])))


@st.composite
def items(draw: st.DrawFn, papers: dict[str, str]) -> Any:
    """Quotes, places, near misses, junk, and lists of them."""
    paper_id, start, end = draw(alternatives(papers))
    quote = papers[paper_id][start:end]
    named = draw(st.sampled_from([paper_id, *papers, "p9"]))
    return draw(
        st.sampled_from(
            [
                quote,
                {"paper_id": named, "text": quote},
                {"paper_id": named, "start": start, "end": end},
                {"paper_id": named, "start": start, "end": end + draw(st.integers(-3, 9))},
                quote + draw(st.text("abc", max_size=3)),
                {"text": quote},
                {"paper_id": named, "start": float(start), "end": end},
                {"paper_id": named, "start": start, "end": end, "text": 7},
                [quote, [quote[1:], {"paper_id": named, "start": start, "end": end}]],
                None,
                end,
                draw(st.sampled_from([0.5, float("nan")])) if start == 3 else True,
            ]
        )
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 4))
    papers = {f"p{n}": draw(st.text("ab", min_size=1, max_size=24)) for n in range(count)}
    place = alternatives(papers)
    facts = draw(st.lists(st.lists(place, min_size=1, max_size=3), min_size=1, max_size=4))
    options = RewardSettings(
        min_span_chars=draw(st.integers(1, 4)),
        min_cover=draw(st.sampled_from([0.5, 0.8, 0.95, 1.0])),
        max_items=draw(st.sampled_from([3, 2000])),
        free_misses=draw(st.integers(0, 2)),
        read_chars=draw(st.integers(1, 8)),
    )
    ids = st.frozensets(st.sampled_from(sorted(papers)))
    answer = draw(st.lists(items(papers) | st.text("abc", min_size=2, max_size=8), max_size=6))
    return World(papers, facts, answer, options, draw(ids))


def places(located: dict[str, list[tuple[int, int]]]) -> set[oracle.Char]:
    return {
        (paper_id, index)
        for paper_id, intervals in located.items()
        for start, end in intervals
        for index in range(start, end)
    }


# --- agreement with brute force


@settings(EXAMPLES, max_examples=120)
@given(worlds())
def test_an_answer_is_located_and_compared_with_gold_as_by_brute_force(world: World) -> None:
    found = locate(world.answer, world.papers, world.settings)
    pieces, retrieved, invented, misses = oracle.locate(world.answer, world.papers, world.settings)
    assert places(found.retrieved) == retrieved
    assert (found.invented, found.misses) == (invented, misses)
    one_by_one = [
        {(paper_id, index) for index in range(start, end)}
        for paper_id, intervals in found.pieces.items()
        for start, end in intervals
    ]
    assert set(map(frozenset, one_by_one)) == set(map(frozenset, pieces))

    agreement = span_f1(found.retrieved, world.facts)
    wanted = pytest.approx(oracle.span_f1(retrieved, world.facts))
    assert (agreement.precision, agreement.recall, agreement.f1) == wanted
    primary = oracle.primary_objective(pieces, retrieved, invented, world.facts, world.settings)
    assert primary_objective(found, world.facts, world.settings) == pytest.approx(primary)

    assert exact_match(found, world.facts) == oracle.exact_match(retrieved, misses, world.facts)
    papers = oracle.paper_f1(retrieved, world.facts)
    assert paper_f1(found.retrieved, world.facts) == pytest.approx(papers)


@EXAMPLES
@given(worlds(), st.integers(0, 5), st.integers(0, 5), st.floats(0, 1))
def test_process_is_that_of_brute_force(world: World, turns: int, errors: int, gate: float) -> None:
    of_world = (world.papers, world.facts, set(world.read))
    found = process_quality(by_papers(*of_world, 0, world.settings), turns, errors, gate)
    assert found == pytest.approx(oracle.process_quality(*of_world, turns, errors, gate))


@EXAMPLES
@given(worlds(), st.lists(st.text("ab", max_size=30), max_size=4))
def test_papers_read_are_those_of_brute_force(world: World, texts: list[str]) -> None:
    enough = world.settings.read_chars
    for gold in (set(), {paper_id for fact in world.facts for paper_id, _, _ in fact}):
        found = papers_read(world.papers, texts, enough, gold)
        assert found == oracle.papers_read(world.papers, texts, enough, gold)


# --- properties of the score


def room(world: World, more: int) -> World:
    """The same world with room for every item: one too many earns nothing, by another rule."""
    return replace(world, settings=world.settings.model_copy(update={"max_items": 2000 + more}))


@EXAMPLES
@given(worlds(), st.data())
def test_adding_a_whole_gold_span_never_lowers_primary(world: World, data: st.DataObject) -> None:
    world = room(world, 1)
    paper_id, start, end = data.draw(st.sampled_from([a for fact in world.facts for a in fact]))
    gold = {"paper_id": paper_id, "start": start, "end": end}
    assert world.primary([*world.answer, gold]) >= world.primary() - 1e-12


@EXAMPLES
@given(worlds(), st.data())
def test_adding_gold_as_a_bare_quote_never_lowers_primary_where_its_repeats_are_known(world, data):
    """Data preparation lists every exact repeat of a gold text as an alternative."""
    facts = [
        [
            place
            for paper_id, start, end in fact
            for place in oracle.standing(world.papers[paper_id][start:end], world.papers)
        ]
        for fact in world.facts
    ]
    world = room(replace(world, facts=facts), 1)
    paper_id, start, end = data.draw(st.sampled_from([a for fact in facts for a in fact]))
    gold = world.papers[paper_id][start:end]
    assert world.primary([*world.answer, gold]) >= world.primary() - 1e-12


@EXAMPLES
@given(worlds(), st.data())
def test_adding_a_wrong_span_never_raises_primary(world: World, data: st.DataObject) -> None:
    paper_id, start, end = data.draw(alternatives(world.papers))
    gold = {char for fact in world.facts for a in fact for char in oracle.chars(a)}
    if oracle.chars((paper_id, start, end)) & gold:
        return
    wrong = {"paper_id": paper_id, "start": start, "end": end}
    assert world.primary([*world.answer, wrong]) <= world.primary() + 1e-12


@EXAMPLES
@given(worlds(), st.text("abc", min_size=1, max_size=12))
def test_adding_a_made_up_quote_never_raises_primary(world: World, quote: str) -> None:
    if any(quote in paper for paper in world.papers.values()):
        return
    assert world.primary([*world.answer, quote]) <= world.primary() + 1e-12


@EXAMPLES
@given(worlds(), st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_more_work_never_pays(world: World, errors: int, calls: int, more: int) -> None:
    """Of two episodes that differ only in errors or sub-calls, the one with more earns no more."""
    one = replace(world.episode(), turns=40, turns_with_error=errors)
    one = replace(one, work=replace(one.work, used=40 + calls))
    two = replace(one, turns_with_error=errors + 1, work=replace(one.work, used=40 + calls + more))
    assert score(two, world.settings).total <= score(one, world.settings).total + 1e-12


# --- arbitrary input

NAMES = ["paper_id", "text", "start", "end", "", "\ud800", "TEXT"]
KEYS = st.sampled_from(NAMES) | st.text(max_size=4)
NUMBERS = st.integers() | st.floats() | st.booleans() | st.sampled_from([10**400, -(10**400)])
TEXTS = st.text("ab", max_size=24) | st.text(st.characters(codec=None), max_size=8)
ANYTHING = st.recursive(
    st.none() | NUMBERS | TEXTS | st.sampled_from(["p0", "a" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@EXAMPLES
@given(worlds(), ANYTHING)
def test_any_answer_is_scored_within_bounds(world: World, answer: Any) -> None:
    for given_to_final in (answer, [answer, *world.answer], {"paper_id": answer, "text": "ab"}):
        result = world.score([given_to_final])
        values = [*result.components.values(), result.total, result.precision, result.recall]
        values += [result.f1, result.paper_f1]
        assert all(isfinite(value) and 0.0 <= value <= 1.0 for value in values)
        assert tuple(result.components) == COMPONENTS
        children = [({"c": "1 abab\n2 baba"}, given_to_final)]
        assert papers_found(world.papers, world.facts, children, 0.95) <= world.papers.keys()
