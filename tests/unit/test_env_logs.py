"""The log: what repeats is one line a minute, and says what was left out."""

import io
import logging
import threading
from typing import Any

import pytest

from env.web.logs import RepeatFilter


class Log:
    """A logger with the filter, its lines, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1e9 / 3  # no round number
        self.stream = io.StringIO()
        self.logger = logging.Logger("a")
        handler = logging.StreamHandler(self.stream)
        handler.addFilter(RepeatFilter(lambda: self.now))
        self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


def test_one_line_a_minute_says_how_many_were_left_out(log: Log) -> None:
    for number in range(5000):
        log.logger.error("failed %d", number)
    log.now += 61
    log.logger.error("failed %d", 7)
    log.logger.error("failed %d", 8)
    left_out = "failed 7 (4999 more lines like this one were left out)"
    assert log.lines == ["failed 0", left_out]


def test_levels_texts_and_exceptions_are_kinds_of_their_own(log: Log) -> None:
    log.logger.error("failed")
    log.logger.warning("failed")
    log.logger.error("gone")
    for kind in (ValueError, KeyError, KeyError):
        try:
            raise kind
        except kind:
            log.logger.error("failed", exc_info=True)
    assert len([line for line in log.lines if line in ("failed", "gone")]) == 5


def test_texts_without_a_template_are_bounded_too(log: Log) -> None:
    for number in range(5000):
        log.logger.error(f"failed {number}")
    assert len(log.lines) < 1100


def test_another_thread_may_log_while_kinds_are_forgotten() -> None:
    repeats, threads = RepeatFilter(lambda: 0.0), list[threading.Thread]()

    def line(name: str, text: str = "") -> logging.LogRecord:
        return logging.makeLogRecord({"name": name, "msg": text})

    class Slow(list[float]):
        """Entry of a kind; another logger writes its first line while it is read."""

        def __getitem__(self, index: Any) -> Any:
            thread = threading.Thread(target=repeats.filter, args=[line("b")])
            threads.append(thread)
            thread.start()
            thread.join(0.1)
            return super().__getitem__(index)

    for number in range(1000):
        repeats.filter(line("a", str(number)))
    repeats._seen[next(iter(repeats._seen))] = Slow([0.0, 0.0])
    assert repeats.filter(line("a", "one kind more"))
    for thread in threads:
        thread.join()
    assert threads


def test_an_argument_is_cut(log: Log) -> None:
    log.logger.error("failed %s %d", "x" * 100_000, 3)
    assert log.lines == [f"failed {'x' * 500} 3"]
