"""Lines of a stage: they come by time, and a quick stage writes none. The clock is the test's."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from random import Random

import pytest
from rich.console import Console

from tasks.reporting import progress
from tasks.reporting.progress import Reporter, Work


class Stage:
    """A reporter whose clock stands still until it is told; a look at it every second."""

    def __init__(self, name: str = "gate", terminal: bool = False) -> None:
        self.now = 0.0
        self.written = io.StringIO()
        console = Console(
            file=self.written,
            force_terminal=terminal,
            width=200 if terminal else None,
            highlight=False,
            soft_wrap=True,
        )
        self.reporter = Reporter(name, console=console, clock=lambda: self.now)
        self.times: list[float] = []

    def work(self, what: str, unit: str = "", total: int | None = None, at_once: int = 1) -> Work:
        work = Work(what, unit, total, at_once=at_once, clock=lambda: self.now)
        self.reporter.works.append(work)
        return work

    def wait(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        """Let the time pass; `each` is called every second."""
        for _ in range(round(seconds)):
            self.now += 1
            before = len(self.lines)
            each()
            self.reporter.tick()
            self.times += [self.now] * (len(self.lines) - before)

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


def left_of(line: str) -> float:
    """Seconds that a line estimates."""
    found = re.search(r"about ([\d.]+) (s|min|h) left", line)
    assert found, line
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]]


def test_a_slow_stage_says_what_it_does_within_30_s_and_then_at_least_each_60_s():
    stage = Stage()
    stage.work("zero-shot", "episodes", 20, at_once=20)
    stage.wait(600)
    assert stage.times[0] <= 30
    assert max(b - a for a, b in zip(stage.times, stage.times[1:], strict=False)) <= 60
    assert stage.times[-1] > 540
    assert stage.lines[0] == "gate: zero-shot: 0 of 20 episodes, about 20 s so far"


def test_a_quick_stage_writes_nothing():
    stage = Stage()
    work = stage.work("", "steps", 1000)
    stage.wait(14, each=work.advance)
    assert stage.lines == []


def test_many_fast_steps_write_no_more_lines_than_few_slow_ones():
    stage = Stage()
    work = stage.work("", "steps", 10_000)
    stage.wait(120, each=lambda: [work.advance() for _ in range(80)])
    assert len(stage.lines) == 4


def test_a_line_of_the_stage_itself_puts_the_next_one_off():
    stage = Stage("train")
    stage.work("", "steps", 24)
    stage.wait(100, each=lambda: stage.now % 10 or stage.reporter.say(f"step {stage.now:.0f}"))
    assert stage.lines == [f"train: step {second}" for second in range(10, 101, 10)]


def test_equal_steps_are_estimated_to_the_second():
    stage = Stage()
    work = stage.work("", "steps", 10)
    for finished in range(1, 10):
        stage.wait(7)
        work.advance()
        assert work.left_s() == pytest.approx(7 * (10 - finished))
    stage.wait(3)
    assert work.left_s() == pytest.approx(4)


def test_before_the_first_unit_there_is_no_estimate_and_after_the_last_neither():
    stage = Stage()
    work = stage.work("", "steps", 1)
    stage.wait(20)
    assert work.left_s() is None
    work.advance()
    assert work.left_s() is None


def test_what_overruns_its_time_is_not_about_to_end():
    stage = Stage()
    work = stage.work("", "steps", 2)
    stage.wait(10)
    work.advance()
    stage.wait(70)
    assert work.left_s() == pytest.approx(60)


def test_steps_of_an_earlier_run_say_nothing_about_the_time():
    stage = Stage()
    work = stage.work("", "steps", 24)
    work.begin_at(20)
    stage.wait(30)
    assert work.left_s() is None
    work.advance()
    assert work.left_s() == pytest.approx(90)


def test_episodes_in_waves_are_estimated_by_how_many_run_at_once():
    stage = Stage()
    work = stage.work("", "episodes", 20, at_once=5)
    stage.wait(10)
    for _ in range(5):
        work.advance(seconds=10.0)
    assert work.left_s() == pytest.approx(30)


def test_the_estimate_is_of_the_right_size_when_all_episodes_run_side_by_side():
    rng = Random(0)
    ends = sorted(rng.uniform(60, 240) for _ in range(40))
    stage = Stage()
    work = stage.work("", "episodes", len(ends), at_once=len(ends))

    def end() -> None:
        while work.done < len(ends) and ends[work.done] <= stage.now:
            work.advance(seconds=ends[work.done])

    errors = []
    for _ in range(200):
        stage.wait(1, each=end)
        if (left := work.left_s()) is not None and work.done >= 10:
            errors.append(abs(left - (ends[-1] - stage.now)) / ends[-1])
    assert len(errors) > 60
    assert max(errors) < 0.25  # of the whole play


def test_turns_are_counted_while_no_episode_has_ended():
    stage = Stage()
    work = stage.work("rollout", "episodes", 64, at_once=64)
    stage.wait(16, each=work.turn)
    assert stage.lines == ["gate: rollout: 0 of 64 episodes, 15 turns, about 20 s so far"]


def test_a_line_has_the_steps_and_what_happens_within_one():
    stage = Stage("train")
    steps = stage.work("", "steps", 24)
    stage.wait(14)
    steps.advance()
    rollout = stage.work("rollout", "episodes", 4)
    rollout.advance(seconds=1.0)
    stage.wait(1)
    (line,) = stage.lines
    assert line.startswith("train: 1 of 24 steps, about 5 min left; rollout: 1 of 4 episodes, ")
    assert left_of(line) == 300


def test_what_is_loaded_has_a_name_and_no_count():
    stage = Stage()
    stage.work("load the model")
    stage.wait(15)
    assert stage.lines == ["gate: load the model, about 20 s so far"]


def test_the_thread_reports_a_call_that_blocks(monkeypatch, capsys):
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    with progress.stage("export"), progress.doing("merge"):
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("export: merge, a few seconds so far\n")


def test_a_quiet_stage_writes_nothing_and_the_outer_one_goes_on(capsys):
    with progress.stage("train"):
        with progress.stage("train", quiet=True):
            progress.say("from a rank")
        progress.say("from the stage")
    assert capsys.readouterr().err == "train: from the stage\n"


def test_the_thread_ends_with_its_stage():
    with progress.stage("gate") as reporter:
        assert reporter._thread.is_alive()
    assert not reporter._thread.is_alive()


def test_work_outside_of_a_stage_is_counted_too():
    with progress.doing("before, greedy", "episodes", 2) as work:
        assert list(progress.counted("gradient", [1, 2, 3])) == [1, 2, 3]
        work.advance()
    assert str(work).startswith("before, greedy: 1 of 2 episodes")


def test_a_terminal_shows_a_bar_instead_of_lines():
    stage = Stage("train", terminal=True)
    work = Work("", "steps", 4, clock=lambda: stage.now)
    with stage.reporter.doing(work):
        assert stage.reporter.shows_bar
        before = stage.written.getvalue()
        stage.now = 100.0
        stage.reporter.tick()
        assert "so far" not in stage.written.getvalue()[len(before) :]
        work.advance(figures="reward 0.5")
    assert not stage.reporter.shows_bar
    assert "1 of 4 steps" in stage.written.getvalue()
    assert "reward 0.5" in stage.written.getvalue()
