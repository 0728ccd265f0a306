"""The real environment plays demonstrations as they were made, word for word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from agent.nano.plans import BEST, PlanKind, ReadingPlan, ReadingTalks, with_slip
from agent.nano.tokenizer import Conversation
from agent.policies.base import TurnReply, TurnRequest
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.models import AnswerMetrics
from env.problems.fields import BENCHMARK, LevelSettings, read_question
from env.problems.lexicon import untaught
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


class ProblemTalks(ReadingTalks):
    """Roots that read the sentences of one problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(512)
        self.problem = problem

    def sentences(self, rng: Random, method: str, count: int) -> list[tuple[str, str]]:
        texts = [span.text for span in self.problem.candidates[:count]]
        return [(BENCHMARK.findall(text)[0], text) for text in texts]


class PlannedPolicy:
    """Writes a root's conversation; its readers are right, and remembers what the root reads."""

    def __init__(self, talks: ReadingTalks, root: Conversation, child: Conversation) -> None:
        self.talks, self.child = talks, child
        self.written = [m["content"] for m in root if m["role"] == "assistant"]
        self.read: Conversation = []

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        return [TurnReply(text=self.turn(request)) for request in requests]

    def turn(self, request: TurnRequest) -> str:
        if request.kind == "llm":
            return self.talks.answer(Random(0), BENCHMARK.findall(request.messages[-1].content))
        if request.key[1]:
            assert [m.model_dump() for m in request.messages] == self.child[:2]
            return self.child[2]["content"]
        self.read += [m.model_dump() for m in request.messages]
        text = self.written.pop(0)
        self.read.append({"role": "assistant", "content": text})
        return text

    def release(self, keys: Sequence[object]) -> None:
        pass


@pytest.fixture(scope="module")
def params() -> Params:
    params = resolve(overrides=["threads=1"])
    levels = {f"papers_{size}": LevelSettings(papers=size) for size in (4, 16, 48)}
    smaller = {"levels": levels, "collections": {"test": 1}}
    synthetic = params.prepare.synthetic.model_copy(update=smaller)
    prepare = params.prepare.model_copy(update={"synthetic": synthetic})
    return params.model_copy(update={"prepare": prepare})


@pytest.fixture(scope="module")
def problems(params: Params) -> list[Problem]:
    store = ProblemStore.generate(params.prepare.synthetic)
    return [store.get(store.ids("test", level)[0]) for level in params.prepare.synthetic.levels]


@pytest.fixture(scope="module")
def sessions(params: Params) -> Iterator[Sessions]:
    with local_server(params, data=None) as url, Sessions(url, 1) as sessions:
        yield sessions


def played(
    sessions: Sessions, problem: Problem, plan: ReadingPlan, slips: Random | None = None
) -> tuple[Trajectory, AnswerMetrics, Conversation]:
    """The episode of a root that plans so and reads its conversation, word for word."""
    talks = ProblemTalks(problem)
    method, field = read_question(problem.question)
    root = talks.root(Random(0), plan, method, field, len(problem.papers))
    root[1]["content"] = root[1]["content"].replace(
        root[1]["content"].partition("\n")[0], problem.question
    )
    if slips is not None:
        root, at = with_slip(root, slips)
        assert at is not None
        assert root[at + 1]["content"].startswith("error: ")
    policy = PlannedPolicy(talks, list(root), talks.child(method, field, plan.keep))
    [episode] = play(policy, sessions, [EpisodeSpec(problem.problem_id, seed=0)], sessions=1)
    assert policy.read == root
    return episode, episode.metrics, root


WHOLE = [
    BEST,
    ReadingPlan("readers", 1, None, "field"),
    ReadingPlan("children", 1, None, "field"),
    ReadingPlan("pages", 8, None, "field"),
    ReadingPlan("names", 1, None, "field"),
]


@pytest.mark.parametrize("plan", WHOLE)
def test_each_way_to_read_everything_finds_all_gold(
    sessions: Sessions, problems: list[Problem], plan: ReadingPlan
) -> None:
    most = 2 if plan.kind == "pages" else 3  # the pages of 48 papers take more than eight turns
    for problem in problems[:most]:
        episode, metrics, _ = played(sessions, problem, plan)
        assert metrics.exact_match, plan
        assert episode.counters.errors == 0


POOR = [
    ReadingPlan("unread", 4, None, "field"),
    ReadingPlan("readers", 4, 8, "field"),
    ReadingPlan("readers", 4, None, "all"),
    ReadingPlan("pages", 4, 16, "first"),
]


@pytest.mark.parametrize("plan", POOR)
def test_each_poor_decision_costs(
    sessions: Sessions, problems: list[Problem], plan: ReadingPlan
) -> None:
    _, metrics, _ = played(sessions, problems[1], plan)
    assert metrics.f1 < 0.6


def test_a_root_answers_with_the_sentences_that_an_observation_shows(
    sessions: Sessions, problems: list[Problem]
) -> None:
    _, metrics, root = played(sessions, problems[1], ReadingPlan("pages", 144, None, "field"))
    assert "characters cut]" in root[5]["content"]
    assert 0 < metrics.recall < 1 == metrics.precision


def test_names_from_memory_find_all_gold_but_what_is_never_taught(
    sessions: Sessions, problems: list[Problem]
) -> None:
    episode, _, root = played(sessions, problems[1], ReadingPlan("recite", 1, None, "field"))
    gold = {span.text for fact in problems[1].evidence for span in fact.spans}
    left_out = {text for text in gold if BENCHMARK.findall(text)[0] in untaught(512)}
    assert isinstance(episode.answer, list)
    assert set(episode.answer) == gold - left_out
    written = " ".join(turn["content"] for turn in root[2::2])
    assert len(BENCHMARK.findall(written)) > 50


@pytest.mark.parametrize("kind", ["readers", "children", "pages", "names", "unread"])
def test_the_environment_answers_a_slip_in_the_very_words(
    sessions: Sessions, problems: list[Problem], kind: PlanKind
) -> None:
    rng = Random(5)
    for _ in range(6):
        episode, *_ = played(sessions, problems[0], ReadingPlan(kind, 8, None, "field"), rng)
        assert episode.counters.errors == 1
        assert episode.root.stop_reason == "final"
