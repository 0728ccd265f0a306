"""The log: what repeats is one line a minute, and says what was left out."""

import io
import logging

from env.server.door.logs import RepeatFilter


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


def test_one_line_a_minute_says_how_many_were_left_out() -> None:
    log = Log()
    for number in range(5000):
        log.logger.error("failed %d", number)
    log.now += 61
    log.logger.error("failed %d", 7)
    log.logger.error("failed %d", 8)
    left_out = "failed 7 (4999 more lines like this one were left out)"
    assert log.lines == ["failed 0", left_out]


def test_an_argument_is_cut() -> None:
    log = Log()
    log.logger.error("failed %s %d", "x" * 100_000, 3)
    assert log.lines == [f"failed {'x' * 500} 3"]
