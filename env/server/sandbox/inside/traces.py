"""Source and exceptions of cells: how they compile, and what the policy is told.

A traceback here holds the policy's own lines and no frame or path of the host.
"""

from __future__ import annotations

import ast
import linecache
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FRAMES = 4
_LINE_CHARS = 160
_MESSAGE_CHARS = 600


class CellSyntaxError(Exception):
    """The cell does not compile; its text is what the policy sees."""


def compile_cell(code: str, filename: str) -> Iterator[CodeType]:
    """Compile a cell so that a last expression is echoed, as a REPL does.

    Raises:
        CellSyntaxError: the code is no Python.
    """
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code, filename)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            parts = [compile(tree, filename, "exec", dont_inherit=True)]
            if last is not None:
                echoed = ast.Interactive([last])
                parts.append(compile(echoed, filename, "single", dont_inherit=True))
    except SyntaxError as error:
        raise CellSyntaxError(_syntax_text(error, code)) from None
    except (ValueError, MemoryError, RecursionError, OverflowError) as error:
        raise CellSyntaxError(f"SyntaxError: {error or 'nested too deeply'}") from None
    return iter(parts)


def _syntax_text(error: SyntaxError, code: str) -> str:
    text = f"{type(error).__name__}: {error.msg}"
    lines = code.split("\n")
    if error.lineno and error.lineno <= len(lines):
        text = f"line {error.lineno}: {lines[error.lineno - 1].strip()[:_LINE_CHARS]}\n{text}"
    return text


def describe(error: BaseException, cells: dict[str, list[str]], current: str) -> str:
    """The policy's lines that led to `error`, then its type and message."""
    if isinstance(error, CellSyntaxError):
        return str(error)
    lines = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in cells:
            lines.append(_line(code, trace.tb_lineno, cells, current))
        trace = trace.tb_next
    lines = shortened(lines)
    if type(error).__name__ != "CellStopped":
        lines.append(_message(error))
    return "\n".join(lines)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: Any = None
) -> str:
    """A warning, with its place when that is a cell and never with a path of the host."""
    place = f"{filename[1:-1]} line {lineno}: " if filename.startswith("<cell ") else ""
    return f"{place}{category.__name__}: {message}\n"


def _line(code: CodeType, number: int, cells: dict[str, list[str]], current: str) -> str:
    source = cells[code.co_filename]
    text = source[number - 1] if 0 < number <= len(source) else ""
    cell = code.co_filename[1:-1] if code.co_filename != current else ""
    return line(number, cell, code.co_name, text)


def line(number: int, cell: str, function: str, source: str) -> str:
    """A line of a traceback; `cell` names the cell it is in, empty for the one that runs."""
    place = f"{cell} line {number}" if cell else f"line {number}"
    if function != "<module>":
        place = f"{place}, in {function[:_LINE_CHARS]}"
    return f"{place}: {source.strip()[:_LINE_CHARS]}"


def shortened(lines: list[str]) -> list[str]:
    """The first and the last lines of a traceback, and how many were left out between."""
    if len(lines) <= _FRAMES:
        return lines
    return [*lines[:1], f"... {len(lines) - _FRAMES} more ...", *lines[1 - _FRAMES :]]


def cut(message: str) -> str:
    """A message with its end left out when it is long."""
    more = len(message) - _MESSAGE_CHARS
    return f"{message[:_MESSAGE_CHARS]}... ({more} more characters)" if more > 0 else message


def _message(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = cut(str(error))
    except Exception:
        text = "(its message cannot be made)"
    return f"{name}: {text}" if text else name
