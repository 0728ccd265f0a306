"""The source `hub`: the real client against a small Hub, and local copies of the same form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from helpers.space_hub import SHA, TOKEN, serve_spaces

from tasks import prepare
from tasks.data import hub
from tasks.data.rows import Found, ProblemBounds
from tasks.data.settings import HubSettings, SplitSettings

ROOT = Path(__file__).parents[2]
BOUNDS = ProblemBounds(min_span_chars=12, max_text_chars=1000, max_papers=8, max_gold_papers=8)


def row(topic: str, gold: int = 1) -> dict[str, Any]:
    """A question about `gold` of five papers, in the data set's own form."""
    sentence = f"{topic} was seen in {topic}land"
    papers, evidence = [], []
    for i in range(5):
        text = f"Preface of {topic} number {i} here.\n{sentence} {i}\ntimes. The end."
        about = {"title": f"On {topic}", "abstract": "short", "text": text}
        papers.append({"paperId": f"{topic}-{i}", **about})
        selections = [{"text": f"{sentence} {i} times."}]
        evidence.append({"paperId": f"{topic}-{i}", "selections": selections})
    lists = {"papers": json.dumps(papers), "evidence": json.dumps(evidence[:gold])}
    return {"question": f"Where was {topic} seen?", **lists}


TOPICS = ("Kalvot", "Mirbex", "Dorvek", "Jedgeb")
ROWS = [row(topic, gold=n) for topic, n in zip(TOPICS, (1, 2, 3, 5), strict=True)]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in rows).encode()


DATA: dict[str, dict[str, bytes]] = {
    "org/empty": {"README.md": b"---\nlicense: mit\n---\n"},
    "org/garbage": {"data.jsonl": b'{"question": \n\xff'},
}
for name in ("good", "gated", "gated-opened", "flaky", "commit-flaky", "down", "commit-down"):
    DATA[f"org/{name}"] = {"data.jsonl": jsonl(ROWS)}

# HF_ENDPOINT is read when the client is imported: each process knows one Hub.
CODE = """
import json, os, sys, time
from env.errors import SourceError
from tasks.data import hub
from tasks.data.settings import HubSettings
time.sleep = lambda seconds: None
for function, name, token, revision in json.load(sys.stdin):
    os.environ["HF_TOKEN"] = token
    try:
        found = getattr(hub, function)(HubSettings(name=f"org/{name}", revision=revision))
        told = ["commit", found] if isinstance(found, str) else ["rows", str(found.num_rows)]
    except SourceError as error:
        told = [type(error).__name__, str(error)]
    print("=>", json.dumps(told))
"""

CASES = {
    # (function of `tasks.data.hub`, name, token, revision): what it gives, and a part of it
    ("load", "good", "", None): ("rows", "4"),
    ("load", "flaky", "", None): ("rows", "4"),
    ("load", "gated-opened", TOKEN, None): ("rows", "4"),
    ("load", "gated", "", None): ("SourceError", "HF_TOKEN, which is not set"),
    ("load", "absent", "", None): ("SourceError", "doesn't exist on the Hub"),
    ("load", "absent-with-token", TOKEN, None): ("SourceError", "HF_TOKEN, which is set"),
    ("load", "empty", "", None): ("SourceError", "doesn't contain any data files"),
    ("load", "garbage", "", None): ("SourceError", "JSON parse error"),
    ("load", "good", "", "v9"): ("SourceError", "v9"),
    ("load", "down", "", None): ("SourceUnreachable", "503"),
    ("commit", "good", "", None): ("commit", SHA),
    ("commit", "commit-flaky", "", None): ("commit", SHA),
    ("commit", "absent", "", None): ("SourceError", "HF_TOKEN"),
    ("commit", "good", "", "v9"): ("SourceError", "HF_TOKEN"),
    ("commit", "commit-down", "", None): ("SourceUnreachable", "503"),
}


