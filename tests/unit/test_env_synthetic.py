"""The synthetic world: gold is exactly what holds both names, and a lazy search is imprecise."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache

import pytest
from pydantic import ValidationError

from env.problems.names import COMMON, FACTS, FIRST, NAMES, RESERVED, SECOND
from env.problems.schema import COLUMNS, Problem, from_row, tier_of, to_row
from env.problems.settings import MAX_SENTENCES, MIN_SENTENCES, LevelSettings, SyntheticSettings
from env.problems.synthetic import QUESTIONS, generate

SETTINGS = SyntheticSettings(collections={"train": 24, "validation": 6, "test": 12}, seed=3)


@cache
def world() -> list[Problem]:
    return generate(SETTINGS)


def pattern(forms: Iterable[str]) -> re.Pattern[str]:
    """Any of these wordings with names and score filled in."""
    return re.compile("|".join(re.sub(r"\\{\w\\}", r"\\w+", re.escape(form)) for form in forms))


def asked(problem: Problem) -> tuple[str, str]:
    """The names of a question, in its order."""
    x, y = (word for word in re.findall(r"\w+", problem.question) if word in NAMES)
    return x, y


def sentences(problem: Problem) -> dict[str, list[str]]:
    """Lines of each paper without its title."""
    return {paper.paper_id: paper.text.split("\n")[1:] for paper in problem.papers}


def test_names_are_1600_distinct_pairs_of_syllables() -> None:
    assert len(set(NAMES)) == 1600
    assert len(set(FIRST)) == len(set(SECOND)) == 40
    assert not set(FIRST) & set(SECOND)
    assert all(re.fullmatch("[A-Z][aeiou][a-z]{2}[aeiou][a-z]", name) for name in NAMES)


def test_no_name_is_one_letter_away_from_another_syllable_of_its_place() -> None:
    for inventory in (FIRST, SECOND):
        for i, one in enumerate(inventory):
            for other in inventory[:i]:
                assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2


def test_every_syllable_occurs_in_names_for_training() -> None:
    assert {name[:3].lower() for name in COMMON} == set(FIRST)
    assert {name[3:] for name in COMMON} == set(SECOND)


def test_another_seed_gives_other_papers() -> None:
    other = generate(SETTINGS.model_copy(update={"seed": 4}))
    texts = {paper.text for problem in world() for paper in problem.papers}
    assert not texts & {paper.text for problem in other for paper in problem.papers}


def test_more_collections_leave_the_earlier_ones_as_they_were() -> None:
    more = generate(SETTINGS.model_copy(update={"collections": {"train": 25, "validation": 6}}))
    known = {problem.problem_id: problem for problem in more}
    assert all(known[p.problem_id] == p for p in world() if p.split != "test")


def test_thousands_of_problems_take_seconds() -> None:
    started = time.process_time()
    assert len(generate(SyntheticSettings())) == 4980
    assert time.process_time() - started < 5


def test_every_gold_span_is_a_whole_sentence_at_its_place() -> None:
    for problem in world():
        texts = {paper.paper_id: paper.text for paper in problem.papers}
        for fact in problem.evidence:
            for span in fact.spans:
                assert texts[span.paper_id][span.start : span.end] == span.text
                assert span.text in sentences(problem)[span.paper_id]
                assert len(span.text) >= 25


def test_a_sentence_is_gold_exactly_when_it_holds_both_names() -> None:
    for problem in world():
        x, y = asked(problem)
        gold = {(s.paper_id, s.text) for fact in problem.evidence for s in fact.spans}
        both = {
            (paper_id, sentence)
            for paper_id, lines in sentences(problem).items()
            for sentence in lines
            if x in sentence and y in sentence
        }
        assert both == gold
        scores = [f.format(x=a, y=b, n="{n}") for f in FACTS for a, b in ((x, y), (y, x))]
        assert all(pattern(scores).fullmatch(sentence) for _, sentence in gold)


def test_gold_sentences_of_a_question_stand_once() -> None:
    for problem in world():
        lines = Counter(line for part in sentences(problem).values() for line in part)
        assert all(lines[span.text] == 1 for fact in problem.evidence for span in fact.spans)


def test_each_collection_holds_every_kind_of_near_miss() -> None:
    for problem in world():
        x, y = asked(problem)
        kinds = {
            (x in paper.text, y in paper.text)
            for paper in problem.papers
            if paper.paper_id not in problem.gold_papers
        }
        assert {(True, False), (False, True), (True, True)} <= kinds


def test_gold_papers_hold_near_misses_too_above_easy() -> None:
    for problem in world():
        if problem.difficulty == "easy":
            continue
        x, y = asked(problem)
        lines = [
            s for i, part in sentences(problem).items() if i in problem.gold_papers for s in part
        ]
        assert any(x in s and y not in s for s in lines)
        assert any(y in s and x not in s for s in lines)


def test_the_first_papers_that_hit_one_name_are_often_not_gold() -> None:
    right = total = 0
    for problem in world():
        x, _ = asked(problem)
        hits = [paper.paper_id for paper in problem.papers if x in paper.text]
        first = hits[: len(problem.gold_papers)]
        right += len(problem.gold_papers & set(first))
        total += len(first)
    assert 0.2 < right / total < 0.75


def test_papers_have_the_promised_form() -> None:
    for problem in world():
        level = SETTINGS.levels[problem.difficulty]
        assert [p.paper_id for p in problem.papers] == [f"p{i + 1}" for i in range(level.papers)]
        for paper in problem.papers:
            title, *lines = paper.text.split("\n")
            assert title == paper.title
            assert re.fullmatch(r"A study of [A-Z]\w{5}\.", title)
            assert lines[0] == paper.abstract
            assert MIN_SENTENCES <= len(lines) <= MAX_SENTENCES


def test_questions_of_a_collection_share_their_papers_and_ask_different_things() -> None:
    collections: dict[str, list[Problem]] = defaultdict(list)
    for problem in world():
        collections[problem.collection_id].append(problem)
    for members in collections.values():
        assert len(members) == SETTINGS.questions_per_collection
        assert len({asked(problem) for problem in members}) == len(members)
        assert all(problem.papers == members[0].papers for problem in members)
    assert len({problem.problem_id for problem in world()}) == len(world())


def test_numbers_of_gold_papers_spread_evenly_so_that_all_tiers_occur() -> None:
    for difficulty in SETTINGS.levels_of("train"):
        counts = Counter(
            len(p.gold_papers) for p in world() if p.difficulty == difficulty and p.split == "train"
        )
        assert set(counts) == set(range(1, SETTINGS.levels[difficulty].max_gold + 1))
        assert max(counts.values()) - min(counts.values()) <= 1
    tiers = {d: {p.tier for p in world() if p.difficulty == d} for d in SETTINGS.levels}
    assert {name: len(found) for name, found in tiers.items()} == {
        "easy": 2,
        "medium": 3,
        "hard": 4,
        "double": 4,
    }
    assert all(problem.tier == tier_of(len(problem.gold_papers)) for problem in world())


def test_a_level_is_in_its_splits_alone_and_leaves_the_others_as_they_were() -> None:
    levels = {name: level for name, level in SETTINGS.levels.items() if name != "double"}
    without = generate(SETTINGS.model_copy(update={"levels": levels}))
    assert [p for p in world() if p.difficulty != "double"] == without
    assert {p.split for p in world() if p.difficulty == "double"} == {"validation"}
    assert {p.split for p in world() if p.difficulty == "hard"} == {"train", "validation", "test"}


def _used(problems: list[Problem], test: bool) -> set[str]:
    return {
        name
        for problem in problems
        if (problem.split == "test") == test
        for paper in problem.papers
        for name in re.findall(r"\b[A-Z][a-z]{5}\b", paper.text)
    }


def test_names_of_the_test_split_are_held_out() -> None:
    assert _used(world(), test=True) <= set(RESERVED)
    assert _used(world(), test=False) <= set(COMMON)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_of_the_test_names_is_held_out(share: float) -> None:
    settings = SETTINGS.model_copy(update={"held_out": share})
    names = _used(generate(settings), test=True)
    held = len(names & set(RESERVED)) / len(names)
    # A name drawn from the smaller pool of reserved ones is drawn again more often.
    assert held == pytest.approx(share, abs=0.12)


def _wordings(problems: list[Problem], test: bool) -> tuple[set[str], set[str]]:
    """Questions, and lines of papers without their titles."""
    split = [problem for problem in problems if (problem.split == "test") == test]
    lines = {line for p in split for part in sentences(p).values() for line in part}
    return {problem.question for problem in split}, lines


def test_every_text_is_in_one_of_the_wordings_and_each_wording_occurs() -> None:
    for test in (False, True):
        for forms, texts in zip((QUESTIONS, FACTS), _wordings(world(), test), strict=True):
            assert all(pattern(forms).fullmatch(text) for text in texts)
            assert all(any(pattern([form]).fullmatch(t) for t in texts) for form in forms)


def test_no_sentence_is_nearly_whole_without_its_score() -> None:
    for fact in FACTS:
        sentence = fact.format(x="Kesrog", y="Toxlim", n=42)
        assert max(map(len, re.split("4|2", sentence))) + 1 < 0.95 * len(sentence)


def test_more_sentences_than_papers_hold_is_a_wrong_setting() -> None:
    crowded = {"easy": LevelSettings(papers=2, max_gold=2, distractors=16)}
    with pytest.raises(ValidationError, match="ask less or add papers"):
        SyntheticSettings(levels=crowded)


def test_the_tightest_allowed_setting_still_generates() -> None:
    tight = {"easy": LevelSettings(papers=3, max_gold=3, distractors=4)}
    settings = SyntheticSettings(collections={"train": 60}, levels=tight)
    assert max(len(p.text.split("\n")) for q in generate(settings) for p in q.papers) <= 8


def test_a_row_gives_the_problem_back() -> None:
    for problem in world()[:5]:
        row = to_row(problem)
        assert tuple(row) == COLUMNS
        assert from_row(row) == problem


def test_a_row_without_text_is_refused_by_the_name_of_its_column() -> None:
    with pytest.raises(ValueError, match="question"):
        from_row({**to_row(world()[0]), "question": None})
