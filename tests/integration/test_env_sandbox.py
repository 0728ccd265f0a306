"""The REPL from the policy's side: cells, helpers, sub-calls, FINAL, limits."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from helpers.sandbox_events import call, done

from env import ranking
from env.errors import SandboxError
from env.server.sandbox import UNSET, Repl, SandboxHost, SubCall
from env.settings import EnvSettings, LimitSettings, SandboxSettings

PAPERS = {
    "p1": "A study of Zolpir.\nKalvot scores 31 on Mirbex.\nOn Tanfud, Kalvot gets 44.",
    "p2": "A study of Kenlus.\nDorfim scores 52 on Mirbex. It was late. Then kalvot rose.",
    "p3": "A study of Rasbon.\nNothing is said here.",
}
LIMITS = LimitSettings(cell_cpu_s=0.4, cell_wall_s=20, memory_mb=64, observation_chars=1000)


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with closing(SandboxHost(EnvSettings(limits=LIMITS))) as host:
        yield host


@pytest.fixture
def repl(host: SandboxHost) -> Iterator[Repl]:
    with closing(host.open(PAPERS)) as repl:
        yield repl


# --- cells


def test_variables_stay_and_new_ones_are_named(repl: Repl) -> None:
    first = done(repl.run("import re\nx = 1\ny = [2]\n_z = 3"))
    assert (first.new_names, first.error, first.stdout) == (["x", "y"], None, "")
    assert done(repl.run("x = 5\nprint(x + y[0])")).stdout == "7\n"


def test_output_is_cut_and_the_cut_counted(repl: Repl) -> None:
    result = done(repl.run("print('a' * 900)\nprint('b' * 5000)"))
    assert len(result.stdout) == LIMITS.observation_chars
    assert result.cut == 901 + 5001 - LIMITS.observation_chars


def test_lone_surrogates_are_replaced_both_ways(host: SandboxHost) -> None:
    repl = host.open({"a": "x\ud800y"})
    assert done(repl.run("print(ascii(context['a']))\nprint('\\udfff')")).stdout == "'x?y'\n?\n"
    assert done(repl.run("FINAL(['\\ud800'])")).final == ["?"]


def test_show_vars_lists_the_policys_own(repl: Repl) -> None:
    repl.run("hits = [1]")
    assert "'hits': 'list'" in done(repl.run("print(SHOW_VARS())")).stdout
    assert "search" not in done(repl.run("SHOW_VARS()")).stdout


# --- reading


def test_search_gives_whole_sentences_by_paper(repl: Repl) -> None:
    assert done(repl.run("FINAL(search(context, 'Kalvot'))")).final == {
        "p1": ["Kalvot scores 31 on Mirbex.", "On Tanfud, Kalvot gets 44."]
    }


@pytest.mark.parametrize(
    ("keyword", "found"),
    [
        ("DORFIM", ["p2"]),  # in any case, when exact finds nothing
        ("kalvot", ["p2"]),  # exact first
        ("Nothng", ["p3"]),  # misspelt, when nothing else finds any
        ("Kalvut", []),  # six letters of which one differs: another name
        ("on mirbex", ["p1", "p2"]),
    ],
)
def test_search_goes_from_strict_to_loose(repl: Repl, keyword: str, found: list[str]) -> None:
    assert done(repl.run(f"FINAL(list(search(context, {keyword!r})))")).final == found


def test_snippets_are_verbatim_slices(repl: Repl) -> None:
    code = """
out = []
for p, text in context.items():
    for word in set(text.lower().split()):
        for window in (0, 5, 40):
            out += [s in text and word in s.lower() for s in search(text, word, window)]
