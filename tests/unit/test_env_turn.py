"""Parsing a policy's raw text."""

import time

import pytest

from env.server.tree.turn import parse


def test_one_block_is_well_formed() -> None:
    turn = parse("Let me look.\n```repl\nx = 1\nprint(x)\n```\nDone.")
    assert turn.blocks == ("x = 1\nprint(x)\n",)
    assert turn.well_formed


def test_code_may_hold_fences_inside_a_line() -> None:
    turn = parse('```repl\nx = "```"\nprint(x)\n```')
    assert turn.blocks == ('x = "```"\nprint(x)\n',)
    assert turn.well_formed


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("no code at all", 0),
        ("", 0),
        ("```py\nx = 1\n```", 0),
        ("```python\nx = 1", 1),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", 2),
        ("```repl\nx = 1", 1),
        ("```repl\nx = 1\n```\n```repl\ny = 2\n```", 2),
        ("```repl\nx = 1\n```\n```repl\ny = 2", 2),
    ],
)
def test_anything_but_one_closed_block_is_malformed(text: str, opened: int) -> None:
    turn = parse(text)
    assert not turn.well_formed
    assert turn.opened == opened


def test_a_python_block_counts_where_no_repl_block_is_opened() -> None:
    assert parse("```python\nx = 1\n```").blocks == ("x = 1\n",)
    assert parse("```python\nx = 1\n```").well_formed
    explained = parse("Like this:\n```python\nx = 1\n```\n```repl\ny = 2\n```")
    assert explained.blocks == ("y = 2\n",)
    assert explained.well_formed
    assert not parse("```python\nx = 1\n```\n```repl\ny = 2").well_formed


def test_plain_final_lines_end_as_the_published_scaffold_writes_them() -> None:
    assert parse("I am done.\nFINAL_VAR(answer)").final_code == 'FINAL_VAR("answer")'
    assert parse('FINAL_VAR("answer")').final_code == 'FINAL_VAR("answer")'
    turn = parse("FINAL(The score is (about) 12)")
    assert turn.final_text == "The score is (about) 12"
    assert turn.well_formed


def test_a_final_inside_the_block_is_code_and_no_plain_line() -> None:
    turn = parse('```repl\nFINAL("x")\n```')
    assert turn.final_code is None


def test_thoughts_are_not_code() -> None:
    turn = parse("<think>\n```repl\nbad()\n```\n</think>\n```repl\ngood()\n```")
    assert turn.blocks == ("good()\n",)
    assert turn.well_formed


def test_windows_line_ends_are_read() -> None:
    assert parse("```repl\r\nx = 1\r\n```").well_formed


@pytest.mark.parametrize(
    "text",
    ["```repl\n" * 100_000, "FINAL(\n" * 100_000 + ")x", "```repl\n```\n" * 60_000, " " * 10**6],
)
def test_a_long_turn_is_read_in_the_time_of_its_length(text: str) -> None:
    started = time.process_time()
    assert not parse(text).well_formed
    assert time.process_time() - started < 2
