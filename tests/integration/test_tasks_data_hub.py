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

from tasks.data import hub
from tasks.data.settings import HubSettings, SplitSettings
from tasks.data.source import Found, ProblemBounds

ROOT = Path(__file__).parents[2]
BOUNDS = ProblemBounds(min_span_chars=12, max_text_chars=1000, max_papers=8, max_gold_papers=8)


def row(topic: str, gold: int = 1) -> dict[str, Any]:
    """A question about `gold` of four papers, in the data set's own form."""
    sentence = f"{topic} was seen in {topic}land"
    papers = [
        {
            "paperId": f"{topic}-{i}",
            "title": f"On {topic}",
            "abstract": "short",
            "text": f"Preface of {topic} number {i} here.\n{sentence} {i}\ntimes. The end.",
        }
        for i in range(5)
    ]
    evidence = [
        {"paperId": f"{topic}-{i}", "selections": [{"text": f"{sentence} {i} times."}]}
        for i in range(gold)
    ]
    lists = {"papers": json.dumps(papers), "evidence": json.dumps(evidence)}
    return {"question": f"Where was {topic} seen?", **lists}


TOPICS = ("Kalvot", "Mirbex", "Dorvek", "Jedgeb")
ROWS = [row(topic, gold=n) for topic, n in zip(TOPICS, (1, 2, 3, 5), strict=True)]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in rows).encode()


DATA: dict[str, dict[str, bytes]] = {
    "org/good": {"data.jsonl": jsonl(ROWS), "README.md": b"---\nlicense: mit\n---\n"},
    **{
        f"org/{name}": {"data.jsonl": jsonl(ROWS)}
        for name in ("gated", "gated-opened", "flaky", "commit-flaky", "down", "commit-down")
    },
    "org/empty": {"README.md": b"---\nlicense: mit\n---\n"},
    "org/garbage": {"data.jsonl": b'{"question": \n\xff'},
}

# HF_ENDPOINT is read when the client is imported: each process knows one Hub.
CODE = """
import json, os, sys, time
from env.errors import SourceError
from tasks.data import hub
from tasks.data.settings import HubSettings
time.sleep = lambda seconds: None
for function, settings, token in json.load(sys.stdin):
    os.environ["HF_TOKEN"] = token
    try:
        found = getattr(hub, function)(HubSettings(**settings))
        told = ["commit", found] if isinstance(found, str) else ["rows", found.num_rows]
    except SourceError as error:
        told = [type(error).__name__, str(error)]
    print("=>", json.dumps(told))
"""


def case(name: str, function: str = "load", token: str = "", **settings: str) -> list[Any]:
    """Function of `tasks.data.hub`, its settings and the token of the environment."""
    return [function, {"name": f"org/{name}", **settings}, token]


CASES = {
    **{name: case(name) for name in ("good", "flaky", "gated", "absent", "empty", "garbage")},
    "down": case("down"),
    "revision": case("good", revision="v9"),
    "commit of good": case("good", "commit"),
    "commit of flaky": case("commit-flaky", "commit"),
    "commit of absent": case("absent", "commit"),
    "commit of revision": case("good", "commit", revision="v9"),
    "commit of down": case("commit-down", "commit"),
    "gated with token": case("gated-opened", token=TOKEN),
    "absent with token": case("absent-with-token", token=TOKEN),
}


class Told(NamedTuple):
    answers: dict[str, Any]
    output: str
    shown: list[tuple[str, str | None]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Result of the client for each case, in a process of its own."""
    with serve_spaces(tmp_path_factory.mktemp("hub")) as server:
        for name, files in DATA.items():
            server.add("dataset", name, files, gated="gated" in name)
        for name in ("flaky", "commit-flaky"):
            server.faults[f"/api/datasets/org/{name}"] = [503, 503]
        for name in ("down", "commit-down"):
            server.faults[f"/api/datasets/org/{name}"] = ["always", 503]
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            input=json.dumps(list(CASES.values())),
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
                "HF_ENDPOINT": server.url,
                "HF_HOME": str(tmp_path_factory.mktemp("hf")),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    lines = [line[3:] for line in done.stdout.splitlines() if line.startswith("=> ")]
    answers = dict(zip(CASES, map(json.loads, lines), strict=True))
    return Told(answers, done.stdout + done.stderr, server.shown)


@pytest.mark.parametrize("case", ["good", "flaky"])
def test_the_real_client_reads_a_data_set_from_a_hub(told: Told, case: str) -> None:
    assert told.answers[case] == ["rows", len(ROWS)]


@pytest.mark.parametrize(
    ("case", "kind", "word"),
    [
        ("absent", "SourceError", "doesn't exist on the Hub"),
        ("gated", "SourceError", "HF_TOKEN, which is not set"),
        ("empty", "SourceError", "doesn't contain any data files"),
        ("garbage", "SourceError", "JSON parse error"),
        ("revision", "SourceError", "v9"),
        ("down", "SourceUnreachable", "503"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_message(
    told: Told, case: str, kind: str, word: str
) -> None:
    found, message = told.answers[case]
    assert found == kind
    assert word in message
    assert "\n" not in message


def test_the_token_of_the_environment_opens_a_gated_data_set_and_is_never_told(told: Told) -> None:
    names = [settings["name"] for _, settings, token in CASES.values() if token]
    sent = {token for path, token in told.shown if any(name in path for name in names)}
    assert sent == {f"Bearer {TOKEN}"}
    assert told.answers["gated with token"] == ["rows", len(ROWS)]
    assert "HF_TOKEN, which is set" in told.answers["absent with token"][1]
    assert TOKEN not in told.output


def test_a_revision_stands_for_a_commit(told: Told) -> None:
    answers = {name: told.answers[f"commit of {name}"] for name in ("good", "flaky", "absent")}
    assert answers["good"] == answers["flaky"] == ["commit", SHA]
    assert answers["absent"][0] == told.answers["commit of revision"][0] == "SourceError"
    assert told.answers["commit of down"][0] == "SourceUnreachable"


# --- a local file or folder of the same form ---


def read(path: Path) -> Found:
    settings = HubSettings(name=str(path))
    return hub.read_data_set(settings, SplitSettings(), BOUNDS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    writers: dict[str, Callable[[], Any]] = {
        ".jsonl": lambda: path.write_bytes(jsonl(rows)),
        ".json": lambda: path.write_text(json.dumps(rows)),
        ".parquet": lambda: frame.to_parquet(path),
        ".csv": lambda: frame.to_csv(path, index=False),
    }
    writers[path.suffix]()
    return path


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "csv"])
def test_a_local_file_gives_the_problems_of_the_data_set(tmp_path: Path, ending: str) -> None:
    found = read(write(tmp_path / f"data.{ending}", ROWS))
    assert found.rejected == []
    assert [
        (len(problem.evidence), problem.tier, problem.difficulty) for problem in found.problems
    ] == [
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
def test_a_broken_row_is_rejected_alone(
    tmp_path: Path, change: dict[str, Any], field: str, word: str
) -> None:
    rows = [ROWS[1], {**ROWS[0], **change}, *ROWS[2:]]
    found = read(write(tmp_path / "data.jsonl", rows))
    (fault,) = found.rejected
    assert (fault.row, fault.field.removesuffix(".quote")) == ("data.jsonl:2", field)
    assert word in fault.reason
    assert fault.remedy
    assert len(found.problems) == 3
