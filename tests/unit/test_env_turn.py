"""Parsing a policy's raw text."""

import time

import pytest

from env import prompts
from env.server.tree.turn import parse

WELL_FORMED = [
    ("Let me look.\n```repl\nx = 1\nprint(x)\n```\nDone.", "x = 1\nprint(x)\n"),
    ('```repl\nx = "```"\nprint(x)\n```', 'x = "```"\nprint(x)\n'),
    ('```repl\nFINAL("x")\n```', 'FINAL("x")\n'),  # no plain line
    ("```repl\r\nx = 1\r\n```", "x = 1\r\n"),
    ("```python\nx = 1\n```", "x = 1\n"),
    ("Like this:\n```python\nx = 1\n```\n```repl\ny = 2\n```", "y = 2\n"),
    ("<think>\n```repl\nbad()\n```\n</think>\n```repl\ngood()\n```", "good()\n"),
]


@pytest.mark.parametrize(("text", "code"), WELL_FORMED)
def test_one_closed_block_is_well_formed(text: str, code: str) -> None:
    turn = parse(text)
    assert (turn.blocks, turn.final_code, turn.well_formed) == ((code,), None, True)


MALFORMED = [
    ("no code at all", 0),
    ("", 0),
    ("```py\nx = 1\n```", 0),
    ("```python\nx = 1", 1),
    ("```python\nx = 1\n```\n```repl\ny = 2", 1),
    ("```python\nx = 1\n```\n```python\ny = 2\n```", 2),
    ("```repl\nx = 1", 1),
    ("```repl\nx = 1\n```\n```repl\ny = 2\n```", 2),
    ("```repl\nx = 1\n```\n```repl\ny = 2", 2),
]


@pytest.mark.parametrize(("text", "opened"), MALFORMED)
def test_anything_but_one_closed_block_is_malformed(text: str, opened: int) -> None:
    turn = parse(text)
    assert (turn.opened, turn.well_formed) == (opened, False)
    told = {0: "no repl block", 1: "has no end"}.get(opened, f"{opened} repl blocks")
    assert told in prompts.blocks_message(opened)


@pytest.mark.parametrize(
    "text",
    ["```repl\n" * 100_000, "FINAL(\n" * 100_000 + ")x", "```repl\n```\n" * 60_000, " " * 10**6],
)
def test_a_long_turn_is_read_in_the_time_of_its_length(text: str) -> None:
    started = time.process_time()
    assert not parse(text).well_formed
    assert time.process_time() - started < 2
