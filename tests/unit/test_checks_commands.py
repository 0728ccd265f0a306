"""docs/commands.md is the page that the code generates."""

from __future__ import annotations

from pathlib import Path

from checks import commands

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_the_one_that_is_generated(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    written = commands.PAGE.read_text(encoding="utf-8")
    assert written == commands.page(), "run python -m checks.commands --write"
