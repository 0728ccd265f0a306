"""The tree of frames, on real sandboxes and without a server."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers.trees import Play, ScriptedRepls

from env.errors import RefusedError
from env.models import FrameTurn
from env.server.sandbox import CellDone, SandboxHost
from env.settings import EnvSettings, LimitSettings

PAPERS = {
    "p1": "A study of Zogdab.\nKalvot scores 12 on Mirbex.\nKalvot scores 13 on Pobtod.",
    "p2": "A study of Velnop.\nOn Mirbex, Kalvot gets 48.",
}


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with closing(SandboxHost(EnvSettings(limits=LimitSettings(cell_cpu_s=0.4)))) as opened:
        yield opened


def started(host: SandboxHost | ScriptedRepls, **limits: Any) -> Play:
    few = {"cell_cpu_s": 0.4, "max_turns": 4, "max_frames": 32, "max_children": 8}
    return Play(host, PAPERS, **few | limits)


@pytest.fixture
def play(host: SandboxHost) -> Iterator[Play]:
    playing = started(host)
    yield playing
    playing.tree.close()


def test_children_work_in_one_step_and_their_values_come_back_in_order(play: Play) -> None:
    ask = 'r = rlm_query_batched(["one", "two"], [context["p1"], context["p2"]])\nFINAL(r)'
    play.code((0, ask))
    assert play.statuses() == ["waiting", "ready", "ready"]
    assert [message.content for message in play.views[2].messages][-1] == "two\ncontext: str"
    # The answers come in reverse order: each value has its own slot.
    play.code((2, "FINAL(context[-3:])"))
    assert not play.tree.done
    play.code((1, "FINAL([len(context), None, {'a': 1.5}])"))
    assert play.tree.answer == [[len(PAPERS["p1"]), None, {"a": 1.5}], "48."]


def test_each_agents_question_is_a_variable(play: Play) -> None:
    play.code((0, 'FINAL([question, rlm_query("Read <p>.", context["p1"])])'))
    play.code((1, "question += '!'\nFINAL(question)"))
    assert play.tree.answer == ["Which?", "Read <p>.!"]


def test_a_grandchilds_value_reaches_the_roots_final(play: Play) -> None:
    play.code((0, 'FINAL(["root", rlm_query("child", context["p1"])])'))
    play.code((1, 'below = rlm_query("grandchild", context[:18])\nFINAL(["child", below])'))
    assert play.views[2].depth == 2
    assert play.statuses() == ["waiting", "waiting", "ready"]
    play.code((2, 'FINAL(context + "!")'))
    assert play.tree.answer == ["root", ["child", "A study of Zogdab.!"]]
    assert play.tree.counters.max_depth == 2
    assert play.stops() == ["final"] * 3


def test_llm_frames_get_the_prompt_and_give_text(play: Play) -> None:
    play.code((0, 'FINAL(llm_query_batched(["a?", "b?"]) + [llm_query("c?")])'))
    assert play.views[1].kind == "llm"
    assert play.said(1) == "a?"
    play.turn((1, "alpha"), (2, "beta"))
    play.turn((3, "gam"), finish="length")
    assert play.tree.answer == ["alpha", "beta", "gam"]


@pytest.mark.parametrize(
    "turns",
    [
        [FrameTurn(frame=7, text="x")],
        [FrameTurn(frame=0, text="x")],
        [FrameTurn(frame=1, text="x"), FrameTurn(frame=1, text="y")],
        [FrameTurn(frame=1, text="x"), FrameTurn(frame=0, text="y")],
    ],
    ids=["unknown", "waiting", "repeated", "one of two waits"],
)
def test_refused_turns_change_nothing(play: Play, turns: list[FrameTurn]) -> None:
    play.code((0, 'rlm_query("a")'))
    before = (play.tree.states(), play.tree.counters)
    with pytest.raises(RefusedError):
        play.tree.play(turns)
    assert (play.tree.states(), play.tree.counters) == before


def test_mistakes_are_observations_and_cost_a_turn(play: Play) -> None:
    play.turn((0, "I think it is 12."))
    assert play.said(0).startswith("error: no repl block")
    play.turn((0, "```repl\nx = 1\n```\n```repl\ny = 1\n```"))
    assert play.said(0).startswith("error: 2 repl blocks")
    play.code((0, "x = ("))
    assert play.said(0).startswith("error: ")
    assert "never closed" in play.said(0)
    play.code((0, "1 / 0"))
    counters = play.tree.counters
    assert (counters.turns, counters.errors, counters.format_errors) == (4, 4, 2)
    assert play.stops() == ["max_turns"]


def test_a_child_that_was_cut_or_is_out_of_turns_answers_with_a_sentence(play: Play) -> None:
    play.code((0, 'FINAL(rlm_query_batched(["a", "b"]))'))
    play.turn((1, "```repl\nFINAL(1)"), finish="length")
    for _ in range(4):
        play.code((2, "print(1)"))
    told = "error: the sub-call ended without FINAL"
    assert play.tree.answer == [f"{told} (truncated)", f"{told} (max_turns)"]


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        ({"max_depth": 0}, 'print(rlm_query("a"))', "depth 0"),
        ({"max_children": 2}, 'print(rlm_query_batched(["a"] * 3, ["x"] * 3)[2])', "at most 2"),
        ({"max_frames": 1}, 'print(llm_query("a"))', "frames of this episode"),
        ({"PROMPT_CHARS": 20}, 'print(rlm_query("a" * 21))', "longer than 20 characters"),
        ({"CHILD_CONTEXT_CHARS": 100}, 'print(rlm_query("a", "x" * 101))', "longer than 100"),
        ({"CHILD_CONTEXT_CHARS": 100}, 'print(rlm_query("a", {"x" * 101: ""}))', "longer than 100"),
        ({}, 'print(rlm_query("a", 12))', "a context is a string"),
    ],
)
def test_limits_of_sub_calls_come_back_as_error_strings(host, limits, code, said, monkeypatch):
    for name in filter(str.isupper, limits):
        monkeypatch.setattr(f"env.server.tree.tree.{name}", limits[name])
    play = started(host, **{name: limits[name] for name in filter(str.islower, limits)})
    play.code((0, code))
    for frame, view in list(play.views.items()):
        if frame and view.status == "ready":
            play.code((frame, "FINAL(0)"))
    assert play.said(0).startswith("error: ")
    assert said in play.said(0)
    play.tree.close()


def test_an_endless_loop_of_refused_sub_calls_is_stopped_and_told(host: SandboxHost) -> None:
    play = started(host, max_depth=0, max_frames=8)
    play.code((0, 'x = 5\nwhile True: rlm_query("a")'))
    told = "error: stopped because the 256 sub-calls of this episode are used up\nerror: all variab"
    assert play.said(0).startswith(told)
    counters = play.tree.counters
    assert (counters.sub_calls, counters.errors, counters.timeouts) == (257, 1, 0)
    play.code((0, 'FINAL([len(context), "x" in globals()])'))
    assert play.tree.answer == [2, False]
    assert play.tree.void is None


def test_calls_beyond_the_limit_cost_their_frame_a_cell_and_no_other_frame(host):
    for calls, reasons in ((126, ["final", "final"]), (127, ["max_turns", "final"])):
        play = started(host, max_depth=1, max_frames=4, max_turns=1)
        play.code((0, 'FINAL(rlm_query_batched(["a", "b"]))'))
        many = f'for _ in range({calls}): rlm_query("a")\nFINAL(1)'  # the limit is 128 with these
        play.code((1, many), (2, "FINAL(2)"))
        assert play.stops() == ["final", *reasons]
        assert play.tree.answer[1] == 2
        assert play.tree.counters.errors == calls - 126


def test_cells_that_call_or_compute_use_up_the_seconds_of_the_episode(host, monkeypatch):
    monkeypatch.setattr("env.server.tree.tree.EPISODE_S", 1.0)  # cells have 0.4 s
    play = started(host, max_depth=1, max_frames=3, max_turns=64)
    play.code((0, 'rlm_query_batched(["a", "b"])'))
    calling = 'while True: rlm_query("a")'
    for code in (calling, calling, "while True: pass"):
        assert not play.tree.done
        play.code((2, code))
    assert (play.stops(), play.tree.void) == (["budget", "budget", "timeout"], None)


def test_plain_final_lines_answer(host: SandboxHost) -> None:
    for text, answer in (
        ("Done.\nFINAL(The score is (about) 12)", "The score is (about) 12"),
        ('FINAL(["a", "b"])', ["a", "b"]),
        ('FINAL_VAR("question")', "Which?"),
        ("```repl\nx = [1]\n```\nFINAL_VAR(x)", [1]),
        ("```repl\nx = [2]\n```\nFINAL(x)", [2]),
    ):
        play = started(host)
        play.turn((0, text))
        assert play.tree.answer == answer
        assert play.tree.counters.format_errors == 0


def test_what_the_policy_saw_or_handed_on_is_kept(play: Play) -> None:
    play.code((0, 'print(context["p2"])\nrlm_query("look", context["p1"])'))
    assert play.tree.shown == ["look"]  # p2: its cell has not ended; p1: its child may not print it
    assert [child.given for child in play.tree.children] == [{"context": PAPERS["p1"]}]
    play.code((1, "FINAL(0)"))
    assert PAPERS["p2"] in "\n".join(play.tree.shown)


def test_answers_of_children_are_bounded(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env.server.tree.tree.CHILD_CONTEXT_CHARS", 100)
    play.code((0, 'r = [llm_query("a"), *rlm_query_batched(["b", "c"])]\nFINAL(r)'))
    play.turn((1, "x" * 1000))
    play.code((2, 'FINAL("y" * 101)'))
    assert "at most 100 characters" in play.said(2)
    play.turn((3, "FINAL(many words %s)" % ("z " * 50)))
    assert "at most 100 characters" in play.said(3)
    play.code((2, 'FINAL("y" * 100)'))
    play.turn((3, "FINAL(some words)"))
    assert play.tree.answer == ["x" * 100, "y" * 100, "some words"]
    assert play.stops()[1] == "truncated"


def test_a_context_that_is_too_long_is_never_made(play, monkeypatch):
    monkeypatch.setattr("env.server.tree.tree.as_context", lambda given: pytest.fail("it was made"))
    play.code((0, 'print(rlm_query("a", ["x" * 100_000] * 16))'))
    assert "longer than" in play.said(0)


def test_a_scored_episode_keeps_no_text(play: Play) -> None:
    play.code((0, 'print(context["p2"])\nr = rlm_query("look", context["p1"])\nFINAL(r)'))
    play.code((1, 'FINAL("text")'))
    play.tree.forget()
    assert (play.tree.papers, play.tree.shown, play.tree.answer) == ({}, [], None)
    for frame in play.tree._frames:
        assert (frame.context, frame.answer, frame.final_text) == (None, None, None)
        assert frame.prompt == ""
        assert (frame.unsent, frame.output, frame.calls) == ([], [], None)


def test_a_failed_policy_makes_the_episode_void(play: Play) -> None:
    play.code((0, 'rlm_query("a", context)'))
    play.turn((1, ""), finish="error")
    assert play.tree.void == "the policy failed"
    assert play.tree.done


def test_a_machine_too_busy_to_run_a_cell_is_no_mistake_of_the_model() -> None:
    play = started(ScriptedRepls(CellDone("", error="starved", cpu_s=0.1)))
    play.code((0, "x = 1"))
    assert play.tree.done
    assert play.tree.void == "the machine was too busy to run a cell"


def test_frames_left_out_keep_waiting(play: Play) -> None:
    play.code((0, 'rlm_query_batched(["a", "b"])'))
    play.code((2, "print(1)"))
    assert play.statuses() == ["waiting", "ready", "ready"]
    ready = [view for view in play.tree.views() if view.status == "ready"]
    assert [view.frame for view in ready] == [1, 2]
    assert not any(view.messages for view in ready)  # sent before
