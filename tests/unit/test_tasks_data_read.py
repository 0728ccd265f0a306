"""The source `files`: what a row may hold, and each way in which a row is broken."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.own_problems import read_own
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env.errors import SourceError
from env.problems.schema import Problem
from env.prompts import cell_message
from env.settings import LimitSettings
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1
from tasks.data.rows import Found, ProblemBounds

BOUNDS = ProblemBounds(min_span_chars=12, max_text_chars=1000, max_papers=4, max_gold_papers=2)
REWARDS = RewardSettings()
TOPICS = ("Kalvot", "Mirbex", "Dorvek", "Jedgeb")


def row(topic: str, **changes: Any) -> dict[str, Any]:
    """A good row: a question about three papers, its fact in the first one."""
    facts = [f"{topic} scores {i}0 points on data set {topic}." for i in range(3)]
    papers = [{"paper_id": f"{topic}-{i}", "text": f"{one} End."} for i, one in enumerate(facts)]
    evidence = [{"paper_id": f"{topic}-0", "quote": facts[0]}]
    return {"question": f"What about {topic}?", "papers": papers, "evidence": evidence, **changes}


GOOD = [row(topic) for topic in TOPICS]


def read(path: Path, *lines: bytes | dict[str, Any]) -> Found:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (path / "problems.jsonl").write_bytes(b"\n".join(raw) + b"\n")
    return read_own(BOUNDS, path=path / "problems.jsonl")


def texts(problem: Problem) -> list[str]:
    return [span.text for fact in problem.evidence for span in fact.spans]


# --- good rows ---


def test_rows_become_problems(tmp_path: Path) -> None:
    alternatives = [
        {"paper_id": "Kalvot-1", "start": 0, "end": 23},
        {"paper_id": "Kalvot-0", "quote": "Kalvot scores 00\n points on"},
    ]
    first = row("Kalvot", evidence=[{"alternatives": alternatives}], split="test")
    second = {**GOOD[1], "problem_id": "mine", "difficulty": "hard", "split": "train"}
    found = read(tmp_path, first, second, *[{**one, "split": "validation"} for one in GOOD[2:]])
    assert found.rejected == []
    assert [problem.question for problem in found.problems] == [one["question"] for one in GOOD]
    one, two, *_ = found.problems
    assert [texts(one), texts(two)] == [
        ["Kalvot scores 10 points", "Kalvot scores 00 points on"],
        ["Mirbex scores 00 points on data set Mirbex."],
    ]
    assert (len(one.evidence), one.tier, one.split) == (1, "focused", "test")
    assert (two.problem_id, two.difficulty, two.split) == ("mine", "hard", "train")
    assert (found.quotes.exact, found.quotes.normalised, found.quotes.offsets) == (3, 1, 1)


def test_chat_tokens_are_split_so_that_a_copy_of_what_is_read_still_counts(tmp_path: Path) -> None:
    text = "It begins </s> here. A turn ends with <|im_end|> or [/INST], as in ChatML."
    fact = "A turn ends with <|im_end|> or [/INST], as in ChatML."
    papers = [{"paper_id": "p", "text": text}]
    at = {"start": text.index(fact), "end": len(text)}
    places = [{"paper_id": "p", "quote": fact}, {"paper_id": "p", **at}]
    rows = [row("x", question=f"{one}?", papers=papers, evidence=[one]) for one in places]
    for problem in read(tmp_path, *rows, *GOOD).problems[:2]:
        shown = cell_message(problem.texts["p"], 0, [], "", LimitSettings())
        quote = shown[shown.index("A turn") :]
        assert quote == "A turn ends with < |im_end|> or [ /INST], as in ChatML."
        assert texts(problem) == [quote]
        assert span_f1(locate([quote], problem.texts, REWARDS).retrieved, problem.places).f1 == 1


# --- broken rows: each is rejected alone ---

PAPERS = GOOD[1]["papers"]
QUOTE = GOOD[1]["evidence"][0]


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD[1], **changes}


def paper(**changes: Any) -> dict[str, Any]:
    return changed(papers=[{**PAPERS[0], **changes}, *PAPERS[1:]])


def evidence(**item: Any) -> dict[str, Any]:
    return changed(evidence=[item])


def about(**item: Any) -> dict[str, Any]:
    return evidence(paper_id="Mirbex-0", **item)


def inside(text: str, **item: Any) -> dict[str, Any]:
    return changed(papers=[{"paper_id": "a", "text": text}], evidence=[{"paper_id": "a", **item}])


GOLD_IN_ALL = [{"paper_id": p["paper_id"], "quote": p["text"]} for p in PAPERS]
MANY = [{**PAPERS[0], "paper_id": f"p{i}", "text": f"{i} {PAPERS[0]['text']}"} for i in range(5)]
LINE = json.dumps(GOOD[1]).encode()
WHOLE = "(whole row)"
QUOTED = "evidence[0].quote"
KEYS_90_000 = b'":0,"'.join(b"%x" % name for name in range(90_000))
NUMBER = {"alternatives": [QUOTE, {"paper_id": "Mirbex-0", "quote": 3}]}

BROKEN: list[tuple[bytes | dict[str, Any], str, str]] = [
    # (line, field, a word of the reason)
    (b"question: what?", WHOLE, "not JSON"),
    (b"[1, 2]", WHOLE, "a list, not an object"),
    (b'{"%s":0,"15f8f":0}' % KEYS_90_000, WHOLE, "'15f8f' twice"),
    (LINE.replace(b"What", b"Wh\xe4t"), WHOLE, "not valid UTF-8"),
    (b"\xef\xbb\xbf" + LINE, WHOLE, "BOM"),
    (b'{"question": "' + b"x" * 1_100_000 + b'"}', WHOLE, "longer than 1 MB"),
    (b'{"question": ' + b"1" * 9000 + b"}", WHOLE, "digits"),
    (b'{"question": NaN}', WHOLE, "NaN"),
    (b"[" * 100_000 + b"]" * 100_000, WHOLE, "too deep"),
    (b'{"question": "a", "question": "b"}', WHOLE, "'question' twice"),
    ({"papers": PAPERS, "evidence": [QUOTE]}, "question", "missing"),
    (changed(question=" \n"), "question", "white space"),
    (changed(question=None), "question", "null, not text"),
    (changed(question="a\0b"), "question", "NUL"),
    (changed(question="a\ud800"), "question", "surrogate"),
    (changed(evidnce=1), "evidnce", "did you mean 'evidence'"),
    (changed(xyzzy=1), "xyzzy", "unknown key"),
    (changed(papers=MANY), "papers", "5 papers"),
    (changed(papers=[*PAPERS, PAPERS[0]]), "papers[3].paper_id", "already papers[0]"),
    (paper(text="x" * 1001), "papers[0].text", "1,001"),
    (paper(abstarct="a"), "papers[0].abstarct", "'abstract'"),
    (changed(evidence=[]), "evidence", "empty list"),
    (changed(evidence=["here"]), "evidence[0]", '"here", not an object'),
    (changed(evidence=[NUMBER]), "evidence[0].alternatives[1].quote", "3, not text"),
    (about(alternatives=[QUOTE]), "evidence[0]", "other keys"),
    (evidence(paper_id="Mirbex-7", quote=QUOTE["quote"]), "evidence[0]", "did you mean 'Mirbex-"),
    (evidence(quote="x" * 20), "evidence[0]", "names no paper"),
    (evidence(paper_id="a", document="b", quote="x" * 20), "evidence[0]", "a paper and a document"),
    (about(), "evidence[0]", "neither a quote"),
    (about(quote="x" * 20, start=0, end=20), "evidence[0]", "and also start and end"),
    (about(start=0), "evidence[0]", "only one"),
    (about(quote="Mirbex scored 00 points on data set Mirbex."), QUOTED, "is not found"),
    (about(quote="Mirbex"), QUOTED, "6 characters"),
    (inside("x" * 990, start=0, end=12), "evidence[0]", "82 places"),
    (about(start=30, end=10), "evidence[0]", "30 is not before end 10"),
    (about(start=0, end=900), "evidence[0]", "900 exceeds"),
    (about(start=-5, end=20), "evidence[0].start", "below 0"),
    (about(start=True, end=20), "evidence[0].start", "true, not a whole"),
    (changed(evidence=GOLD_IN_ALL), "evidence", "3 papers"),
    (changed(split="trian"), "split", "did you mean 'train'"),
    (changed(documents=["a.md"]), "documents", "needs a folder"),
    (changed(**GOOD[0]), "question", "problems.jsonl:1"),
]


@pytest.mark.parametrize(("line", "field", "word"), BROKEN, ids=[row[2] for row in BROKEN])
def test_a_broken_row_is_rejected_alone_with_its_place(line, field, word, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.data.read.MAX_MB", 1)
    began = time.process_time()
    found = read(tmp_path, GOOD[0], line, *GOOD[2:])
    assert time.process_time() - began < 5  # keys that are each compared with all others take 90 s
    faults = {fault.field: fault for fault in found.rejected}
    assert {fault.row for fault in found.rejected} == {"problems.jsonl:2"}
    assert len(found.problems) == len(GOOD) - 1
    assert word in faults[field].reason
    assert faults[field].remedy


def test_a_split_in_some_rows_only_rejects_the_others(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD[0], changed(split="train"), *GOOD[2:])
    assert {fault.row[-1] for fault in found.rejected} == {"1", "3", "4"}


def test_a_wrong_key_hides_no_wrong_quote(tmp_path: Path) -> None:
    quoted = [{"paper_id": "Mirbex-0", "quote": "Nothing like this is in the paper."}]
    found = read(tmp_path, GOOD[0], changed(splitt="train", difficulty="brutal", evidence=quoted))
    assert {fault.field for fault in found.rejected} == {"splitt", "difficulty", QUOTED}
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
    found = read(tmp_path, GOOD[0], json.dumps(value).encode(), changed(**{key: value}))
    assert GOOD[0]["question"] in [problem.question for problem in found.problems]
    for fault in found.rejected:
        assert str(fault).isprintable()
        assert fault.reason
        assert fault.remedy


# --- whole files ---


UNREADABLE = [
    ("absent.jsonl", None, "does not exist"),
    (".", None, "is a folder"),
    ("problems.csv", b"question\n", "is not .jsonl"),
    ("problems.jsonl", b"", "contains no row"),
    ("problems.jsonl", json.dumps(GOOD).encode("utf-16"), "UTF-16"),
    ("problems.jsonl", b"\xe4\xe4\xe4\n\xe4", "in UTF-8"),
    ("problems.jsonl", b'{\n "question": "q"\n}', "without indentation"),
]


@pytest.mark.parametrize(("name", "content", "word"), UNREADABLE)
def test_a_file_that_cannot_be_read_at_all_is_one_clear_error(tmp_path, name, content, word):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=word) as caught:
        read_own(BOUNDS, path=path)
    assert name in str(caught.value)
