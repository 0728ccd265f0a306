"""Models that were taught nothing."""

from agent.nano.lessons import ReadingLessons
from agent.nano.sizes import NanoSettings
from agent.nano.teaching import Taught, build


def untaught(settings: NanoSettings) -> Taught:
    """The wired model before any training, with a lexicon of 64 names."""
    return build(settings, ReadingLessons(settings, 64))
