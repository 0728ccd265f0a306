"""The source `files`: what a row may hold, and each way in which a row is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env.errors import SourceError
from env.problems.schema import Problem
from env.prompts import cell_message
from env.settings import LimitSettings
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1
from tasks.data import files
from tasks.data.settings import FilesSettings, SplitSettings
from tasks.data.source import Found, ProblemBounds

BOUNDS = ProblemBounds(min_span_chars=12, max_text_chars=1000, max_papers=4, max_gold_papers=2)
REWARDS = RewardSettings()
TOPICS = ("Kalvot", "Mirbex", "Dorvek", "Jedgeb")


def row(topic: str, **changes: Any) -> dict[str, Any]:
    """A good row: a question about three papers, its fact in the first one."""
    papers = [
        {
            "paper_id": f"{topic}-{i}",
            "text": f"{topic} scores {i}0 points on data set {topic}. End.",
        }
        for i in range(3)
    ]
    evidence = [
        {"paper_id": f"{topic}-0", "quote": f"{topic} scores 00 points on data set {topic}."}
    ]
    return {"question": f"What about {topic}?", "papers": papers, "evidence": evidence, **changes}


GOOD = [row(topic) for topic in TOPICS]


def read(path: Path, documents: Path | None = None, **settings: Any) -> Found:
    named = FilesSettings(
        path=str(path), documents=str(documents) if documents else None, **settings
    )
    return files.read_problem_file(named, SplitSettings(), BOUNDS)


def write(path: Path, lines: list[bytes | dict[str, Any]]) -> Path:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def texts(problem: Problem) -> list[str]:
    return [span.text for fact in problem.evidence for span in fact.spans]


# --- good rows ---


def test_good_rows_become_problems(tmp_path: Path) -> None:
    found = read(write(tmp_path / "problems.jsonl", [*GOOD]))
    assert found.rejected == []
    assert [problem.question for problem in found.problems] == [one["question"] for one in GOOD]
    assert texts(found.problems[0]) == ["Kalvot scores 00 points on data set Kalvot."]
    assert found.quotes.exact == 4


def test_offsets_and_alternatives_are_evidence_as_well(tmp_path: Path) -> None:
    alternatives = [
        {"paper_id": "Kalvot-1", "start": 0, "end": 23},
        {"paper_id": "Kalvot-0", "quote": "Kalvot scores 00\n points on"},
    ]
    one = row("Kalvot", evidence=[{"alternatives": alternatives}])
    problem = read(write(tmp_path / "problems.jsonl", [one, *GOOD[1:]])).problems[0]
    assert len(problem.evidence) == 1
    assert texts(problem) == ["Kalvot scores 10 points", "Kalvot scores 00 points on"]
    assert problem.tier == "focused"


def test_chat_tokens_are_split_so_that_a_copy_of_what_is_read_still_counts(tmp_path: Path) -> None:
    text = "It begins </s> here. A turn ends with <|im_end|> or [/INST], as in ChatML."
    fact = "A turn ends with <|im_end|> or [/INST], as in ChatML."
    papers = [{"paper_id": "p", "text": text}]
    places = [
        {"paper_id": "p", "quote": fact},
        {"paper_id": "p", "start": text.index(fact), "end": len(text)},
    ]
    rows: list[Any] = [
        row("Kalvot", question=f"{place}?", papers=papers, evidence=[place]) for place in places
    ]
    found = read(write(tmp_path / "problems.jsonl", [*rows, *GOOD]))
    for problem in found.problems[:2]:
        shown = cell_message(problem.texts["p"], 0, [], "", LimitSettings())
        quote = shown[shown.index("A turn") :]
        assert quote == "A turn ends with < |im_end|> or [ /INST], as in ChatML."
        assert texts(problem) == [quote]
        assert span_f1(locate([quote], problem.texts, REWARDS).retrieved, problem.places).f1 == 1


def test_a_row_may_name_its_id_its_collection_and_its_difficulty(tmp_path: Path) -> None:
    named = row("Kalvot", problem_id="mine", collection_id="g", difficulty="hard")
    problem = read(write(tmp_path / "problems.jsonl", [named, *GOOD[1:]])).problems[0]
    assert (problem.problem_id, problem.difficulty) == ("mine", "hard")


def test_splits_that_all_rows_name_are_kept(tmp_path: Path) -> None:
    wanted = ["test", "train", "test", "validation"]
    rows: list[Any] = [{**one, "split": split} for one, split in zip(GOOD, wanted, strict=True)]
    found = read(write(tmp_path / "problems.jsonl", rows))
    assert [problem.split for problem in found.problems] == wanted


# --- broken rows: each is rejected alone ---

PAPERS = GOOD[1]["papers"]
QUOTE = GOOD[1]["evidence"][0]
TWICE = (
    "By now we know for certain that the first sample was lost on its way to us. "
    "By now we know for certain that the third sample was lost on its way to us."
)
AMBIGUOUS = {"paper_id": "a", "quote": "for certain that the sample was lost on its way to us."}
EVERYWHERE = [{"paper_id": "a", "text": "x" * 990}]


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD[1], **changes}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD[1].items() if name != key}


def paper(**changes: Any) -> dict[str, Any]:
    return changed(papers=[{**PAPERS[0], **changes}, *PAPERS[1:]])


def evidence(**item: Any) -> dict[str, Any]:
    return changed(evidence=[item])


def about(**item: Any) -> dict[str, Any]:
    return evidence(paper_id="Mirbex-0", **item)


def offsets(start: Any, end: Any) -> dict[str, Any]:
    return about(start=start, end=end)


GOLD_IN_ALL = [{"paper_id": p["paper_id"], "quote": p["text"]} for p in PAPERS]
MANY = [{**PAPERS[0], "paper_id": f"p{i}", "text": f"{i} {PAPERS[0]['text']}"} for i in range(5)]
LINE = json.dumps(GOOD[1]).encode()
WHOLE = "(whole row)"

BROKEN: list[tuple[bytes | dict[str, Any], str, str]] = [
    # (line, field, a word of the reason)
    (b"question: what?", WHOLE, "not JSON"),
    (b"[1, 2]", WHOLE, "a list, not an object"),
    (b"{}", WHOLE, "empty object"),
    (LINE.replace(b"What", b"Wh\xe4t"), WHOLE, "not valid UTF-8"),
    (b'{"question": NaN}', WHOLE, "NaN"),
    (b"[" * 100_000 + b"]" * 100_000, WHOLE, "too deep"),
    (b'{"question": "' + b"x" * 1_100_000 + b'"}', WHOLE, "longer than 1 MB"),
    (b'{"question": ' + b"1" * 9000 + b"}", WHOLE, "not readable JSON"),
    (b'{"question": "a", "question": "b"}', WHOLE, "'question' twice"),
    (without("question"), "question", "missing"),
    (changed(question=""), "question", "is empty text"),
    (changed(question=" \n"), "question", "white space"),
    (changed(question=None), "question", "null"),
    (changed(question="a\0b"), "question", "NUL"),
    (changed(question="a\ud800"), "question", "surrogate"),
    ({**without("question"), "question": "q", "evidnce": 1}, "evidnce", "did you mean 'evidence'"),
    (changed(xyzzy=1), "xyzzy", "unknown key"),
    (changed(papers=MANY), "papers", "5 papers"),
    (changed(papers=[*PAPERS, PAPERS[0]]), "papers[3].paper_id", "already papers[0]"),
    (paper(text="x" * 1001), "papers[0].text", "1,001"),
    (paper(abstarct="a"), "papers[0].abstarct", "'abstract'"),
    (changed(evidence=[]), "evidence", "empty list"),
    (changed(evidence=["here"]), "evidence[0]", "not an object"),
    (
        evidence(alternatives=[QUOTE, {"paper_id": "Mirbex-0", "quote": 3}]),
        "evidence[0].alternatives[1].quote",
        "the number 3",
    ),
    (evidence(paper_id="Mirbex-7", quote=QUOTE["quote"]), "evidence[0]", "did you mean 'Mirbex-"),
    (evidence(quote="x" * 20), "evidence[0]", "names no paper"),
    (evidence(paper_id="a", document="b", quote="x" * 20), "evidence[0]", "a paper and a document"),
    (about(), "evidence[0]", "neither a quote"),
    (about(quote="x" * 20, start=0, end=20), "evidence[0]", "and also start and end"),
    (about(start=0), "evidence[0]", "only one"),
    (about(quote="Nobody ever wrote this."), "evidence[0].quote", "is not found"),
    (
        about(quote="scores 20 points on data set Mirbex. End."),
        "evidence[0].quote",
        "its numbers differ",
    ),
    (about(quote="Mirbex"), "evidence[0].quote", "6 characters"),
    (
        changed(papers=[{"paper_id": "a", "text": TWICE}], evidence=[AMBIGUOUS]),
        "evidence[0].quote",
        "ambiguous",
    ),
    (
        changed(papers=EVERYWHERE, evidence=[{"paper_id": "a", "start": 0, "end": 12}]),
        "evidence[0]",
        "82 places",
    ),
    (offsets(30, 10), "evidence[0]", "30 is not before end 10"),
    (offsets(0, 900), "evidence[0]", "900 exceeds"),
    (offsets(-5, 20), "evidence[0].start", "below 0"),
    (offsets(True, 20), "evidence[0].start", "true, not a whole"),
    (changed(evidence=GOLD_IN_ALL), "evidence", "3 papers"),
    (changed(split="trian"), "split", "did you mean 'train'"),
    (changed(documents=["a.md"]), "documents", "needs a folder"),
    (changed(**GOOD[0]), "question", "problems.jsonl:1"),
]


@pytest.mark.parametrize(("line", "field", "word"), BROKEN, ids=[row[2] for row in BROKEN])
def test_a_broken_row_is_rejected_alone_with_its_place(line, field, word, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.data.tables.MAX_MB", 1)
    found = read(write(tmp_path / "problems.jsonl", [GOOD[0], line, *GOOD[2:]]))
    faults = {fault.field: fault for fault in found.rejected}
    assert {fault.row for fault in found.rejected} == {"problems.jsonl:2"}
    assert len(found.problems) == len(GOOD) - 1
    assert word in faults[field].reason
    assert faults[field].remedy


def test_a_split_in_some_rows_only_rejects_the_others(tmp_path: Path) -> None:
    found = read(write(tmp_path / "problems.jsonl", [GOOD[0], changed(split="train"), *GOOD[2:]]))
    assert {fault.row[-1] for fault in found.rejected} == {"1", "3", "4"}


def test_a_wrong_key_hides_no_wrong_quote(tmp_path: Path) -> None:
    quoted = [{"paper_id": "Mirbex-0", "quote": "Nothing like this is in the paper."}]
    bad = changed(splitt="train", difficulty="brutal", evidence=quoted)
    found = read(write(tmp_path / "problems.jsonl", [GOOD[0], bad]))
    assert {fault.field for fault in found.rejected} == {
        "splitt",
        "difficulty",
        "evidence[0].quote",
    }
    assert found.rejected_rows == 1


KEYS = ["question", "papers", "evidence", "paper_id", "text", "quote", "start", "end"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(st.characters(), max_size=5), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), ANY) | ANY, st.sampled_from(KEYS[:3]))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_a_row_holds_it_is_rejected_in_printable_words(tmp_path, value, key):
    rows: list[Any] = [GOOD[0], json.dumps(value).encode(), changed(**{key: value})]
    found = read(write(tmp_path / "problems.jsonl", rows))
    assert GOOD[0]["question"] in [problem.question for problem in found.problems]
    for fault in found.rejected:
        assert str(fault).isprintable()
        assert fault.reason
        assert fault.remedy


# --- whole files ---


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("absent.jsonl", None, "does not exist"),
        (".", None, "is a folder"),
        ("problems.csv", b"question\n", "is not .jsonl"),
        ("problems.jsonl", b"", "contains no row"),
        ("problems.jsonl", json.dumps(GOOD).encode("utf-16"), "UTF-16"),
        ("problems.jsonl", b'{\n "question": "q"\n}', "without indentation"),
        ("problems.jsonl", b"\xe4\xe4\xe4\n\xe4", "in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_one_clear_error(tmp_path, name, content, word):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=word) as caught:
        read(path)
    assert name in str(caught.value)
