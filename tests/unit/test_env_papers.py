"""The world of whole papers: evidence by construction, hard for keywords, readable from text."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from pydantic import ValidationError

from agent.policies.scripted import KEYWORD
from env.problems import names
from env.problems.papers import plan_collection, write_collection
from env.problems.papers.forms import Forms, forms
from env.problems.papers.reader import FOLDER, templates
from env.problems.schema import Problem, tier_of
from env.problems.settings import LevelSettings, SyntheticSettings
from env.problems.store import ProblemStore
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


def texts(problem: Problem) -> dict[str, str]:
    return {paper.paper_id: paper.text for paper in problem.papers}


def f1(problem: Problem, answer: object) -> float:
    evidence = [[(s.paper_id, s.start, s.end) for s in f.spans] for f in problem.evidence]
    return span_f1(locate(answer, texts(problem), REWARDS).retrieved, evidence).f1


def keyword_f1(problem: Problem) -> float:
    answers: list[object] = []
    scope = {"question": problem.question, "context": texts(problem), "FINAL": answers.append}
    exec(KEYWORD, scope)
    return f1(problem, answers[0])


def pattern(form: str) -> str:
    """A form as a regular expression; slots stand for anything short."""
    parts = re.split(r"(\[[^\[\]]*\]|\{\w+\})", form)
    made = ""
    for part in parts:
        if part.startswith("["):
            made += "(?:" + "|".join(pattern(one) for one in part[1:-1].split("|")) + ")"
        elif part.startswith("{"):
            made += r".{1,150}?"
        else:
            made += re.escape(part)
    return made


def holds(ways: tuple[str, ...], text: str) -> bool:
    """Whether the text holds a sentence of one of these forms."""
    # A slot at the start would be tried from every character of the text.
    starts = [re.sub(r"^\{\w+\}", "", form) for form in ways]
    return any(re.search(pattern(form), text, re.IGNORECASE) for form in starts)


# --- gold


def test_gold_is_an_exact_slice_of_25_characters_or_more() -> None:
    assert [fault(problem, 25) for problem in world()] == [None] * len(world())


def test_gold_is_a_whole_sentence_or_a_row_of_a_table() -> None:
    for problem in world():
        for span in (span for fact in problem.evidence for span in fact.spans):
            text = texts(problem)[span.paper_id]
            before, after = text[: span.start], text[span.end :]
            if span.text.startswith("|"):
                assert before.endswith("\n")
                assert after.startswith("\n")
                assert span.text.endswith(" |")
            else:
                assert before.endswith(("\n", ". ", "? "))
                assert after.startswith((" ", "\n")) or after == ""
                assert re.fullmatch(r"[A-Z0-9].*\.", span.text)
                assert not re.search(r"\. [A-Z]", span.text)


def test_every_alternative_is_listed_so_that_completing_changes_nothing() -> None:
    assert all(add_alternatives(problem) == problem for problem in world())


def test_a_fact_has_alternatives_in_one_paper_and_in_another_one() -> None:
    papers = [
        [span.paper_id for span in fact.spans] for problem in world() for fact in problem.evidence
    ]
    assert any(len(ids) > len(set(ids)) for ids in papers)
    assert any(len(set(ids)) > 1 for ids in papers)


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


def test_each_kind_of_difficulty_occurs() -> None:
    gold = [s.text for p in world() for fact in p.evidence for s in fact.spans]
    kinds = {
        question.kind
        for level in SETTINGS.levels_of("train")
        for number in range(4)
        for question in plan_collection(SETTINGS, "train", level, number)[1]
    }
    assert {"score", "board", "training", "aspect"} <= kinds
    assert any(alias in text.lower() for alias in templates().results.aliases for text in gold)
    assert any(re.search(r"\bthe (former|latter)\b", text) for text in gold)
    assert any(text.startswith("|") for text in gold)
    whole = "\n".join(paper.text for problem in world() for paper in problem.papers)
    for near in ("-v2", "development split", "without its", "did not evaluate", "future work"):
        assert near in whole


def test_papers_contradict_each_other_about_one_score() -> None:
    found = 0
    for level in SETTINGS.levels_of("train"):
        for number in range(4):
            for question in plan_collection(SETTINGS, "train", level, number)[1]:
                if question.kind == "score" and len(question.keys) > 1:
                    problem = write_collection(SETTINGS, "train", level, number)
                    spans = [
                        fact.spans[0].text
                        for p in problem
                        if p.question == question.text
                        for fact in p.evidence
                    ]
                    values = [re.findall(r"\d\d\.\d", text) for text in spans]
                    assert len({tuple(v) for v in values}) == len(values)
                    found += 1
    assert found


def test_at_hard_an_abbreviation_is_introduced_by_its_own_paper() -> None:
    introduced = Counter(
        abbr
        for problem in world()[:: SETTINGS.questions_per_collection]
        if problem.difficulty == "hard"
        for paper in problem.papers
        for abbr in set(re.findall(r"(?:[A-Z][a-z]+ ){3}\(([A-Z]{3})\)", paper.text))
    )
    assert introduced
    assert all(count <= 4 for count in introduced.values())


# --- form


def test_all_tiers_have_even_shares_at_each_level() -> None:
    for level in SETTINGS.levels_of("train"):
        tiers = Counter(p.tier for p in world() if p.difficulty == level and p.split == "train")
        assert len(tiers) == 4
        assert max(tiers.values()) - min(tiers.values()) <= 1
    assert all(problem.tier == tier_of(len(problem.gold_papers)) for problem in world())


def test_papers_have_hundreds_to_thousands_of_words_and_all_sections() -> None:
    words = [len(paper.text.split()) for problem in world() for paper in problem.papers]
    assert min(words) > 400
    assert max(words) > 2500
    for paper in (paper for problem in world() for paper in problem.papers):
        assert paper.text.startswith(f"{paper.title}\n\nAbstract\n{paper.abstract}\n")
        assert [int(n) for n in re.findall(r"^(\d) [A-Z]", paper.text, re.MULTILINE)] == [
            *range(1, 9)
        ]
        assert "\nTable 1: " in paper.text
        assert "{" not in paper.text
        assert "[" not in paper.text
        assert not re.search(r"  |\.\.| ,|\ba [aeio]", paper.text)


def test_questions_of_a_collection_share_papers_and_ask_different_things() -> None:
    collections: dict[str, list[Problem]] = defaultdict(list)
    for problem in world():
        collections[problem.collection_id].append(problem)
    for members in collections.values():
        assert len({problem.question for problem in members}) == SETTINGS.questions_per_collection
        assert all(problem.papers == members[0].papers for problem in members)


def test_reading_one_paper_is_hardly_ever_taken_for_reading_another_one() -> None:
    pairs = mistaken = 0
    for problem in world()[:: SETTINGS.questions_per_collection]:
        papers = texts(problem)
        for text in papers.values():
            pairs += len(papers) - 1
            mistaken += len(papers_read(papers, [text], PROFILE.rewards.read_chars)) - 1
    assert mistaken / pairs < 0.005


# --- seeds and splits


def test_another_seed_gives_other_papers_and_more_collections_change_none() -> None:
    known = {problem.problem_id: problem for problem in world()}
    more = generate(SETTINGS.model_copy(update={"collections": {"train": 5}}))
    assert all(known[p.problem_id] == p for p in more if p.problem_id in known)
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
    for problem in world():
        told = {p.paper_id for p in problem.papers if holds(canaries.common, p.text)}
        told |= {p.paper_id for p in problem.papers if holds(canaries.reserved, p.text)}
        assert told == {paper.paper_id for paper in problem.papers if paper.canary}
        assert not told & problem.gold_papers


def test_without_the_setting_there_is_no_canary() -> None:
    settings = SETTINGS.model_copy(update={"canaries": 0.0, "collections": {"train": 2}})
    assert not any(paper.canary for p in generate(settings) for paper in p.papers)


# --- settings


def _level(papers: int) -> LevelSettings:
    return LevelSettings(papers=papers, max_gold=2, distractors=1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"canaries": 0.1}, "of the world `papers`"),
        ({"world": "papers"}, "more than 16 max_gold or distractors"),
        ({"world": "papers", "levels": {"easy": _level(5)}}, "allow at least 6"),
        (
            {"world": "papers", "questions_per_collection": 7, "levels": {"easy": _level(7)}},
            "questions_per_collection 7",
        ),
    ],
)
def test_settings_that_do_not_fit_the_world_are_refused(
    change: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        SyntheticSettings.model_validate(change)


def test_the_tightest_allowed_setting_still_generates() -> None:
    level = LevelSettings(papers=6, max_gold=4, distractors=16, indirect=0.5)
    settings = SyntheticSettings(
        world="papers", collections={"train": 6}, levels={"one": level}, questions_per_collection=4,
        canaries=1.0, words=500,
    )  # fmt: skip
    assert len(generate(settings)) == 24


def test_the_store_serves_both_worlds() -> None:
    few = {"collections": {"test": 1}}
    store = ProblemStore.generate(SETTINGS.model_copy(update=few))
    assert "Abstract" in store.pick("test", "hard", 0).papers[0].text
    assert len(ProblemStore.generate(SyntheticSettings().model_copy(update=few))) == 9


def test_forms_need_one_that_every_split_may_use() -> None:
    assert forms(["one  [a|b]", "~two"]) == Forms(("one [a|b]",), ("two",))
    with pytest.raises(ValueError, match="no common form"):
        forms(["~two"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("[diverged]", "[diverged"), r"aspects.toml: .* line \d+"),
        (("ask.plain =", "ask.plian ="), r"aspects.toml: \w+\.ask\.plain: Field required"),
        (
            ("{few} of our", "{fwe} of our"),
            r"aspects.toml: .* does not list \['fwe'\]",
        ),
        (
            ("{few} of our", "{few of our"),
            r"aspects.toml: \w+\.plain: .*nested bracket",
        ),
    ],
)
def test_a_malformed_data_file_is_refused_by_its_name(
    change: tuple[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FOLDER, tmp_path / "text")
    aspects = tmp_path / "text/aspects.toml"
    aspects.write_text(aspects.read_text().replace(*change, 1))
    monkeypatch.setattr("env.problems.papers.reader.FOLDER", tmp_path / "text")
    with pytest.raises(ValueError, match=told):
        templates.__wrapped__()
