"""What a run says: at its start, and at ends that are not its own (a full disk, an interrupt)."""

import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from typer.main import get_group

from env.variables import CHAIN
from flows import cli
from flows.chain import print_kept
from flows.pipeline import guarded
from flows.services import processes
from tasks.errors import StageError
from tasks.tracking import lineage


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the handlers that a command sets."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def write() -> None:
    Path("/dev/full").write_text("x")


def wrapped() -> None:
    try:
        write()
    except OSError as error:
        raise RuntimeError("the writer failed") from error


RUST = ValueError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("work", [write, wrapped, mock.Mock(side_effect=RUST)])
def test_a_full_disk_is_one_message(work, capsys):
    with pytest.raises(SystemExit) as ended:
        guarded(work)
    assert ended.value.code == 1
    told = r"error: the disk is full \(free now: \d+ MB in /.*\)\. Free some space, .*\.\n"
    assert re.fullmatch(told, capsys.readouterr().err)


KEPT = {"": "To run it again: ", "Answers": "Answers are kept; continue with: "}


@pytest.mark.parametrize("kept", KEPT)
def test_an_interrupt_names_the_command_and_promises_only_what_is_kept(kept, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/rlm", "ask", "--set", "a=b", "Who's there?"])
    with pytest.raises(SystemExit) as ended:
        guarded(mock.Mock(side_effect=KeyboardInterrupt), kept)
    assert ended.value.code == 130
    before, _, again = capsys.readouterr().err.partition(KEPT[kept])
    assert before == "\nInterrupted. "
    assert shlex.split(again) == ["rlm", "ask", "--set", "a=b", "Who's there?"]


@pytest.mark.parametrize(("recorded", "told"), [(False, "error: prepare: no\n"), (True, "")])
def test_an_error_that_the_chain_prints_is_not_printed_twice(recorded, told, capsys, monkeypatch):
    monkeypatch.setenv(CHAIN, "1")
    error = StageError("prepare: no")
    error.recorded = recorded
    with pytest.raises(SystemExit):
        guarded(mock.Mock(side_effect=error))
    assert capsys.readouterr().err == told


def test_help_begins_with_what_one_comes_for() -> None:
    assert get_group(cli.app).list_commands(mock.Mock())[:2] == ["run", "ask"]


def test_a_fault_of_the_code_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: divmod(1, 0))


def test_a_start_with_results_of_earlier_runs_is_not_called_clean(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lineage, "commit", lambda: "0a1b-dirty")
    print_kept([], killed=False)
    assert re.search("Code: 0a1b-dirty. `git add .*\nStarting clean", capsys.readouterr().out)
    Path("dvc.lock").touch()
    print_kept([], killed=False)
    assert "dvc pull" in capsys.readouterr().out
    Path(".dvc/cache/runs").mkdir(parents=True)
    print_kept([], killed=False)
    assert "is reused" in capsys.readouterr().out


def test_the_error_of_a_server_is_shown_without_a_password(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO: up\nsqlalchemy.exc.ArgumentError: no postgresql://a:secret@db/x\nend\n")
    assert processes._last_error(log) == " (no postgresql://db/x)"
    log.write_text("INFO: begins\n")
    assert processes._last_error(log) == ""
