"""Ends of a command that are not its own: a full disk, a fault of the code, an interrupt."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.variables import CHAIN
from flows.pipeline import guarded
from tasks.errors import StageError


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


def said_by_rust() -> None:
    raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("work", [write, wrapped, said_by_rust])
def test_a_full_disk_is_one_message(work, capsys):
    with pytest.raises(SystemExit) as ended:
        guarded(work)
    assert ended.value.code == 1
    told = r"error: the disk is full \(free now: \d+ MB in /.*\)\. Free some space, .*\.\n"
    assert re.fullmatch(told, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("kept", "told"), [("", "To run it again: "), ("Answers", "Answers are kept; continue with: ")]
)
def test_an_interrupt_names_the_command_and_promises_only_what_is_kept(
    kept, told, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["/bin/rlm", "ask", "--set", "a=b", "Who's there?"])

    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        guarded(work, kept)
    assert ended.value.code == 130
    before, _, again = capsys.readouterr().err.partition(told)
    assert before == "\nInterrupted. "
    assert shlex.split(again) == ["rlm", "ask", "--set", "a=b", "Who's there?"]


@pytest.mark.parametrize(("recorded", "told"), [(False, "error: prepare: no\n"), (True, "")])
def test_an_error_that_the_chain_prints_is_not_printed_twice(recorded, told, capsys, monkeypatch):
    monkeypatch.setenv(CHAIN, "1")

    def work() -> None:
        error = StageError("prepare: no")
        error.recorded = recorded
        raise error

    with pytest.raises(SystemExit):
        guarded(work)
    assert capsys.readouterr().err == told


def test_a_fault_of_the_code_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: divmod(1, 0))
