"""The environment inside one process: internal errors, and what a client reads of them."""

import os
import signal
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from env.errors import SettingsError
from env.models import FrameTurn, RLMAction
from env.problems.fields import SyntheticSettings
from env.problems.schema import Fact, Span
from env.problems.store import ProblemStore
from env.server.environment import RLMEnvironment
from env.server.service import ServerSettings, Service, check_budget, read_settings
from env.settings import EnvSettings, LimitSettings

SMALL = SyntheticSettings(collections={"train": 2, "validation": 1, "test": 1})
ANSWER = RLMAction(text="```repl\nFINAL([])\n```")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    settings = ServerSettings(env=EnvSettings(allow_documents=True))
    opened = Service(settings, ProblemStore.generate(SMALL))
    yield opened
    opened.close()


@pytest.fixture
def environment(service: Service) -> Iterator[RLMEnvironment]:
    made = RLMEnvironment(lambda: service)
    yield made
    made.close()


def test_a_step_before_a_reset_is_refused(environment: RLMEnvironment) -> None:
    early = environment.step(ANSWER)
    assert "reset" in str(early.refused)
    assert early.done  # a loop that waits for the end must not wait forever
    assert not early.frames


def test_an_answer_counts_when_the_smallest_is_scored_first(environment, service, monkeypatch):
    sizes: list[int] = []
    turn = service.scoring.turn
    monkeypatch.setattr(service.scoring, "turn", lambda size: (sizes.append(size), turn(size))[1])
    for answer in ("[]", "[str(i) * 20 for i in range(1000)]"):
        environment.reset(seed=0)
        ended = environment.step(RLMAction(text=f"```repl\nFINAL({answer})\n```"))
        assert ended.done
        assert environment.rubric.last_score == ended.reward
    assert sizes[1] - sizes[0] > 20 * 1000


def test_an_episode_that_cannot_be_scored_is_void_and_its_gold_stays_inside(service, caplog):
    problem = service.problems.get(service.problems.ids()[0])
    span = Span(paper_id="p1", start=5, end=5, text="secret gold")
    broken = problem.model_copy(update={"evidence": (Fact(fact_id="f", spans=(span,)),)})
    other = Service(service.settings, ProblemStore([broken], "test"))
    environment = RLMEnvironment(lambda: other)
    environment.reset(problem_id=problem.problem_id)
    done = environment.step(ANSWER)
    assert (done.done, done.void, done.reward) == (True, "internal error of the server", None)
    assert "secret" not in done.model_dump_json()
    assert "cannot be scored" in caplog.text
    environment.close()
    other.close()


def test_nothing_before_the_end_depends_on_gold(service, monkeypatch):
    problems = map(service.problems.get, service.problems.ids("train", "hard"))
    one, other = next(
        (one, other)
        for one, other in combinations(problems, 2)
        if one.papers == other.papers and len(one.gold_papers) != len(other.gold_papers)
    )
    regilded = one.model_copy(update={"evidence": other.evidence, "tier": "singleton"})
    second = Service(service.settings, ProblemStore([regilded], "test"))
    score, seconds = RLMEnvironment._score, []

    def watched(self: RLMEnvironment, *arguments: Any) -> dict[str, Any]:
        seconds.append(arguments[0].counters.env_s)
        return score(self, *arguments)

    monkeypatch.setattr(RLMEnvironment, "_score", watched)
    seen: list[list[dict[str, Any]]] = []
    for played in (service, second):
        environment = RLMEnvironment(lambda played=played: played)  # type: ignore[misc]
        views = [environment.reset(problem_id=one.problem_id)]
        for turns in (
            [(0, "x = list_papers(context)\nprint(x, search(context, 'scores'))")],
            [(0, f"y = rlm_query('Which?', context)\nFINAL([{one.papers[0].title!r}])")],
            [(1, "1 / 0")],
            [(1, "FINAL([])")],
        ):
            action = [FrameTurn(frame=n, text=f"```repl\n{code}\n```") for n, code in turns]
            states = [environment.state.model_dump(exclude={"episode_id", "counters"})]
            views.append(environment.step(RLMAction(turns=action)))
        assert [view.done for view in views] == [False, False, False, False, True]
        assert views[-1].counters.env_s == seconds.pop()  # the time of scoring is not part of it
        seen.append([view.model_dump(exclude={"counters": {"env_s"}}) for view in views])
        seen[-1][-1:] = states
        environment.close()
    second.close()
    assert seen[0] == seen[1]


def test_an_episode_without_an_answer_shows_none(environment):
    ended = environment.reset(seed=0)
    while not ended.done:
        ended = environment.step(RLMAction(text="I do not know."))
    assert (ended.answer, ended.reward) == (None, 0.0)


def test_a_dead_zygote_voids_the_episode_and_the_next_one_plays(service, environment):
    environment.reset(seed=0)
    environment.step(RLMAction(text="```repl\nx = 1\n```"))
    zygote = service.host._zygote.pid
    os.kill(zygote, signal.SIGKILL)
    os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)  # dead, and left for its owner to reap
    lost = environment.step(RLMAction(text="```repl\nprint(x)\n```"))
    assert (lost.void, lost.reward) == ("the sandbox failed", None)
    environment.reset(seed=0)
    assert environment.step(ANSWER).reward == 0.0


def test_problems_share_by_their_id_and_own_documents_do_not(service, environment, monkeypatch):
    calls: list[tuple[Any, str | None]] = []
    plain = service.host.open

    def noted(context: Any, shared_as: str | None = None, **more: Any) -> Any:
        calls.append((context, shared_as))
        return plain(context, shared_as, **more)

    monkeypatch.setattr(service.host, "open", noted)
    problem = service.problems.get(service.problems.ids("train", "easy")[0])
    for start in ({"problem_id": problem.problem_id}, {"question": "?", "papers": {"a": "b"}}):
        assert environment.reset(**start).refused is None
        environment.step(ANSWER)
    papers = {paper.paper_id: paper.text for paper in problem.papers}
    assert calls == [(papers, problem.problem_id), ({"a": "b"}, None)]


def test_a_closed_session_is_void_and_then_refused(environment: RLMEnvironment) -> None:
    environment.reset(seed=0)
    environment.close()
    late = environment.step(ANSWER)
    assert late.done
    assert late.void is not None
    assert late.reward is None
    assert environment.reset(seed=0).refused is not None


def test_settings_come_from_the_named_file(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "env: {prompt_style: full}\n"
        "prepare: {synthetic: {seed: 3}, not_the_servers: 1}\n"
        "train: {steps: 5}\n"
    )
    settings = read_settings({"RLM_SETTINGS": str(path)})
    assert settings.env.prompt_style == "full"
    assert settings.prepare.synthetic.seed == 3
    assert read_settings({}) == ServerSettings()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("env: {colour: red}", "env.colour"),
        ("rewards: {weights: {efficiency: 1}}", "sum to 1"),
        ("[1, 2]", "mapping"),
        ("env: {", "YAML"),
    ],
)
def test_wrong_settings_name_file_and_key(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=word) as caught:
        read_settings({"RLM_SETTINGS": str(path)})
    assert str(path) in str(caught.value)


def test_the_trees_budget_is_never_below_what_efficiency_pays_for() -> None:
    def check(**limits: int) -> None:
        settings = ServerSettings(env=EnvSettings(limits=LimitSettings(**limits)))
        check_budget(settings, gold_papers=6)

    check()
    check(max_frames=16, max_turns=4)
    for frames, turns in ((12, 4), (6, 64)):
        with pytest.raises(SettingsError, match=r"env\.limits"):
            check(max_frames=frames, max_turns=turns)
