"""Contexts that several REPLs share, each held ready by a template.

A group's rollouts read one context. Loaded once, it costs each of them a fork, however large it
is, and no memory of its own. A template is only ever spare: where none can be had a worker is
sent its context.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from env.errors import SandboxError
from env.server.sandbox.spawner import Template, Zygote
from env.server.sandbox.wire import dump

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue

logger = logging.getLogger(__name__)

_MIN_CHARS = 128_000
"""Below this a template costs more CPU than it saves a group of eight."""


class Templates:
    """A bounded number of templates by name; the one unused for longest makes room.

    Thread-safe. A template with living workers is never ended: when all are in use, a new context
    goes without.

    Args:
        most: Templates at the same time.
        most_bytes: Bytes of all their contexts together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: dict[str, Template] = {}
        """In order of use, the latest last."""

    def take(self, zygote: Zygote, name: str, context: JSONValue) -> Template | None:
        """The template that holds this context, with one fork announced; None: go without.

        Raises:
            TypeError: the context holds something that is no JSON type.
        """
        if _chars(context) < _MIN_CHARS or not self._most:
            return None
        with self._lock:
            template = self._held.pop(name, None)
            if template is not None and not template.alive:
                template.close()
                template = None
            if template is None:
                template = self._make(zygote, dump(context))
            if template is not None:
                template.reserve()
                self._held[name] = template
            return template

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            while self._held:
                self._held.popitem()[1].close()

    def _make(self, zygote: Zygote, context: bytes) -> Template | None:
        if not self._make_room(len(context)):
            return None
        try:
            return zygote.template(context)
        except SandboxError as error:
            logger.warning("a context is not shared: %s", error)
            return None

    def _make_room(self, size: int) -> bool:
        if size > self._most_bytes:
            return False
        for name, template in list(self._held.items()):
            if len(self._held) < self._most and self._bytes() + size <= self._most_bytes:
                break
            if not template.alive or template.retire():
                template.close()
                del self._held[name]
        return len(self._held) < self._most and self._bytes() + size <= self._most_bytes

    def _bytes(self) -> int:
        return sum(template.size for template in self._held.values())


def _chars(context: JSONValue) -> int:
    """Characters of a text or of {key: text}; 0 for anything else, which is never shared."""
    if isinstance(context, dict):
        return sum(len(text) for text in context.values() if isinstance(text, str))
    return len(context) if isinstance(context, str) else 0
