"""Models that were taught nothing."""

from __future__ import annotations

from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoSettings
from agent.nano.warmstart import Taught, build


def untaught(settings: NanoSettings) -> Taught:
    """The wired model before any training, with a lexicon of 64 names."""
    return build(settings, ReadingLessons(settings, 64))
