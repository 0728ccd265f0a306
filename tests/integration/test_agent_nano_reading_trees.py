"""The real environment plays demonstrations as they were made, word for word."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from agent.nano.plans import BEST, ReadingPlan, ReadingTalks, with_slip
from agent.nano.tokenizer import Conversation
from agent.policies.base import TurnReply, TurnRequest
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.problems.fields import BENCHMARK, read_question
from env.problems.lexicon import untaught
from env.problems.schema import Problem
from env.problems.store import ProblemStore

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


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

    def release(self, keys: Sequence[object]) -> None: ...


@pytest.fixture(scope="module")
def problems(server_problems: ProblemStore) -> list[Problem]:
    """One of 4 papers; one of 16, whose gold has two names that are never taught."""
    ids = [server_problems.ids("test", level)[1] for level in ("easy", "hard")]
    return list(map(server_problems.get, ids))


@pytest.fixture(scope="module")
def sessions(server_url: str) -> Iterator[Sessions]:
    with Sessions(server_url, 1) as sessions:
        yield sessions


def played(
    sessions: Sessions, problem: Problem, plan: ReadingPlan, slips: Random | None = None
) -> tuple[Trajectory, Conversation]:
    """The episode of a root that plans so and reads its conversation, word for word."""
    read = [(BENCHMARK.findall(span.text)[0], span.text) for span in problem.candidates]
    talks = ReadingTalks(512)
    talks.sentences = lambda rng, method, count: read[:count]
    method, field = read_question(problem.question)
    root = talks.root(Random(0), plan, method, field, len(problem.papers))
    _, _, context = root[1]["content"].partition("\n")
    root[1]["content"] = f"{problem.question}\n{context}"
    if slips is not None:
        root, at = with_slip(root, slips)
        assert at is not None
        assert root[at + 1]["content"].startswith("error: ")
    policy = PlannedPolicy(talks, list(root), talks.child(method, field, plan.keep))
    [episode] = play(policy, sessions, [EpisodeSpec(problem.problem_id, seed=0)], sessions=1)
    assert policy.read == root
    return episode, root


WHOLE = [
    BEST,
    ReadingPlan("readers", 1, None, "field"),
    ReadingPlan("children", 1, None, "field"),
    ReadingPlan("pages", 8, None, "field"),
    ReadingPlan("names", 1, None, "field"),
]


@pytest.mark.parametrize("plan", WHOLE)
def test_each_way_to_read_everything_finds_all_gold(sessions, problems, plan):
    for problem in problems:
        episode, _ = played(sessions, problem, plan)
        assert episode.metrics.exact_match, plan
        assert episode.counters.errors == 0


POOR = [
    ReadingPlan("unread", 4, None, "field"),
    ReadingPlan("readers", 4, 8, "field"),
    ReadingPlan("readers", 4, None, "all"),
    ReadingPlan("pages", 4, 16, "first"),
]


@pytest.mark.parametrize("plan", POOR)
def test_each_poor_decision_costs(sessions, problems, plan):
    episode, _ = played(sessions, problems[1], plan)
    assert episode.metrics.f1 < 0.6


def test_a_root_answers_with_the_sentences_that_an_observation_shows(sessions, problems):
    episode, root = played(sessions, problems[1], ReadingPlan("pages", 144, None, "field"))
    assert "characters cut]" in root[5]["content"]
    assert 0 < episode.metrics.recall < 1 == episode.metrics.precision


def test_names_from_memory_find_all_gold_but_what_is_never_taught(sessions, problems):
    episode, root = played(sessions, problems[1], ReadingPlan("recite", 1, None, "field"))
    gold = {span.text for fact in problems[1].evidence for span in fact.spans}
    left_out = {text for text in gold if BENCHMARK.findall(text)[0] in untaught(512)}
    assert isinstance(episode.answer, list)
    assert set(episode.answer) == gold - left_out
    assert len(BENCHMARK.findall(" ".join(turn["content"] for turn in root[2::2]))) > 50


@pytest.mark.parametrize("kind", ["readers", "children", "pages", "names", "unread"])
def test_the_environment_answers_a_slip_in_the_very_words(sessions, problems, kind):
    rng = Random(5)
    for _ in range(6):
        episode, _ = played(sessions, problems[0], ReadingPlan(kind, 8, None, "field"), rng)
        assert episode.counters.errors == 1
        assert episode.root.stop_reason == "final"