FINAL([len(out) > 50, all(out)])
"""
    assert done(repl.run(code)).final == [True, True]


def test_positions_survive_letters_that_lower_to_two(host: SandboxHost) -> None:
    repl = host.open("İİİ is one. The WORD is here. Last.")
    assert done(repl.run("FINAL(search(context, 'word'))")).final == ["The WORD is here."]


def test_papers_and_parts(repl: Repl) -> None:
    assert done(repl.run("FINAL(list_papers(context))")).final == ["p1", "p2", "p3"]
    code = "FINAL(extract(context['p2'], 'DORFIM', 'mirbex'))"
    assert done(repl.run(code)).final == "Dorfim scores 52 on Mirbex"


def test_rank_gives_the_passages_that_are_ranked_outside_of_the_repl() -> None:
    asked = "How accurate is Kalvot on Mirbex?"
    ranked = ranking.rank(PAPERS, asked, 2, chars=40, least=15)
    found = [list(pair) for pair in ranking.near(PAPERS, ranked, 999)]
    assert found[0] == ["p1", "Kalvot scores 31 on Mirbex."]
    code = f"FINAL(near(context, rank(context, {asked!r}, 2), 999))"
    with closing(SandboxHost(EnvSettings(limits=LIMITS, passage_chars=40), 15)) as host:
        assert done(host.open(PAPERS).run(code)).final == found


def test_rank_asks_the_server_for_its_order() -> None:
    texts = ["Kalvot rose at dawn.", "Nobody else had slept."]
    host = SandboxHost(EnvSettings(limits=LIMITS, passage_chars=40, rank="minilm"), span_chars=20)
    repl = host.open({"p": "\n\n".join(texts)})
    asked = call(repl.run("found = rank(context, 'Who?', 1)\nFINAL(found)"))
    assert asked == SubCall("rank", ["Who?", *texts], None)
    assert done(repl.resume([1, 0])).final == [["p", "Nobody else had slept."]]
    assert done(repl.run("found = rank('', 'Who?')\nlen(found)")).stdout == "0\n"
    call(repl.run("rank(context, 'Who?')"))
    assert done(repl.resume("too much")).traceback.endswith("ValueError: rank: too much")
    host.close()


# --- sub-calls and FINAL


def test_a_batch_suspends_the_cell_until_its_answers(repl: Repl) -> None:
    code = "r = rlm_query_batched(['a', 'b'], [context['p1'], {'k': 'v'}])\nprint(r)"
    contexts = [PAPERS["p1"], {"k": "v"}]
    assert call(repl.run(code)) == SubCall("rlm_query_batched", ["a", "b"], contexts)
    assert done(repl.resume([["x"], None])).stdout == "[['x'], None]\n"


@pytest.mark.parametrize(
    ("code", "prompts", "contexts"),
    [
        ("llm_query('a')", ["a"], None),
        ("llm_query_batched(('a', 'b'))", ["a", "b"], None),
        ("rlm_query('a')", ["a"], None),
        ("rlm_query('a', 'c')", ["a"], ["c"]),
        ("rlm_query('a', context={1: ('c',)})", ["a"], [{"1": ["c"]}]),
        ("rlm_query_batched(['a'], context_list=['c'])", ["a"], ["c"]),
        ("rlm_query_batched(['a'], {'p': 'c'})", ["a"], ["c"]),
    ],
)
def test_sub_calls_are_normalised(repl, code, prompts, contexts):
    assert call(repl.run(code)) == SubCall(code.partition("(")[0], prompts, contexts)
    assert done(repl.resume("v")).stdout == "'v'\n"


@pytest.mark.parametrize(
    "code",
    [
        "llm_query(3)",
        "rlm_query_batched('ab')",
        "rlm_query_batched(['a'], ['x', 'y'])",
        "llm_query_batched(['a', None])",
        "rlm_query('a', 'x' * 5_000_000)",
    ],
)
def test_a_wrong_sub_call_is_an_exception_and_never_leaves(repl: Repl, code: str) -> None:
    assert done(repl.run(code)).error == "exception"


def test_calls_in_a_row_nested_and_in_a_pool(repl: Repl) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
def ask(n):
    return llm_query(f"{n}") if n else "end"
with ThreadPoolExecutor() as pool:
    out = list(pool.map(ask, [1, 2, 0]))
FINAL([out, [rlm_query("x") for _ in range(2)]])
"""
    event = repl.run(code)
    answers = iter(["one", "two", "three", ["four"]])
    while isinstance(event, SubCall):
        event = repl.resume(next(answers))
    assert event.final == [["one", "two", "end"], ["three", ["four"]]]


