"""The source `files`: what a row may hold, and each way in which a row is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
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
from tasks.data.settings import AlignSettings, FilesSettings, SplitSettings
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
    return files.read_problem_file(named, AlignSettings(), SplitSettings(), BOUNDS)


def write(path: Path, lines: list[bytes | dict[str, Any]]) -> Path:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def texts(problem: Problem) -> list[str]:
    return [span.text for fact in problem.evidence for span in fact.spans]


def by_question(found: Found) -> dict[str, Problem]:
    return {problem.question: problem for problem in found.problems}


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
    named = row("Kalvot", problem_id="mine", collection_id="g", difficulty="hard", title=None)
    named.pop("title")
    problem = read(write(tmp_path / "problems.jsonl", [named, *GOOD[1:]])).problems[0]
    assert (problem.problem_id, problem.difficulty) == ("mine", "hard")


def test_without_an_id_the_content_gives_one(tmp_path: Path) -> None:
    first = read(write(tmp_path / "problems.jsonl", [*GOOD]))
    again = read(write(tmp_path / "other.jsonl", [*reversed(GOOD)]))
    ids = {problem.problem_id for problem in first.problems}
    assert len(ids) == 4
    assert {problem.problem_id for problem in again.problems} == ids


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(one).encode() for one in GOOD))
    assert len(read(path).problems) == 4


def test_problems_with_a_common_paper_are_one_collection(tmp_path: Path) -> None:
    second = row("Kalvot", question="And what else is there?")
    found = by_question(read(write(tmp_path / "problems.jsonl", [*GOOD, second])))
    one, two = found[GOOD[0]["question"]], found["And what else is there?"]
    assert (one.collection_id, one.split) == (two.collection_id, two.split)


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


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD[1], **changes}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD[1].items() if name != key}


def paper(**changes: Any) -> dict[str, Any]:
    return changed(papers=[{**PAPERS[0], **changes}, *PAPERS[1:]])


def evidence(**item: Any) -> dict[str, Any]:
    return changed(evidence=[item])


def offsets(start: Any, end: Any) -> dict[str, Any]:
    return evidence(paper_id="Mirbex-0", start=start, end=end)


GOLD_IN_ALL = [{"paper_id": p["paper_id"], "quote": p["text"]} for p in PAPERS]
MANY = [{**PAPERS[0], "paper_id": f"p{i}", "text": f"{i} {PAPERS[0]['text']}"} for i in range(5)]
LINE = json.dumps(GOOD[1]).encode()
WHOLE = "(whole row)"

BROKEN: dict[str, tuple[bytes | dict[str, Any], str, str, str]] = {
    # kind: (line, field, a word of the reason, a word of the remedy)
    "no JSON": (b"question: what?", WHOLE, "not JSON", "one object per line"),
    "a truncated line": (LINE[:-20], WHOLE, "not JSON", "cut off"),
    "two objects in a line": (LINE + LINE, WHOLE, "Extra data", "one object per line"),
    "an array": (b"[1, 2]", WHOLE, "a list, not an object", '{"question"'),
    "a number": (b"42", WHOLE, "the number 42", '{"question"'),
    "text": (b'"what?"', WHOLE, "the text 'what?'", '{"question"'),
    "null": (b"null", WHOLE, "null", '{"question"'),
    "an empty object": (b"{}", WHOLE, "empty object", "delete the line"),
    "no UTF-8": (
        LINE.replace(b"What", b"Wh\xe4t"),
        WHOLE,
        "not valid UTF-8",
        "save the file as UTF-8",
    ),
    "a BOM in the middle": (b"\xef\xbb\xbf" + LINE, WHOLE, "byte order mark", "delete it"),
    "NaN": (b'{"question": NaN}', WHOLE, "NaN", "delete it"),
    "Infinity": (b'{"question": -Infinity}', WHOLE, "-Infinity", "delete it"),
    "nested too deep": (b"[" * 100_000 + b"]" * 100_000, WHOLE, "too deep", "four levels"),
    "a huge line": (
        b'{"question": "' + b"x" * 1_100_000 + b'"}',
        WHOLE,
        "longer than 1 MB",
        "split",
    ),
    "a huge number": (b'{"question": ' + b"1" * 9000 + b"}", WHOLE, "not readable JSON", "number"),
    "a key twice": (b'{"question": "a", "question": "b"}', WHOLE, "'question' twice", "delete one"),
    "no question": (without("question"), "question", "missing", '"question": "..."'),
    "an empty question": (changed(question=""), "question", "is empty text", '"question": "..."'),
    "a blank question": (changed(question=" \n"), "question", "white space", '"question": "..."'),
    "a question of null": (changed(question=None), "question", "null", '"question": "..."'),
    "a question of a number": (changed(question=3), "question", "the number 3", "as text"),
    "a NUL in the question": (changed(question="a\0b"), "question", "NUL", "\\u0000"),
    "a lone surrogate": (changed(question="a\ud800"), "question", "surrogate", "\\ud8"),
    "a typo in a key": (
        {**without("question"), "question": "q", "evidnce": 1},
        "evidnce",
        "did you mean 'evidence'",
        "rename it",
    ),
    "an unknown key": (changed(xyzzy=1), "xyzzy", "unknown key", "valid keys are question, papers"),
    "no papers": (without("papers"), "papers", "missing", "folder of documents"),
    "papers empty": (changed(papers=[]), "papers", "empty list", '"paper_id"'),
    "papers no list": (changed(papers={"a": "b"}), "papers", "an object, not a list", '"paper_id"'),
    "a paper no object": (changed(papers=["text"]), "papers[0]", "not an object", '"paper_id"'),
    "too many papers": (changed(papers=MANY), "papers", "5 papers", "validate.max_papers"),
    "paper ids twice": (
        changed(papers=[*PAPERS, PAPERS[0]]),
        "papers[3].paper_id",
        "already papers[0]",
        "different id",
    ),
    "a paper without id": (
        changed(papers=[{"text": "t"}, *PAPERS]),
        "papers[0].paper_id",
        "missing",
        "id of the paper",
    ),
    "a paper id of a number": (paper(paper_id=7), "papers[0].paper_id", "the number 7", "as text"),
    "a paper without text": (
        changed(papers=[{"paper_id": "a"}, *PAPERS]),
        "papers[0].text",
        "missing",
        "text of the paper",
    ),
    "an empty text": (paper(text=""), "papers[0].text", "is empty text", "text of the paper"),
    "a text too long": (
        paper(text="x" * 1001),
        "papers[0].text",
        "1,001",
        "validate.max_text_chars",
    ),
    "a NUL in a text": (paper(text="a\0b"), "papers[0].text", "NUL", "\\u0000"),
    "a title of a list": (paper(title=[]), "papers[0].title", "a list, not text", "leave it out"),
    "a typo in a paper": (paper(abstarct="a"), "papers[0].abstarct", "'abstract'", "rename it"),
    "no evidence": (without("evidence"), "evidence", "missing", '"quote"'),
    "evidence empty": (changed(evidence=[]), "evidence", "empty list", '"quote"'),
    "evidence no list": (changed(evidence="here"), "evidence", "not a list", '"quote"'),
    "a fact no object": (changed(evidence=["here"]), "evidence[0]", "not an object", '"quote"'),
    "no alternatives": (evidence(alternatives=[]), "evidence[0].alternatives", "empty", '"quote"'),
    "alternatives beside a quote": (
        evidence(alternatives=[QUOTE], quote="x"),
        "evidence[0].quote",
        "cannot be combined",
        "move it to its object",
    ),
    "a broken alternative": (
        evidence(alternatives=[QUOTE, {"paper_id": "Mirbex-0", "quote": 3}]),
        "evidence[0].alternatives[1].quote",
        "the number 3",
        "quote the paper",
    ),
    "an unknown paper": (
        evidence(paper_id="Mirbex-7", quote=QUOTE["quote"]),
        "evidence[0]",
        "did you mean 'Mirbex-",
        "name one of its papers",
    ),
    "no paper named": (evidence(quote="x" * 20), "evidence[0]", "names no paper", '"document"'),
    "a paper and a document": (
        evidence(paper_id="a", document="b", quote="x" * 20),
        "evidence[0]",
        "a paper and a document",
        "either",
    ),
    "neither quote nor offsets": (
        evidence(paper_id="Mirbex-0"),
        "evidence[0]",
        "neither a quote",
        '"start" and "end"',
    ),
    "quote and offsets": (
        evidence(paper_id="Mirbex-0", quote="x" * 20, start=0, end=20),
        "evidence[0]",
        "and also start and end",
        "either",
    ),
    "start alone": (evidence(paper_id="Mirbex-0", start=0), "evidence[0]", "only one", "both"),
    "a quote that stands nowhere": (
        evidence(paper_id="Mirbex-0", quote="Nobody ever wrote this."),
        "evidence[0].quote",
        "is not found",
        "letter by letter",
    ),
    "a quote of another paper": (
        evidence(paper_id="Mirbex-0", quote="scores 20 points on data set Mirbex. End."),
        "evidence[0].quote",
        "its numbers differ",
        "it is in 'Mirbex-2'",
    ),
    "a quote too short": (
        evidence(paper_id="Mirbex-0", quote="Mirbex"),
        "evidence[0].quote",
        "6 characters",
        "rewards.min_span_chars",
    ),
    "an ambiguous quote": (
        changed(
            papers=[{"paper_id": "a", "text": TWICE}],
            evidence=[
                {"paper_id": "a", "quote": "for certain that the sample was lost on its way to us."}
            ],
        ),
        "evidence[0].quote",
        "ambiguous",
        "letter by letter",
    ),
    "a quote that stands everywhere": (
        changed(
            papers=[{"paper_id": "a", "text": "x" * 990}],
            evidence=[{"paper_id": "a", "quote": "x" * 12}],
        ),
        "evidence[0].quote",
        "82 places",
        "quote more",
    ),
    "offsets of what stands everywhere": (
        changed(
            papers=[{"paper_id": "a", "text": "x" * 990}],
            evidence=[{"paper_id": "a", "start": 0, "end": 12}],
        ),
        "evidence[0]",
        "82 places",
        "quote more",
    ),
    "start behind end": (offsets(30, 10), "evidence[0]", "30 is not before end 10", "one past the"),
    "start at end": (offsets(10, 10), "evidence[0]", "10 is not before", "characters from 0"),
    "end out of range": (offsets(0, 900), "evidence[0]", "900 exceeds", "count the"),
    "a negative start": (offsets(-5, 20), "evidence[0].start", "below 0", "from 0"),
    "a float as start": (
        offsets(0.0, 20),
        "evidence[0].start",
        "0.0, not a whole",
        "whole numbers",
    ),
    "true as start": (offsets(True, 20), "evidence[0].start", "true, not a whole", "whole numbers"),
    "text as end": (offsets(0, "20"), "evidence[0].end", "not a whole", "whole numbers"),
    "a span too short": (offsets(0, 5), "evidence[0]", "5 characters", "min_span_chars"),
    "more gold papers than one call hands out": (
        changed(evidence=GOLD_IN_ALL),
        "evidence",
        "3 papers",
        "env.limits.max_children=3",
    ),
    "an unknown split": (changed(split="trian"), "split", "did you mean 'train'", "validation"),
    "a split in some rows only": (changed(split="train"), "split", "missing", "every row"),
    "an unknown difficulty": (changed(difficulty="brutal"), "difficulty", "'brutal'", "medium"),
    "an id of a number": (changed(problem_id=1), "problem_id", "the number 1", "leave it out"),
    "an old key": (changed(group_id="g"), "group_id", "'collection_id'", "rename it"),
    "an empty collection": (
        changed(collection_id=""),
        "collection_id",
        "is empty text",
        "leave it out",
    ),
    "documents without a folder": (
        changed(documents=["a.md"]),
        "documents",
        "needs a folder",
        "DIR",
    ),
    "the same question about the same papers": (
        changed(**GOOD[0]),
        "question",
        "problems.jsonl:1",
        "delete one",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_row_is_rejected_alone_with_its_place_and_its_remedy(
    kind: str, tmp_path: Path
) -> None:
    line, field, reason, remedy = BROKEN[kind]
    rows: list[Any] = [GOOD[0], line, *GOOD[2:]]
    found = read(write(tmp_path / "problems.jsonl", rows), max_mb=1)
    faults = {fault.field: fault for fault in found.rejected}
    if kind == "a split in some rows only":  # here the broken rows are the others
        assert {fault.row[-1] for fault in found.rejected} == {"1", "3", "4"}
    else:
        assert {fault.row for fault in found.rejected} == {"problems.jsonl:2"}
        assert [one.question for one in found.problems] == [
            one["question"] for one in (GOOD[0], *GOOD[2:])
        ]
    assert reason in faults[field].reason
    assert remedy in faults[field].remedy


def test_at_least_forty_kinds_are_told_apart() -> None:
    assert len(BROKEN) >= 40


def test_all_faults_of_a_row_are_told_at_once(tmp_path: Path) -> None:
    bad = changed(question=3, split="trian", evidence=[{"paper_id": "Mirbex-0"}])
    found = read(write(tmp_path / "problems.jsonl", [GOOD[0], bad]))
    assert [fault.field for fault in found.rejected] == ["question", "evidence[0]", "split"]
    assert found.rejected_rows == 1


def test_the_second_of_two_equal_ids_is_rejected(tmp_path: Path) -> None:
    rows: list[Any] = [{**one, "problem_id": "same"} for one in GOOD[:2]]
    found = read(write(tmp_path / "problems.jsonl", [*rows, *GOOD[2:]]))
    (fault,) = found.rejected
    assert (fault.row, fault.field) == ("problems.jsonl:2", "problem_id")
    assert "problems.jsonl:1" in fault.reason
    assert len(found.problems) == 3


def test_a_row_of_test_that_shares_a_paper_with_train_is_rejected(tmp_path: Path) -> None:
    shared = row("Kalvot", question="Say something else entirely.")
    splits = ["train", "train", "validation", "test", "test"]
    rows: list[Any] = [
        {**one, "split": split} for one, split in zip([*GOOD, shared], splits, strict=True)
    ]
    found = read(write(tmp_path / "problems.jsonl", rows))
    (fault,) = found.rejected
    assert (fault.row, fault.field) == ("problems.jsonl:5", "split")
    assert "shares a paper" in fault.reason
    assert "problems.jsonl:1" in fault.reason
    assert "train" in fault.remedy


KEYS = [
    "question",
    "papers",
    "evidence",
    "paper_id",
    "text",
    "quote",
    "start",
    "end",
    "alternatives",
]
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
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_a_row_holds_it_is_rejected_in_printable_words(
    tmp_path: Path, value: Any, key: str
) -> None:
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
        ("problems.csv", b"question\n", "is neither .jsonl"),
        ("problems.jsonl", b"", "contains no row"),
        ("problems.jsonl", b"\n\n", "contains no row"),
        ("problems.jsonl", json.dumps(GOOD).encode("utf-16"), "UTF-16"),
        ("problems.jsonl", json.dumps(GOOD).encode("utf-16-le"), "UTF-16"),
        ("problems.jsonl", b'{\n "question": "q"\n}', "without indentation"),
        ("problems.jsonl", b"\xe4\xe4\xe4\n\xe4", "in UTF-8"),
        ("problems.parquet", b"PAR1 no", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes | None, word: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=word) as caught:
        read(path)
    assert name in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        read(tmp_path)


# --- Parquet ---


def as_text(one: dict[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(value) if name in ("papers", "evidence") else value
        for name, value in one.items()
    }


@pytest.mark.parametrize("shape", [dict, as_text])
def test_parquet_holds_lists_or_json_text(
    tmp_path: Path, shape: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    path = tmp_path / "problems.parquet"
    rows = [{**shape(one), "difficulty": None} for one in GOOD]
    pd.DataFrame(rows, index=list("abcd")).to_parquet(path)
    found = read(path)
    assert found.rejected == []
    jsonl = read(write(tmp_path / "problems.jsonl", [*GOOD]))
    assert found.problems == jsonl.problems


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("papers", pa.array([1] * 4), "the number 1, not a list"),
        ("papers", pa.array(["[{"] * 4), "not JSON"),
        ("evidence", pa.array([{"a": 1}] * 4), "an object, not a list"),
        ("question", pa.array([1.5] * 4), "the number 1.5, not text"),
        ("question", pa.array([None] * 4, pa.string()), "missing"),
        ("question", pa.array([b"q"] * 4), "not text"),
        ("split", pa.array([True] * 4), "true"),
    ],
)
def test_wrong_column_types_are_told_for_each_row(
    tmp_path: Path, column: str, values: pa.Array, reason: str
) -> None:
    table = pa.Table.from_pylist([as_text(one) for one in GOOD])
    if column in table.column_names:
        table = table.drop_columns([column])
    pq.write_table(table.append_column(column, values), tmp_path / "problems.parquet")
    found = read(tmp_path / "problems.parquet")
    assert [fault.row for fault in found.rejected] == [f"problems.parquet:{i}" for i in range(1, 5)]
    assert {fault.field for fault in found.rejected} == {column}
    assert all(reason in fault.reason for fault in found.rejected)


def test_parquet_without_a_question_is_one_error(tmp_path: Path) -> None:
    pd.DataFrame({"query": ["q"]}).to_parquet(tmp_path / "problems.parquet")
    with pytest.raises(SourceError, match="no column 'question'"):
        read(tmp_path / "problems.parquet")
