"""Tests that are coroutines, run on an event loop of their own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def played(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test that plays the story, for ten seconds at most."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(story(), 10))

    return run
