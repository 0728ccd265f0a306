"""The world of whole papers: evidence by construction, hard for keywords."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from statistics import fmean

from agent.policies.scripted import KEYWORD
from env.problems import names
from env.problems.papers import plan_collection, write_collection
from env.problems.papers.reader import templates
from env.problems.schema import Problem
from env.problems.synthetic import generate
from rewards.reading import papers_read
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1
from tasks.config import resolve
from tasks.data.align import add_alternatives, fault

PROFILE = resolve("papers")
SETTINGS = PROFILE.prepare.synthetic.model_copy(
    update={"collections": {"train": 4, "test": 2}, "canaries": 0.4, "seed": 5}
)
REWARDS = RewardSettings(min_span_chars=25)


@cache
def world() -> list[Problem]:
    return generate(SETTINGS)


def keyword_f1(problem: Problem) -> float:
    answers: list[object] = []
    scope = {"question": problem.question, "context": problem.texts, "FINAL": answers.append}
    exec(KEYWORD, scope)
    found = locate(answers[0], problem.texts, REWARDS).retrieved
    return span_f1(found, problem.places).f1


def pattern(form: str) -> str:
    """A form as a regular expression; its choices and slots stand for anything short."""
    return ".{0,150}?".join(map(re.escape, re.split(r"\[[^\[\]]*\]|\{\w+\}", form)))


def holds(ways: tuple[str, ...], text: str) -> bool:
    """Whether the text holds a sentence of one of these forms."""
    # A slot at the start would be tried from every character of the text.
    starts = [re.sub(r"^\{\w+\}", "", form) for form in ways]
    return any(re.search(pattern(form), text, re.IGNORECASE) for form in starts)


# --- gold


def test_gold_is_an_exact_slice_of_25_characters_or_more() -> None:
    assert [fault(problem, 25) for problem in world()] == [None] * len(world())


def test_every_alternative_is_listed_so_that_completing_changes_nothing() -> None:
    assert all(add_alternatives(problem) == problem for problem in world())


def test_no_near_miss_is_gold_of_any_question_of_its_collection() -> None:
    collections = [("test", level, n) for level in SETTINGS.levels_of("train") for n in range(4)]
    for split, level, number in collections:
        problems = write_collection(SETTINGS, split, level, number)
        gold = {s.text for p in problems for fact in p.evidence for s in fact.spans}
        _, asked = plan_collection(SETTINGS, split, level, number)
        whole = "\n".join(paper.text for paper in problems[0].papers)
        for question in asked:
            assert len(question.missed) >= 1
            for _, text in question.missed:
                assert text in whole
                assert text not in gold


# --- difficulty


def test_keywords_fail_at_hard_and_carry_far_at_easy() -> None:
    by_level = defaultdict(list)
    settings = PROFILE.prepare.synthetic.model_copy(update={"collections": {"test": 4}})
    for problem in generate(settings):
        by_level[problem.difficulty].append(keyword_f1(problem))
    means = {level: fmean(scores) for level, scores in by_level.items()}
    assert means["hard"] < 0.3
    assert means["hard"] < means["medium"] < means["easy"]
    assert 0.4 < means["easy"] < 0.7


# --- form


def test_reading_one_paper_is_hardly_ever_taken_for_reading_another_one() -> None:
    pairs = mistaken = 0
    for problem in world()[:: SETTINGS.questions_per_collection]:
        papers = problem.texts
        for text in papers.values():
            pairs += len(papers) - 1
            mistaken += len(papers_read(papers, [text], PROFILE.rewards.read_chars)) - 1
    assert mistaken / pairs < 0.005


# --- seeds and splits


def test_another_seed_gives_other_papers_and_more_collections_change_none() -> None:
    known = {problem.problem_id: problem for problem in world()}
    fewer = generate(SETTINGS.model_copy(update={"collections": {"train": 1}}))
    assert all(known[p.problem_id] == p for p in fewer)
    other = generate(SETTINGS.model_copy(update={"collections": {"train": 1}, "seed": 6}))
    known_texts = {paper.text for problem in world() for paper in problem.papers}
    assert not known_texts & {paper.text for problem in other for paper in problem.papers}


def test_names_of_the_test_split_are_held_out() -> None:
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for problem in world():
        for paper in problem.papers:
            found = re.findall(r"\b([A-Z][a-z]{5})(?=-[A-Z]| (?:Archive|Corpus))", paper.text)
            used[problem.split == "test"].update(found)
    assert used[True]
    assert used[True] <= set(names.RESERVED)
    assert used[False] <= set(names.COMMON)


def test_held_out_forms_of_sentences_and_questions_are_in_the_test_split_alone() -> None:
    topics = [*templates().aspects.values(), *templates().traits.values()]
    told = [form for topic in topics for form in (*topic.plain.reserved, *topic.oblique.reserved)]
    asked = [
        f for topic in topics for f in (*topic.ask.plain.reserved, *topic.ask.oblique.reserved)
    ]
    for split in ("train", "test"):
        problems = [problem for problem in world() if problem.split == split]
        whole = "\n".join({paper.text for p in problems[::3] for paper in p.papers})
        assert holds(tuple(told), whole) == (split == "test")
        assert holds(tuple(asked), "\n".join(p.question for p in problems)) == (split == "test")


# --- canaries


def test_canaries_stand_in_their_share_of_collections_and_are_never_gold() -> None:
    with_canary = [p for p in world() if any(paper.canary for paper in p.papers)]
    assert 0 < len(with_canary) < len(world())
    canaries = templates().passages.canaries
    tells = cache(lambda text: holds((*canaries.common, *canaries.reserved), text))
    for problem in world():
        told = {paper.paper_id for paper in problem.papers if tells(paper.text)}
        assert told == {paper.paper_id for paper in problem.papers if paper.canary}
        assert not told & problem.gold_papers
