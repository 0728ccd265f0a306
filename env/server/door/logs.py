"""The log of a server that strangers use: what repeats is logged once a minute.

Without a limit, a client that repeats a refused request fills the disk. The filter is on the
handlers, because the lines of asyncio and uvicorn go there too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

_PERIOD_S = 60.0
_KINDS = 1000
"""Kinds of lines that are counted apart."""
_ARGUMENT = 500
"""Characters of one argument of a line."""


class RepeatFilter(logging.Filter):
    """Passes one line a minute for each logger, level, message template and type of exception.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[Any, list[float]] = {}
        """By kind: when the last line passed, and how many were left out since."""
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes; it then says how many did not."""
        with self._lock:
            return self._passes(record)

    def _passes(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        kind: Any = (record.name, record.levelno, str(record.msg), (record.exc_info or (None,))[0])
        if kind not in self._seen and len(self._seen) >= _KINDS:
            kind = record.name
        last = self._seen.setdefault(kind, [float("-inf"), 0])
        if now - last[0] < _PERIOD_S:
            last[1] += 1
            return False
        if kind == record.name:
            self._seen = {k: v for k, v in self._seen.items() if now - v[0] < _PERIOD_S}
            self._seen[kind] = last
        if last[1]:
            record.msg = f"{record.msg} ({last[1]:.0f} more lines like this one were left out)"
        last[:] = now, 0
        if isinstance(record.args, tuple):
            record.args = tuple(
                item[:_ARGUMENT] if isinstance(item, str) else item for item in record.args
            )
        return True


def limit_repeats() -> None:
    """Put the filter on every handler that a server's lines reach."""
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "uvicorn.access")]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    if logging.lastResort is not None:
        handlers.append(logging.lastResort)
    for handler in handlers:
        if not any(isinstance(filter_, RepeatFilter) for filter_ in handler.filters):
            handler.addFilter(RepeatFilter())