class Told(NamedTuple):
    answers: dict[tuple[Any, ...], tuple[str, str]]
    output: str
    shown: list[tuple[str, str | None]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Result of the real client for each case, in a process of its own."""
    with serve_spaces(tmp_path_factory.mktemp("hub")) as server:
        for name, files in DATA.items():
            server.add("dataset", name, files, gated="gated" in name)
        for name in ("flaky", "commit-flaky"):
            server.faults[f"/api/datasets/org/{name}"] = [503, 503]
        for name in ("down", "commit-down"):
            server.faults[f"/api/datasets/org/{name}"] = ["always", 503]
        plain = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        home = str(tmp_path_factory.mktemp("hf"))
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            input=json.dumps(list(CASES)),
            env={**plain, "HF_ENDPOINT": server.url, "HF_HOME": home, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    lines = [line[3:] for line in done.stdout.splitlines() if line.startswith("=> ")]
    answers = dict(zip(CASES, map(json.loads, lines), strict=True))
    return Told(answers, done.stdout + done.stderr, server.shown)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_the_client_reads_or_gives_one_clear_message(told: Told, case: tuple[Any, ...]) -> None:
    kind, word = CASES[case]
    assert told.answers[case][0] == kind
    assert word in told.answers[case][1]
    assert "\n" not in told.answers[case][1]


def test_the_token_is_sent_and_never_told(told: Told) -> None:
    names = [name for _, name, token, _ in CASES if token]
    sent = {token for path, token in told.shown if any(name in path for name in names)}
    assert sent == {f"Bearer {TOKEN}"}
    assert TOKEN not in told.output


# --- a local file or folder of the same form ---


def read(path: Path) -> Found:
    return prepare.find(hub.read_data_set(HubSettings(name=str(path))), SplitSettings(), BOUNDS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    writers: dict[str, Callable[[], Any]] = {
        ".jsonl": lambda: path.write_bytes(jsonl(rows)),
        ".json": lambda: path.write_text(json.dumps(rows)),
        ".parquet": lambda: pd.DataFrame(rows).to_parquet(path),
        ".csv": lambda: pd.DataFrame(rows).to_csv(path, index=False),
    }
    writers[path.suffix]()
    return path


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "csv"])
def test_a_local_file_gives_the_problems_of_the_data_set(tmp_path: Path, ending: str) -> None:
    found = read(write(tmp_path / f"data.{ending}", ROWS))
    assert found.rejected == []
    assert [(len(one.evidence), one.tier, one.difficulty) for one in found.problems] == [
        (1, "singleton", "easy"),
        (2, "focused", "medium"),
        (3, "mid_range", "hard"),
        (5, "wide_net", "hard"),
    ]


def test_a_file_that_changed_is_read_anew_whatever_its_time_says(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for topic in TOPICS[:2]:
        write(path, [row(topic)])
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert [one.question for one in read(path).problems] == [f"Where was {topic} seen?"]


NONE_SELECTED = '[{"paperId": "Kalvot-0", "selections": []}]'
UNKNOWN_PAPER = '[{"paperId": "Kalvot-9", "selections": [{"text": "Preface of Kalvot"}]}]'


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        ({"papers": "[{"}, "papers", "not JSON"),
        ({"papers": '[{"text": "t"}]'}, "papers[0].paperId", "missing"),
        ({"evidence": NONE_SELECTED}, "evidence[0].selections", "empty list"),
        ({"evidence": UNKNOWN_PAPER}, "evidence[0].selections[0]", "did you mean"),
        ({"question": " "}, "question", "white space"),
    ],
)
def test_a_broken_row_is_rejected_alone(tmp_path, change, field, word):
    rows = [ROWS[1], {**ROWS[0], **change}, *ROWS[2:]]
    found = read(write(tmp_path / "data.jsonl", rows))
    (fault,) = found.rejected
    assert (fault.row, fault.field.removesuffix(".quote")) == ("data.jsonl:2", field)
    assert word in fault.reason
    assert fault.remedy
    assert len(found.problems) == 3
