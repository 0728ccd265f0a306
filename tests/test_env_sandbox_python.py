"""Ordinary Python gives inside the sandbox what it gives outside."""

from __future__ import annotations

import contextlib
import io
import sys
import types
from collections.abc import Iterator

import pytest

from env.server.sandbox import CellDone, Repl, SandboxHost
from env.settings import LimitSettings, SandboxSettings

SNIPPETS = r"""
## classes
class A:
    def __init__(self, x): self.x = x
    def __repr__(self): return f'A({self.x})'
class B(A):
    pass
print(B(3), isinstance(B(1), A), B.__mro__[1].__name__)
## generators
def g(n):
    for i in range(n):
        yield i * i
print(list(g(5)), sum(x for x in g(4)))
## dataclasses
from dataclasses import dataclass, field
@dataclass(order=True)
class P:
    a: int
    b: list = field(default_factory=list)
print(P(1, [2]), P(1) < P(2))
## regular expressions
import re
print(re.sub(r'(\w+) (\w+)', lambda m: m[2] + m[1], 'ab cd'), re.findall(r'\d+', 'a1b22'))
## json
import json
print(json.dumps({'a': [1, 2.5, None]}, sort_keys=True), json.loads('[1]'))
## statistics
import statistics
print(statistics.mean([1, 2, 4]))
print(statistics.median([3, 1, 2]))
print(round(statistics.stdev([1, 2, 4]), 6))
## collections
from collections import Counter, defaultdict, OrderedDict, deque, namedtuple
print(Counter('abca').most_common(1))
print(defaultdict(list)['x'])
print(deque([1, 2], 1))
print(namedtuple('N', 'a b')(1, 2))
## itertools
import itertools as it, functools
print(list(it.combinations('abc', 2)), functools.reduce(lambda a, b: a * b, [1, 2, 3]))
## heapq, bisect
import heapq, bisect
print(heapq.nlargest(2, [3, 1, 2]), bisect.bisect([1, 3], 2))
## strings
import textwrap, difflib, string
print(textwrap.fill('a b c d', 3))
print(difflib.get_close_matches('appel', ['apple', 'x']))
print(f'{3.14159:.2f}')
print('{:>5}'.format(7))
## datetime
from datetime import datetime, timedelta
print(datetime(2024, 2, 28) + timedelta(days=2), datetime.strptime('2024', '%Y').year)
## decimal, fractions, math
from decimal import Decimal
from fractions import Fraction
import math
print(Decimal('0.1') * 3, Fraction(1, 3) + 1, math.isclose(0.1 + 0.2, 0.3))
## exceptions
try:
    {}['x']
except KeyError as e:
    print('missing', e)
finally:
    print('end')
## context managers
import contextlib
@contextlib.contextmanager
def c():
    print('in'); yield 5; print('out')
with c() as v: print(v)
## comprehensions
m = {k: [i for i in range(k)] for k in range(3)}
(n := 4)
print(m, n, {*'aa'}, [*m])
## match
def f(x):
    match x:
        case {'a': [y, *_]}: return y
        case _: return 0
print(f({'a': [7, 8]}), f(1))
## typing, enum
from enum import Enum
from typing import NamedTuple
class E(Enum):
    A = 1
class T(NamedTuple):
    x: int = 1
print(E.A, T())
## decorators, closures
import functools
@functools.lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def k():
    c = 0
    def i():
        nonlocal c; c += 1; return c
    return i
j = k(); j()
print(fib(50), j())
## hashes and encodings
import hashlib, base64, zlib
print(hashlib.sha256(b'a').hexdigest()[:8])
print(base64.b64encode(b'ab'))
print(zlib.crc32(b'a'))
print('é'.encode('cp1252'))
## threads pool
from concurrent.futures import ThreadPoolExecutor, as_completed
with ThreadPoolExecutor(4) as pool:
    fs = [pool.submit(pow, 2, n) for n in range(4)]
    print(sorted(f.result() for f in as_completed(fs)), list(pool.map(len, ['a', 'bb'])))
## async
import types
@types.coroutine
def y():
    yield
async def f():
    await y(); return 3
c = f(); c.send(None)
try:
    c.send(None)
except StopIteration as e:
    print(e.value)
## redirected output
import contextlib, io
b = io.StringIO()
with contextlib.redirect_stdout(b):
    print('inner')
print(b.getvalue().upper())
## xml, csv, html
import csv, io, html
import xml.etree.ElementTree as E
print(list(csv.reader(io.StringIO('a,b'))))
print(html.unescape('&lt;'))
print(E.fromstring('<a><b/></a>')[0].tag)
## pickle and copy
import pickle, copy
class Q:
    v = 1
print(pickle.loads(pickle.dumps([1, {2}])))
print(copy.deepcopy({'a': [1]}))
print(pickle.loads(pickle.dumps(Q)).v)
"""


def snippets() -> dict[str, str]:
    parts = SNIPPETS.split("## ")[1:]
    return {name: code for name, _, code in (part.partition("\n") for part in parts)}


@pytest.fixture(scope="module")
def repl() -> Iterator[Repl]:
    host = SandboxHost(LimitSettings(cell_wall_s=30), SandboxSettings())
    yield host.open("")
    host.close()


@pytest.mark.parametrize("code", snippets().values(), ids=snippets())
def test_ordinary_python_does_what_it_does_outside(
    repl: Repl, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    outside = io.StringIO()
    with contextlib.redirect_stdout(outside):
        exec(code, main.__dict__)
    inside = repl.run(code)
    assert isinstance(inside, CellDone)
    assert (inside.stdout, inside.error) == (outside.getvalue(), None), inside.traceback
    assert inside.stdout
