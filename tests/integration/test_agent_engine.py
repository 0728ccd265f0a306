"""The rollout engine against scripted sessions."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from agent.errors import StoppedError
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.rollouts.engine import play, turn_seed
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env import models
from env.errors import EpisodeError, RefusedError
from env.models import FrameView, Message, ProblemCard, RLMAction, RLMObservation

Answer = RLMObservation | EpisodeError | RefusedError


def view(frame: int, text: str = "", **also: str) -> FrameView:
    place = {"parent": 0, "depth": 1} if frame else {"parent": None, "depth": 0}
    messages = [Message(role="user", content=text)] if text else []
    told = {"kind": "rlm", "status": "ready", "messages": messages, **place, **also}
    return FrameView(frame=frame, **told)


def ended(frame: int, stop: str) -> FrameView:
    return view(frame, status="ended", stop_reason=stop)


def card(problem_id: str, **also: str) -> ProblemCard:
    told = {"collection_id": "g1", "difficulty": "easy", "split": "test", "papers": 4}
    return ProblemCard(problem_id=problem_id, **told, **also)


def two_children(problem_id: str, turn: int) -> Answer:
    """Root, then two children, then the root again, then the end."""
    frames = [
        [view(0, "question")],
        [view(1, "part 1"), view(2, "part 2")],
        [ended(1, "final"), ended(2, "max_turns"), view(0, "output")],
        [ended(0, "final")],
    ][turn]
    if turn < 3:
        return RLMObservation(frames=frames, problem=card(problem_id))
    return RLMObservation(
        frames=frames,
        done=True,
        reward=0.75,
        components={"primary_objective": 0.5},
        metrics=models.AnswerMetrics(precision=1, recall=0.5, f1=2 / 3),
        counters=models.Counters(turns=4, sub_calls=2, frames=3, max_depth=1),
        answer=["a sentence", {"paper_id": "p1", "text": "another"}],
        problem=card(problem_id, tier="focused"),
    )


class ScriptedSessions:
    """Sessions whose answers are a function of problem and turn; sees that none is misused."""

    def __init__(self, script: Callable[[str, int], Answer]) -> None:
        self.script = script
        self.count = 1000
        self.playing: dict[int, tuple[str, int]] = {}
        self.most_open = 0

    def reset(self, slot: int, **kwargs: Any) -> Future[RLMObservation]:
        self.playing[slot] = (kwargs["problem_id"], 0)
        self.most_open = max(self.most_open, len(self.playing))
        return self._answer(slot)

    def step(self, slot: int, action: RLMAction) -> Future[RLMObservation]:
        problem_id, turn = self.playing[slot]
        self.playing[slot] = (problem_id, turn + 1)
        return self._answer(slot)

    def _answer(self, slot: int) -> Future[RLMObservation]:
        future: Future[RLMObservation] = Future()
        answer = self.script(*self.playing[slot])
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


class EchoPolicy:
    """Policy that echoes its input and records requests and released frames."""

    def __init__(self) -> None:
        self.calls: list[list[TurnRequest]] = []
        self.released: list[FrameKey] = []

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        self.calls.append(list(requests))
        return [
            TurnReply(f"{one.key}: {one.messages[0].content}", "stop", [1, 2], [3], [-0.5])
            for one in requests
        ]

    def release(self, keys: Iterable[FrameKey]) -> None:
        self.released += keys


def specs(count: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(problem_id=f"q{number}", seed=number) for number in range(count)]


def test_a_record_holds_the_whole_tree():
    (episode,) = play(EchoPolicy(), ScriptedSessions(two_children), specs(1), sessions=1)
    assert [turn.observation for turn in episode.root.turns] == ["question", "output"]
    assert [turn.text for turn in episode.root.turns] == ["(0, 0): question", "(0, 0): output"]
    assert episode.root.turns[0].prompt_ids == [1, 2]
    assert episode.root.turns[0].logprobs == [-0.5]
    assert [child.turns[0].observation for child in episode.children(0)] == ["part 1", "part 2"]
    reasons = {number: frame.stop_reason for number, frame in episode.frames.items()}
    assert reasons == {0: "final", 1: "final", 2: "max_turns"}
    assert (episode.difficulty, episode.collection_id, episode.tier) == ("easy", "g1", "focused")
    assert (episode.reward, episode.components) == (0.75, {"primary_objective": 0.5})
    assert episode.metrics == models.AnswerMetrics(precision=1, recall=0.5, f1=2 / 3)
    assert episode.counters.sub_calls == 2
    assert episode.answer == ["a sentence", {"paper_id": "p1", "text": "another"}]
    assert episode.void is None
    assert episode.answered


def test_more_specs_than_sessions_refill_keep_their_order_and_release_all_frames():
    sessions = ScriptedSessions(two_children)
    seen: list[Trajectory] = []
    policy = EchoPolicy()
    episodes = play(policy, sessions, specs(7), sessions=3, on_episode=seen.append)
    assert [episode.problem_id for episode in episodes] == [f"q{n}" for n in range(7)]
    assert seen == episodes
    assert sessions.most_open == 3
    assert set(policy.released) == {(n, frame) for n in range(7) for frame in range(3)}
    assert all(episode.root.turns[0].text.endswith("question") for episode in episodes)


def test_turns_have_seeds_of_their_own_that_only_depend_on_spec_frame_and_turn():
    policy = EchoPolicy()
    play(policy, ScriptedSessions(two_children), specs(3), sessions=3)
    seeds = {(r.key, r.seed) for call in policy.calls for r in call}
    assert len({seed for _, seed in seeds}) == 3 * 4
    again = EchoPolicy()
    play(again, ScriptedSessions(two_children), specs(3), sessions=1)
    assert {(r.key, r.seed) for call in again.calls for r in call} == seeds
    assert ((2, 1), turn_seed(2, 1, 0)) in seeds


def test_a_caller_hears_of_each_turn_and_can_end_the_play():
    turns: list[int] = []
    play(EchoPolicy(), ScriptedSessions(two_children), specs(2), sessions=2, on_turn=turns.append)
    assert sorted(turns) == [0] * 4 + [1] * 4

    def stop(_: int) -> None:
        raise StoppedError("enough")

    policy = EchoPolicy()
    with pytest.raises(StoppedError):
        play(policy, ScriptedSessions(two_children), specs(2), sessions=1, on_turn=stop)
    assert (len(policy.calls), policy.released) == (1, [(0, 0)])


LOST: dict[str, tuple[Answer, str]] = {
    "q0": (EpisodeError("dropped"), "connection: dropped"),
    "q1": (RLMObservation(done=True, reward=0.0, void="the sandbox broke"), "the sandbox broke"),
    "q2": (RefusedError("frame 3 is not ready"), "refused: frame 3 is not ready"),
    "q3": (RLMObservation(), "the environment waits for no frame and is not done"),
}


@pytest.mark.parametrize("count", [1, 5])
def test_an_episode_is_lost_without_a_reward_and_the_others_go_on(count):
    def script(problem_id: str, turn: int) -> Answer:
        lost = turn == 1 and problem_id in LOST
        return LOST[problem_id][0] if lost else two_children(problem_id, turn)

    *lost, whole = play(EchoPolicy(), ScriptedSessions(script), specs(5), sessions=count)
    assert [(episode.void, episode.reward) for episode in lost] == [
        (cause, None) for _, cause in LOST.values()
    ]
    assert not any(episode.answered for episode in lost)
    assert (whole.void, whole.reward) == (None, 0.75)


def test_two_dead_rounds_end_the_play():
    sessions = ScriptedSessions(lambda problem_id, turn: EpisodeError("gone"))
    with pytest.raises(EpisodeError, match="environment lost after 4 of 100 episodes"):
        play(EchoPolicy(), sessions, specs(100), sessions=2)
    assert len(sessions.playing) == 2
