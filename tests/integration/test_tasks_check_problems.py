"""The command `check-problems`, and what docs/own_data.md says about it."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from helpers.documents import ROOT, fences
from typer.testing import CliRunner

from flows import pipeline
from tasks import check_problems
from tasks.config import resolve
from tasks.errors import ConfigError

DATA = "tests/data/own_problems.jsonl"
PAGE = "docs/own_data.md"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder that has the project's settings and the example alone."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", DATA):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).symlink_to(ROOT / name)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(pipeline.app, ["check-problems", *arguments])


def test_the_page_shows_what_the_command_really_says_and_it_writes_nothing() -> None:
    before = sorted(Path().rglob("*"))
    done = command(DATA)
    assert done.exit_code == 1
    assert done.stdout == fences(PAGE, "text")[0]
    assert done.stderr == ""
    assert sorted(Path().rglob("*")) == before


def test_good_rows_end_with_0() -> None:
    lines = (ROOT / DATA).read_text(encoding="utf-8").splitlines(keepends=True)
    Path("good.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    settings = ["--set", "validate.min_rows=1", "--set", "validate.difficulty_share=0"]
    done = command("good.jsonl", *settings)
    assert done.exit_code == 0
    assert done.stdout.startswith("rows:   3 good, 0 rejected")


def test_a_file_that_cannot_be_read_ends_with_2() -> None:
    done = command("absent.jsonl")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "absent.jsonl: does not exist. Name a" in done.stderr
    with pytest.raises(ConfigError, match=r"^absent: the folder does not exist.*--documents"):
        told(ROOT / DATA, documents="absent")


def told(path: Path, *overrides: str, documents: str | None = None) -> list[str]:
    read = check_problems.read_problem_rows(resolve(overrides=overrides), str(path), documents)
    return list(check_problems.report_lines(read))


def test_documents_are_checked_and_broken_ones_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    (folder / "2024").mkdir(parents=True)
    (folder / "report.md").write_text("In all, 3 samples were lost on the way.")
    (folder / "2024/diary.pdf").write_bytes(b"broken")
    (folder / "2024/notes.txt").write_text("Nothing here.")
    row = json.loads(fences(PAGE, "json")[0])
    path = tmp_path / "questions.jsonl"
    named = (["report.md", f"2024/{name}"] for name in ("diary.pdf", "note.txt", "notes.txt"))
    rows = [row | {"question": f"{names}?", "documents": names} for names in named]
    path.write_text("\n".join(map(json.dumps, rows)))
    said = "\n".join(told(path, documents=str(folder)))
    assert said.startswith("questions.jsonl:1  documents[1]\n")
    assert f"\nleft out: {folder}/2024/diary.pdf" in said
    assert f"\n    problem: '2024/note.txt': it is not in {folder}; did you mean" in said
    assert "\nrows:   1 good, 2 rejected" in said


def test_the_page_prints_a_data_set_of_the_hub_as_good_rows(monkeypatch, capsys) -> None:
    papers = [{"paperId": "a", "title": "Survey", "text": "In all, 3 samples were lost."}]
    evidence = [{"paperId": "a", "selections": [{"text": "3 samples were lost"}]}]
    row = {"question": "How many?", "papers": json.dumps(papers), "evidence": json.dumps(evidence)}
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: [row])
    exec(fences(PAGE, "python")[0], {})
    Path("rows.jsonl").write_text(capsys.readouterr().out)
    assert "rows:   1 good, 0 rejected" in told(Path("rows.jsonl"))
