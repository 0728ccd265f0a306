"""Source and exceptions of cells: how they compile, and the tracebacks that the policy reads.

A traceback contains the policy's own lines, and no frame or path of the host.
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
    """The cell does not compile; the policy reads the message."""


def compile_cell(code: str, filename: str) -> Iterator[CodeType]:
    """Compile a cell so that its last expression is echoed, as in a REPL.

    Raises:
        CellSyntaxError: the code is not valid Python.
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
    if len(lines) > _FRAMES:
        lines[1 : 1 - _FRAMES] = [f"... {len(lines) - _FRAMES} more ..."]
    if type(error).__name__ != "CellStopped":
        lines.append(_message(error))
    return "\n".join(lines)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: Any = None
) -> str:
    """A warning, with its place if that is a cell, and never with a path of the host."""
    place = f"{filename[1:-1]} line {lineno}: " if filename.startswith("<cell ") else ""
    return f"{place}{category.__name__}: {message}\n"


def _line(code: CodeType, number: int, cells: dict[str, list[str]], current: str) -> str:
    """A line of a traceback; it names the cell unless that is the current one."""
    source = cells[code.co_filename]
    text = source[number - 1] if 0 < number <= len(source) else ""
    place = f"line {number}"
    if code.co_filename != current:
        place = f"{code.co_filename[1:-1]} {place}"
    if code.co_name != "<module>":
        place = f"{place}, in {code.co_name[:_LINE_CHARS]}"
    return f"{place}: {text.strip()[:_LINE_CHARS]}"


def _message(error: BaseException) -> str:
    """Type and message of an exception; a long message is cut."""
    name = type(error).__name__
    try:
        text = str(error)
        more = len(text) - _MESSAGE_CHARS
        if more > 0:
            text = f"{text[:_MESSAGE_CHARS]}... ({more} more characters)"
    except Exception:
        text = "(its message cannot be made)"
    return f"{name}: {text}" if text else name
