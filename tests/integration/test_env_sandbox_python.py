"""Ordinary Python behaves inside the sandbox as in a plain interpreter.

The snippets: `sandbox_snippets.txt`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.sandbox_events import done

from env.server.sandbox import Repl, SandboxHost
from env.settings import EnvSettings, LimitSettings

LIMITS = LimitSettings(cell_wall_s=30, observation_chars=20_000)
ROOT = Path(__file__).resolve().parents[2]


def snippets() -> dict[str, str]:
    text = (ROOT / "tests/data/sandbox_snippets.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {name: code for name, _, code in parts}


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with closing(SandboxHost(EnvSettings(limits=LIMITS))) as host:
        yield host


@pytest.fixture
def repl(host: SandboxHost) -> Iterator[Repl]:
    with closing(host.open("")) as repl:
        yield repl


def plain(*arguments: str, code: str = "", errors: int = subprocess.PIPE) -> tuple[str, str]:
    """Output and errors of bare CPython in the sandbox's locale and time zone."""
    run = subprocess.run(
        [sys.executable, "-S", "-s", "-P", "-u", *arguments],
        input=code.encode(),
        env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=errors,
        check=False,
    )
    return run.stdout.decode(), (run.stderr or b"").decode()


@pytest.mark.parametrize("code", snippets().values(), ids=snippets())
def test_ordinary_python_does_what_it_does_outside(repl: Repl, code: str) -> None:
    outside, _ = plain("-c", code, errors=subprocess.STDOUT)
    inside = done(repl.run(code))
    assert (inside.error, inside.traceback, inside.cut) == (None, "", 0)
    assert inside.stdout == outside
    assert inside.stdout


def test_of_several_expressions_the_last_is_echoed(repl: Repl) -> None:
    assert done(repl.run("1; 2\n3\n'last'")).stdout == "'last'\n"


MISTAKES = [
    "1 / 0",
    "nothing",
    "import nowhere",
    "assert 1 == 2, 'why'",
    "raise ValueError('two\\nlines')",
    "def f(): return f()\nf()",
    "raise KeyError('x') from ValueError('y')",
    "raise ExceptionGroup('g', [ValueError(1)])",
]


@pytest.mark.parametrize("code", MISTAKES)
def test_a_mistake_has_cpythons_words(repl: Repl, code: str) -> None:
    """The exception's own lines; the lines above them are shorter than CPython's."""
    last = done(repl.run(code)).traceback.splitlines()[-1]
    errors = [line.lstrip(" |+-") for line in plain("-c", code)[1].splitlines()]
    assert last in [re.sub(r"\(/.*\)$", "(unknown location)", line) for line in errors]


PATH = re.compile(r"/\w+/|\\|site-packages|\.py\b")


@pytest.mark.parametrize(
    "code",
    [
        "import traceback, json\ntry: json.loads('{')\nexcept ValueError: traceback.print_exc()",
        "import traceback\ntraceback.print_stack()",
        "import json\nprint(json, json.decoder, type(json.JSONDecoder))",
        "import json\njson",
        "import logging\nlogging.exception('x', exc_info=True, stack_info=True)",
        "import sys\nframe = sys._getframe()\nwhile frame: print(frame); frame = frame.f_back",
        "import inspect, re\nprint(inspect.currentframe().f_back, re.compile.__code__)",
        "import warnings, re\nwarnings.warn('careful', stacklevel=3)",
        "import json\ntry: json.x\nexcept AttributeError as e: print(e)",
    ],
)
def test_what_python_prints_of_itself_holds_no_path(repl: Repl, code: str) -> None:
    told = done(repl.run(code))
    assert told.stdout
    for place in (os.path.dirname(os.__file__), str(ROOT), sys.prefix, sys.base_prefix):
        assert place not in told.stdout + told.traceback
    assert not PATH.search(told.stdout)


def test_cells_have_the_standard_library_alone(repl: Repl) -> None:
    for name in ("numpy", "yaml"):  # installed beside the server
        assert f"No module named '{name}'" in done(repl.run(f"import {name}")).traceback
    assert done(repl.run("import sys; sys.path")).stdout == "[]\n"