def test_nine_repls_deep() -> None:
    """Suspended cells may exceed the limit of running ones: a sub-call frees its slot."""
    host = SandboxHost(EnvSettings(limits=LIMITS, sandbox=SandboxSettings(running_cells=1)))
    chain = [host.open({}) for _ in range(9)]
    for repl in chain[:-1]:
        call(repl.run("FINAL([rlm_query('deeper')])"))
    value = done(chain[-1].run("FINAL('bottom')")).final
    for repl in reversed(chain[:-1]):
        value = done(repl.resume(value)).final
    assert str(value) == "[" * 8 + "'bottom'" + "]" * 8
    host.close()


def test_resume_and_run_out_of_order_are_refused(repl: Repl) -> None:
    with pytest.raises(SandboxError):
        repl.resume("x")
    call(repl.run("llm_query('a')"))
    with pytest.raises(SandboxError):
        repl.run("1")
    assert done(repl.resume("v")).stdout == "'v'\n"


FINALS = [
    ("FINAL(None)", None),
    ("x = [1, 2.5, True, {'a': None}]\nFINAL(x)", [1, 2.5, True, {"a": None}]),
    (
        "FINAL((1, {2}, {3: 'x'}.values(), range(2), (i for i in 'ab')))",
        [1, [2], ["x"], [0, 1], ["a", "b"]],
    ),
    ("FINAL([float('nan'), float('inf')])", [None, None]),
    ("FINAL(type(search))", "<class 'method'>"),
    ("v = ['q']\nFINAL_VAR('v')", ["q"]),
    ("v = ['q']\nFINAL_VAR(v)", ["q"]),
    ("FINAL_VAR('not a name')", "not a name"),
    ("try:\n    FINAL(1)\nexcept BaseException:\n    FINAL(2)", 1),
    ("try:\n    FINAL(1)\nexcept BaseException:\n    1 / 0", 1),
    ("import os\ntry:\n    FINAL(1)\nexcept BaseException:\n    os._exit(0)", 1),
    ("import os\ntry:\n    FINAL(1)\nexcept BaseException:\n    os.abort()", 1),
]


@pytest.mark.parametrize(("code", "value"), FINALS)
def test_final_gives_the_value_and_ends_the_cell(repl: Repl, code: str, value: object) -> None:
    result = done(repl.run(code + "\nprint('after')"))
    assert "after" not in result.stdout
    assert result.final == value


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nx.append(x)\nFINAL(x)",
        "x = 1\nfor _ in range(5000): x = [x]\nFINAL(x)",
        "import sys\nsys.set_int_max_str_digits(0)\nFINAL(10 ** 6000)",
        "FINAL('x' * 5_000_000)",
        "FINAL_VAR('no_such_name')",
    ],
)
def test_what_cannot_be_a_final_is_an_exception(repl: Repl, code: str) -> None:
    result = done(repl.run(code))
    assert result.error == "exception"
    assert result.final is UNSET


# --- limits


def test_the_cpu_limit_keeps_the_variables(repl: Repl) -> None:
    repl.run("x = 1")
    result = done(repl.run("print('a')\nwhile True: pass"))
    assert (result.error, result.variables_lost) == ("cpu", False)
    assert (result.stdout, result.traceback) == ("a\n", "line 2: while True: pass")
    assert LIMITS.cell_cpu_s <= result.cpu_s < LIMITS.cell_cpu_s + 0.3
    assert done(repl.run("x")).stdout == "1\n"
