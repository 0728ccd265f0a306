"""Executors that run each task at once, in the caller: a worker can start no thread or process."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
from collections.abc import Callable
from typing import Any


class InlineExecutor(concurrent.futures.Executor):
    """A replacement of `ThreadPoolExecutor` whose only worker is the caller."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._max_workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn` now; an Exception goes into the future, FINAL and limits propagate."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def install() -> None:
    """Replace the pools that policy code can import."""
    for name in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
        setattr(concurrent.futures, name, InlineExecutor)
    setattr(concurrent.futures.thread, "ThreadPoolExecutor", InlineExecutor)  # noqa: B010
