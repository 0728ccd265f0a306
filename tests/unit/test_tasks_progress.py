"""Lines of a stage: they come by time, and a quick stage writes none. The clock is the test's."""

import io
import time

import pytest
from rich.console import Console

from tasks.reporting import progress
from tasks.reporting.progress import Reporter, Work


class Stage:
    """A reporter whose clock stands still until it is told; a look at it every second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written = io.StringIO()
        console = Console(file=self.written, highlight=False, soft_wrap=True)
        self.reporter = Reporter("gate", console=console, clock=lambda: self.now)
        self.times: list[float] = []

    def work(self, what: str, unit: str = "", total: int | None = None, at_once: int = 1) -> Work:
        work = Work(what, unit, total, at_once=at_once, clock=lambda: self.now)
        self.reporter.works.append(work)
        return work

    def wait(self, seconds: float) -> None:
        """Let the time pass."""
        for _ in range(round(seconds)):
            self.now += 1
            before = len(self.lines)
            self.reporter.tick()
            self.times += [self.now] * (len(self.lines) - before)

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


def test_a_slow_stage_says_what_it_does_within_30_s_and_then_at_least_each_60_s():
    stage = Stage()
    stage.work("zero-shot", "episodes", 20, at_once=20)
    stage.wait(14)
    assert stage.lines == []  # a quick stage writes nothing
    stage.wait(600)
    assert stage.times[0] <= 30
    assert max(b - a for a, b in zip(stage.times, stage.times[1:], strict=False)) <= 60
    assert stage.times[-1] > 540
    assert stage.lines[0] == "gate: zero-shot: 0 of 20 episodes, about 20 s so far"
    assert stage.lines[-1].endswith(" min so far")


def test_equal_steps_are_estimated_to_the_second():
    stage = Stage()
    work = stage.work("", "steps", 10)
    for finished in range(1, 10):
        stage.wait(7)
        work.advance()
        assert work.left_s() == pytest.approx(7 * (10 - finished))
    stage.wait(3)
    assert work.left_s() == pytest.approx(4)
    stage.wait(60)  # what overruns its time is not about to end
    assert work.left_s() == pytest.approx(56)


def test_the_thread_reports_a_call_that_blocks(monkeypatch, capsys):
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    monkeypatch.setattr(progress, "FIRST_S", 0.3)  # later than `doing` on a busy machine, too
    with progress.stage("export"), progress.doing("merge"):
        time.sleep(0.6)
    assert capsys.readouterr().err.startswith("export: merge, a few seconds so far\n")


def test_a_quiet_stage_writes_nothing_and_the_outer_one_goes_on(capsys):
    with progress.stage("train") as outer:
        with progress.stage("train", quiet=True):
            progress.say("from a rank")
            outer.say("30 s so far")
        progress.say("from the stage")
    assert capsys.readouterr().err == "train: from the stage\n"
