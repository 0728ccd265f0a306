"""Problems from a clone of the trials: what is left out is counted and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.trials import collect, opponents

FOUND = "Pain was significantly lower with tea than with water (P = 0.01)."
ALSO = "The tea group reported less pain at each visit of the study."
TEXT = (
    f"TITLE:\nTea number {{}} for pain\n\nBODY.RESULTS:\n{FOUND} {ALSO}\nRow\n1.2\n3.4 (2.2)\nEnd"
)
SPLITS = {"train": range(1, 10), "validation": range(21, 29), "test": range(31, 39)}
ALL = [number for numbers in SPLITS.values() for number in numbers]


class Clone:
    """A made clone, one prompt an article, each with the number of its article."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "annotations"
        self.texts = {number: TEXT.format(number) for number in ALL}
        asked = {"Outcome": "pain", "Intervention": "tea", "Comparator": "water"}
        self.prompts = pd.DataFrame({"PromptID": ALL, "PMCID": ALL, **asked})
        self.marks = pd.DataFrame([self.mark(number, FOUND) for number in ALL])
        self.readme = "About\n# Caveat:\n### Incorrect:\n900, 901"

    def mark(self, number: int, passage: str, **changed: Any) -> dict[str, Any]:
        start = self.texts[number].index(passage)
        return {
            "UserID": 0, "PromptID": number, "PMCID": number, "Valid Label": True,
            "Valid Reasoning": True, "Label Code": 1, "Annotations": passage,
            "Evidence Start": start, "Evidence End": start + len(passage), **changed,
        }  # fmt: skip

    def add(self, number: int, passage: str, **changed: Any) -> None:
        self.marks.loc[len(self.marks)] = self.mark(number, passage, **changed)

    def write(self) -> Path:
        for name in ("txt_files", "splits"):
            (self.folder / name).mkdir(parents=True)
        for number, text in self.texts.items():
            raw = text.encode(errors="surrogateescape")
            (self.folder / f"txt_files/PMC{number}.txt").write_bytes(raw)
        for split, ids in SPLITS.items():
            (self.folder / f"splits/{split}_article_ids.txt").write_text("\n".join(map(str, ids)))
        self.prompts.to_csv(self.folder / "prompts_merged.csv", index=False)
        self.marks.to_csv(self.folder / "v2_annotations.csv", index=False)
        (self.folder / "README.md").write_text(self.readme)
        return self.folder.parent


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_rows_have_levels_evidence_and_splits(clone: Clone, tmp_path: Path) -> None:
    collection = collect.read(clone.write())
    rows = collect.rows(collection)
    assert not collection.left_out
    assert [len(row["documents"]) for row in rows if row["split"] == "test"] == [1, 4, 8] * 8
    train = [row for row in rows if row["split"] == "train"]
    assert len(train) == 9
    assert {row["difficulty"] for row in train} == set(collect.LEVELS)
    for row in rows:
        (fact,) = row["evidence"]
        assert fact["document"] in row["documents"]
        assert fact["quote"] == FOUND
        assert row["question"] == "How does tea compare with water in its effect on pain?"
        assert {int(name[3:-4]) for name in row["documents"]} <= set(SPLITS[row["split"]])
    collect.write(collection, rows, tmp_path / "out")
    written = (tmp_path / "out/trials.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows
    assert (tmp_path / "out/documents/PMC1.txt").read_text() == clone.texts[1]
    start = clone.texts[1].index(FOUND)
    doctors = json.loads((tmp_path / "out/doctors.json").read_text())
    assert doctors["1"] == [[[start, start + len(FOUND)]]]


def _edit(frame: str, number: int, column: str, value: Any) -> Callable[[Clone], None]:
    def change(clone: Clone) -> None:
        table = getattr(clone, frame)
        table[column] = table[column].astype(object)
        table.loc[table["PromptID"] == number, column] = value

    return change


LEFT_OUT: list[tuple[Callable[[Clone], object], str]] = [
    (lambda c: setattr(c, "readme", "x\n# Caveat:\n### Somewhat malformed:\n1"), "flagged"),
    (lambda c: c.texts.pop(1), "article is missing"),
    (lambda c: c.texts.update({1: "Fi\udce8vre"}), "article is not UTF-8"),
    (lambda c: c.texts.update({1: TEXT.format(1)[: TEXT.index(FOUND)]}), "beyond its article"),
    (lambda c: c.texts.update({1: "X" + TEXT.format(1)}), "not at its place"),
    (_edit("marks", 1, "Evidence Start", -1), "place of its evidence is not known"),
    (_edit("marks", 1, "Evidence Start", "soon"), "place of its evidence is not known"),
    (_edit("marks", 1, "Valid Reasoning", False), "not confirmed"),
    (_edit("marks", 1, "PromptID", 77), "no doctor annotated it"),
    (_edit("prompts", 1, "Outcome", "p"), "no word of two letters"),
    (_edit("prompts", 1, "Outcome", "pain " * 120), "more than 600 characters"),
    (_edit("prompts", 1, "PMCID", 99), "in no split"),
    (lambda c: c.add(1, ALSO, UserID=3, **{"Label Code": 0}), "doctors disagree"),
]


@pytest.mark.parametrize(("change", "reason"), LEFT_OUT)
def test_what_is_left_out_is_counted_by_reason(clone, change, reason):
    change(clone)
    collection = collect.read(clone.write())
    ((told, ids),) = collection.left_out.items()
    assert reason in told
    assert ids == [1]
    assert len(collection.prompts) == len(ALL) - 1
    lines = list(collect.report(collection, collect.rows(collection)))
    assert f"left out: 1 prompts, {told} (1)" in lines


def test_a_question_that_occurs_twice_is_asked_once(clone: Clone) -> None:
    clone.prompts.loc[len(clone.prompts)] = {
        "PromptID": 500, "PMCID": 1, "Outcome": "PAIN", "Intervention": "tea", "Comparator": "water"
    }  # fmt: skip
    clone.add(1, ALSO, PromptID=500)
    left_out = collect.read(clone.write()).left_out
    assert left_out == {"it asks what another prompt asks about the same article": [500]}


def test_evidence_of_several_doctors_is_joined_and_that_in_tables_is_told(clone: Clone) -> None:
    clone.add(1, f"{FOUND} {ALSO}", UserID=3)
    clone.add(1, "3.4 (2.2)\nEnd", UserID=3)  # too short to count
    clone.marks = clone.marks[clone.marks["PromptID"] != 2].reset_index(drop=True)
    clone.add(2, f"{ALSO}\nRow\n1.2\n3.4 (2.2)")
    collection = collect.read(clone.write())
    prompts = {one.prompt_id: one for one in collection.prompts}
    start = clone.texts[1].index(FOUND)
    assert prompts[1].gold == [(start, start + len(f"{FOUND} {ALSO}"))]
    assert set(prompts[1].marked) == {"0", "3"}
    assert 2 in prompts
    told = list(collect.report(collection, []))
    assert "kept: 1 prompts, all of its evidence crosses lines, as in a table (2)" in told
    short = "a part of whose evidence is left out: its evidence is below 25 characters"
    assert f"kept: 1 prompts, {short} (1)" in told


def test_too_few_articles_of_a_topic_leave_levels_out(clone: Clone) -> None:
    for number in (21, 22):
        del clone.texts[number]
    collection = collect.read(clone.write())
    held = {row["difficulty"] for row in collect.rows(collection) if row["split"] == "validation"}
    assert held == {"easy", "medium"}
    assert len(collection.left_out["too few articles of its topic for 8 papers"]) == 6


@pytest.mark.parametrize("name", ["splits/test_article_ids.txt", "txt_files"])
def test_an_incomplete_clone_is_one_message(clone: Clone, name: str) -> None:
    source = clone.write()
    (clone.folder / name).rename(clone.folder / "elsewhere")
    with pytest.raises(collect.CollectError, match=f"annotations has no {name}"):
        collect.read(source)


OTHER = {
    "another table": ("prompts_merged.csv", b"a,b\n1,2\n", "is not the table"),
    "a table in latin-1": ("prompts_merged.csv", b"\xe9", "is not the table"),
    "no flags": ("README.md", b"# Caveat: 3 groups", "lists no incorrect prompts"),
    "flags in UTF-16": ("README.md", "é".encode("utf-16"), "README.md is not UTF-8"),
    "an empty split": ("splits/test_article_ids.txt", b"", "split test is left .8: its article is"),
}


@pytest.mark.parametrize(("name", "content", "said"), OTHER.values(), ids=OTHER)
def test_another_file_is_one_message(clone: Clone, name: str, content: bytes, said: str) -> None:
    source = clone.write()
    (clone.folder / name).write_bytes(content)
    with pytest.raises(collect.CollectError, match=said):
        collect.read(source)


def test_a_doctor_is_measured_against_the_others() -> None:
    one, three = [[0, 10]], [[5, 15]]
    same, _, last = opponents.doctors([one, one, three])
    assert (same.recall, last.f1, last.recall) == (10 / 15, 0.5, 0.5)
    assert list(opponents.doctors([one])) == []
