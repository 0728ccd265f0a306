"""Contexts that several REPLs share, each kept loaded by a template.

A group's rollouts read one context. If it is loaded once, each rollout costs only a fork and no
memory, however large the context is. A template is optional: without one, a worker is sent its
context.
"""

from __future__ import annotations

import logging
import threading

from env.errors import SandboxError
from env.server.sandbox.spawner import Template, Zygote
from env.server.sandbox.wire import JSONValue, dump

logger = logging.getLogger(__name__)

_MIN_CHARS = 128_000
"""Smaller contexts cost a template more CPU than they save a group of eight."""


class Templates:
    """A bounded number of templates by name; the least recently used one makes room.

    Thread-safe. A template with living workers is never ended: if all are in use, a new context
    gets no template.

    Args:
        most: Limit of templates at the same time.
        most_bytes: Limit of bytes of all their contexts.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: dict[str, Template] = {}
        """In order of use, the latest last."""

    def take(self, zygote: Zygote, name: str, context: JSONValue) -> Template | None:
        """The template of this context, with one fork announced; None if it gets no template.

        Raises:
            TypeError: the context contains something other than JSON types.
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
        """End all templates."""
        with self._lock:
            while self._held:
                self._held.popitem()[1].close()

    def _make(self, zygote: Zygote, context: bytes) -> Template | None:
        if not self._make_room(len(context)):
            return None
        try:
            return zygote.template(context)
        except (SandboxError, OSError) as error:
            logger.warning("REPLs do not share a context (%s). Each loads its own copy.", error)
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
