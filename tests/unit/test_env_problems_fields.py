"""The world `fields`: only the lexicon tells gold from the method's other sentences."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.policies.scripted import KEYWORD
from env.problems import fields
from env.problems.fields import BENCHMARK, LevelSettings, SyntheticSettings, generate
from env.problems.lexicon import FIELDS, lexicon, trained_names, untaught, untrained
from env.problems.names import FACTS, NAMES, RESERVED
from env.problems.schema import CANDIDATES, COLUMNS, SPLITS, Problem, Span, from_row, to_row
from env.problems.store import ProblemStore
from tasks import audit
from tasks.config import resolve
from tasks.errors import StageError
from tasks.prepare import write_parquet


def world(papers: int = 8, collections: int = 4, split: str = "test", **more: Any) -> list[Problem]:
    made = {"collections": {split: collections}, "questions_per_collection": 1}
    levels = {"some": LevelSettings(papers=papers)}
    return generate(SyntheticSettings.model_validate({**made, "levels": levels, **more}))


@cache
def many() -> tuple[Problem, ...]:
    return tuple(world(collections=250, split="train"))


def gold_of(problem: Problem) -> list[Span]:
    return [span for fact in problem.evidence for span in fact.spans]


def rewritten(problem: Problem, texts: Sequence[str], gold: Collection[str]) -> Problem:
    """The problem with other texts of its papers, and the lines of them that are gold."""
    pairs = zip(problem.papers, texts, strict=True)
    papers = tuple(paper.model_copy(update={"text": text}) for paper, text in pairs)
    hits = fields.sentences_with(fields.read_question(problem.question)[0], papers)
    spans = [span for span in hits if span.text in gold]
    placed = zip(problem.evidence, spans, strict=True)
    facts = tuple(fact.model_copy(update={"spans": (span,)}) for fact, span in placed)
    return problem.model_copy(update={"papers": papers, "evidence": facts, "candidates": hits})


def printed(problem: Problem) -> Problem:
    """The problem with its field beside each benchmark."""
    known = lexicon(512)

    def labelled(text: str) -> str:
        return BENCHMARK.sub(lambda found: f"{found[0]} ({known[found[0]]})", text)

    texts = [labelled(paper.text) for paper in problem.papers]
    return rewritten(problem, texts, {labelled(span.text) for span in gold_of(problem)})


@settings(max_examples=40, deadline=None)
@given(
    papers=st.integers(2, 48),
    questions=st.integers(1, 7),
    split=st.sampled_from(["train", "validation", "test"]),
    seed=st.integers(0, 10**6),
)
def test_each_question_of_a_collection_has_three_candidates_a_paper_and_an_eighth_are_gold(
    papers, questions, split, seed
):
    made = world(papers, 1, split, questions_per_collection=questions, seed=seed, lexicon=512)
    assert len({fields.read_question(problem.question)[0] for problem in made}) == questions
    assert len({problem.problem_id for problem in made}) == len(made) == questions
    assert {problem.papers for problem in made} == {made[0].papers}
    known = lexicon(512)
    for problem in made:
        method, field = fields.read_question(problem.question)
        every = [(p.paper_id, line) for p in problem.papers for line in p.text.split("\n")]
        hits = [(paper_id, line) for paper_id, line in every if method in line]
        assert [(span.paper_id, span.text) for span in problem.candidates] == hits
        assert set(Counter(paper_id for paper_id, _ in hits).values()) == {3}
        assert len({paper_id for paper_id, _ in hits}) == papers
        names = [name for _, line in hits for name in known if name in line]
        assert len(set(names)) == len(hits), "a method has a benchmark once"
        right = [hit for hit, name in zip(hits, names, strict=True) if known[name] == field]
        assert [(span.paper_id, span.text) for span in gold_of(problem)] == right
        assert len(right) == max(1, round(3 * papers / 8))
        texts = {paper.paper_id: paper.text for paper in problem.papers}
        for span in problem.candidates:
            assert texts[span.paper_id][span.start : span.end] == span.text
        for text in texts.values():
            assert 1 <= len(text.split("\n")) - 1 - 3 * questions <= fields.MOST_OTHERS
        assert fields.field_fault(problem, 512) is None


# --- nothing but the lexicon tells gold


def surface(problem: Problem) -> np.ndarray:
    """Features of the method's sentences [sentences, features] without the benchmarks' letters.

    They are wording, score, lengths and places of sentence and paper, and the number of sentences
    with the same benchmark.
    """
    method, _ = fields.read_question(problem.question)
    lines = {paper.paper_id: paper.text.split("\n") for paper in problem.papers}
    every = Counter(name for paper in problem.papers for name in BENCHMARK.findall(paper.text))
    rows = []
    for number, span in enumerate(fields.sentences_with(method, problem.papers)):
        [benchmark], [score] = BENCHMARK.findall(span.text), re.findall(r"\d+", span.text)
        wording = span.text.replace(method, "{x}").replace(benchmark, "{y}").replace(score, "{n}")
        text = lines[span.paper_id]
        at = text.index(span.text)
        sentence = [FACTS.index(wording) if wording in FACTS else -1, int(score), len(span.text)]
        place = [at, at / len(text), len(text), list(lines).index(span.paper_id)]
        rows.append([*sentence, every[benchmark], *place, number, number % 3])
    return np.array(rows, dtype=float)


def correlations(problems: tuple[Problem, ...]) -> list[float]:
    """|r| of each surface feature and gold, over all candidates."""
    table = np.concatenate([surface(problem) for problem in problems])
    gold = [span in gold_of(problem) for problem in problems for span in problem.candidates]
    return [abs(np.corrcoef(column, gold)[0, 1]) for column in table.T if np.ptp(column)]


def test_neither_score_nor_wording_nor_place_tells_gold() -> None:
    assert max(correlations(many())) < 4 / sum(len(problem.candidates) for problem in many()) ** 0.5


def test_gold_at_the_start_of_its_paper_would_be_seen() -> None:
    def moved(problem: Problem) -> Problem:
        lines = {paper.paper_id: paper.text.split("\n") for paper in problem.papers}
        for span in gold_of(problem):
            lines[span.paper_id].sort(key=lambda line: line != span.text)
        texts = ["\n".join(lines[paper.paper_id]) for paper in problem.papers]
        return rewritten(problem, texts, {span.text for span in gold_of(problem)})

    assert max(correlations(tuple(map(moved, many())))) > 0.2


# --- splits


def test_splits_share_no_method() -> None:
    assert sorted(name for names in fields.METHODS.values() for name in names) == sorted(NAMES)
    assert set(fields.METHODS["test"]) == set(RESERVED)
    for split, names in fields.METHODS.items():
        text = "\n".join(paper.text for problem in world(split=split) for paper in problem.papers)
        assert {name for name in NAMES if name in text} <= set(names)


# --- what is wrong is refused


def test_a_question_about_anything_but_one_method_and_one_field_is_refused() -> None:
    for asked in ("Kesrog do on smell", "Kesrog do on speech and text", "it do on speech"):
        with pytest.raises(ValueError, match="name one method, and one field of audio, code"):
            fields.read_question(f"How well does {asked}?")


@pytest.mark.parametrize("sentence", ["Kesrog reaches 42 on Toxlim.", "On Zuxazuk, Zuxazor gets"])
def test_a_benchmark_that_the_lexicon_does_not_know_is_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match=r"one of the 8 of the lexicon .prepare\.synthetic\.lex"):
        fields.field_of(sentence, 8)


def test_a_problem_of_another_kind_is_told_by_its_fault() -> None:
    problem = world()[0]
    for changed, told in (
        ({"evidence": problem.evidence[1:]}, "the evidence is not"),
        ({"candidates": problem.candidates[1:]}, "the candidates are not 3"),
        ({"split": "train"}, "a method of another split than train"),
    ):
        assert told in str(fields.field_fault(problem.model_copy(update=changed), 512))
    assert "prepare.synthetic.lexicon" in str(fields.field_fault(problem, 64))
    assert "fields are printed" in str(fields.field_fault(printed(problem), 512))


# --- candidates stay on the server and in the data


def test_rows_hold_candidates_only_where_a_problem_has_them(tmp_path: Path) -> None:
    plain, *rest = world()
    problems = [plain.model_copy(update={"candidates": ()}), *rest]
    rows = [to_row(problem) for problem in problems]
    assert tuple(rows[0]) == COLUMNS
    assert tuple(rows[-1]) == (*COLUMNS, CANDIDATES)
    assert [from_row(row) for row in rows] == problems
    write_parquet(tmp_path / "plain.parquet", rows[:1])
    write_parquet(tmp_path / "rest.parquet", rows[1:])
    assert tuple(pd.read_parquet(tmp_path / "plain.parquet").columns) == COLUMNS
    store = ProblemStore.load(tmp_path)
    assert [store.get(problem.problem_id) for problem in problems] == problems


# --- stages


FEW = resolve(overrides=["prepare.synthetic.collections={train: 2, validation: 2, test: 2}"])


def test_audit_refuses_printed_fields() -> None:
    made = generate(FEW.prepare.synthetic)
    audit.check_reading(made, FEW.prepare.synthetic)
    with pytest.raises(StageError, match=r"F1 1\.00 at easy, above 0\.35"):
        audit.check_reading(list(map(printed, made)), FEW.prepare.synthetic)


def keyword_search(problem: Problem) -> Any:
    answers: list[Any] = []
    exec(KEYWORD, {"context": problem.texts, "question": problem.question, "FINAL": answers.append})
    return answers[0]


@pytest.mark.parametrize("papers", [4, 16])
@pytest.mark.parametrize("search", [keyword_search, audit.method_and_field])
def test_no_search_without_the_lexicon_answers(search, papers):
    asked = world(papers, collections=24, seed=1)
    assert 0.1 < fmean(audit.plain_f1(one, search(one)) for one in asked) < 0.35


def test_no_training_problem_names_a_benchmark_that_is_kept_from_it() -> None:
    hidden = untrained(512)
    shown = {name for p in many() for paper in p.papers for name in BENCHMARK.findall(paper.text)}
    assert len(shown) > 450
    assert not shown & hidden
    texts = [one.text for p in world(collections=60) for one in p.candidates]
    assert len({n for text in texts for n in BENCHMARK.findall(text)} & hidden) > 20

    problem = many()[0]
    name = BENCHMARK.findall(problem.papers[0].text)[0]
    other = next(one for one in sorted(hidden))
    for written in (other, f"{other}s"):  # within a word too
        texts = [{"text": paper.text.replace(name, written)} for paper in problem.papers]
        papers = tuple(p.model_copy(update=t) for p, t in zip(problem.papers, texts, strict=True))
        found = fields.field_fault(problem.model_copy(update={"papers": papers}), 512)
        assert found == f"{other} is a benchmark of no training problem"


# --- collections and levels


def test_a_level_is_in_all_splits_and_leaves_the_others_as_they_were() -> None:
    few = FEW.prepare.synthetic
    every = generate(few)
    easy = generate(few.model_copy(update={"levels": {"easy": few.levels["easy"]}}))
    assert [p for p in every if p.difficulty == "easy"] == easy
    assert {p.split for p in every if p.difficulty == "hard"} == {"train", "validation", "test"}


def test_no_sentence_is_nearly_whole_without_its_score() -> None:
    for fact in FACTS:
        sentence = fact.format(x="Kesrog", y="Toxalim", n=42)
        assert max(map(len, re.split("4|2", sentence))) + 1 < 0.95 * len(sentence)


def test_a_row_without_text_is_refused_by_the_name_of_its_column() -> None:
    with pytest.raises(ValueError, match="question"):
        from_row({**to_row(world()[0]), "question": None})


def test_a_question_that_a_later_split_asks_too_is_left_out(monkeypatch):
    settings = SyntheticSettings(collections={"train": 2, "validation": 2, "test": 1})
    write = fields.write_collection
    both = write(settings, "test", "easy", 0)[0].question

    def writer(*args: Any) -> list[Problem]:
        first, *others = write(*args)
        return [first.model_copy(update={"question": both}), *others]

    monkeypatch.setattr(fields, "write_collection", writer)
    problems = fields.generate(settings)
    assert {p.split for p in problems if p.question == both} == {"test"}
    assert {p.split for p in problems} == {"train", "validation", "test"}


def test_the_same_seed_gives_the_same_bytes_in_every_process() -> None:
    few = SyntheticSettings(collections={"train": 3, "validation": 1, "test": 2}, seed=3)
    double = {"double": LevelSettings(papers=32)}  # a level that has left the defaults
    more = few.model_copy(update={"levels": double, "collections": {"validation": 1}})
    made = sorted([*generate(few), *generate(more)], key=lambda one: SPLITS.index(one.split))
    text = "".join(problem.model_dump_json() for problem in made)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    assert digest == "72c802110ef91740", "whoever generates these problems gets others than before"


# --- the lexicon: names of one shape, evenly over the fields


def test_no_typo_turns_a_name_into_another_one() -> None:
    for one, other in combinations(lexicon(512), 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2


def test_fields_have_the_same_number_of_names_taught_or_not() -> None:
    every = lexicon(512)
    assert set(Counter(every.values()).values()) == {512 // len(FIELDS)}
    held = Counter(every[name] for name in untaught(512))
    assert 0.09 <= len(untaught(512)) / 512 <= 0.11
    assert min(held[field] for field in FIELDS) >= 5


def test_a_larger_lexicon_holds_a_smaller_one() -> None:
    small, large = lexicon(256), lexicon(1024)
    assert small.items() <= large.items()
    assert untaught(256) == untaught(1024) & small.keys()


def test_training_problems_hold_most_untaught_names_but_not_all() -> None:
    hidden, left_out = untrained(512), untaught(512)
    assert hidden < left_out
    assert 20 <= len(hidden) < len(left_out) / 2
    assert trained_names(512) == {n: f for n, f in lexicon(512).items() if n not in hidden}
