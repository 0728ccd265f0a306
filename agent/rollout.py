"""Plays many episodes at once, every ready frame of every tree in one call of the policy.

Play goes in rounds: episodes are begun in free sessions; then all observations are awaited; then
the policy is asked for one turn of every frame that is ready, and what it has written is sent
while it writes the rest. Nothing depends on who is faster, so the same specs, policy and sessions
give the same episodes. Neighbours: `env/client.py` carries the messages, `agent/trajectory.py` is
the record.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field

from agent.policy import FrameKey, Policy, TurnReply, TurnRequest, replies
from agent.trajectory import FrameRecord, Trajectory, TurnRecord
from env.client import Sessions
from env.errors import EpisodeError, RefusedError
from env.models import FrameTurn, FrameView, RLMAction, RLMObservation

_DEAD_ROUNDS = 2
"""Rounds in a row in which every session failed: then the server is gone."""


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to be played. The labels are only written into its record."""

    problem_id: str
    seed: int = 0
    """Seed of all sampling in this episode."""
    difficulty: str = ""
    group_id: str = ""
    tier: str | None = None


@dataclass
class _Episode:
    """An episode in flight."""

    number: int
    """Its place among the specs."""
    slot: int
    spec: EpisodeSpec
    trajectory: Trajectory
    started: float
    seq: int = 0
    ended: list[FrameKey] = field(default_factory=list)
    """Frames that the policy may forget."""
    requested: list[tuple[TurnRequest, str]] = field(default_factory=list)
    """What the policy is asked in this round, each with its messages as text."""
    turns: dict[int, FrameTurn] = field(default_factory=dict)
    """What the policy has answered in this round, by frame."""
    waiting: Future[RLMObservation] | None = None


def play(
    policy: Policy,
    where: str | Sessions,
    specs: Sequence[EpisodeSpec],
    *,
    sessions: int,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play one episode for each spec.

    Args:
        policy: plays every frame.
        where: the environment's URL, or open sessions (at least `sessions` of them).
        specs: what to play; there may be more than sessions.
        sessions: episodes in flight at once.
        on_episode: called with each record as its episode ends.

    Returns:
        Records in the order of the specs. An episode lost to infrastructure (a dropped
        connection, a policy that failed, a refused action) has `void` set and no reward.

    Raises:
        EpisodeError: nothing works: every session failed or was refused in two rounds in a row,
            or no episode could be begun at all (no server, or one with other problems).
    """
    if sessions < 1:
        raise ValueError(f"play needs at least one session, not {sessions}")
    count = min(sessions, len(specs))
    if not count:
        return []
    context = Sessions(where, count) if isinstance(where, str) else nullcontext(where)
    with context as opened:
        return _Rounds(policy, opened, specs, on_episode).run(count)


def turn_seed(seed: int, frame: int, turn: int) -> int:
    """Seed of one turn's sampling, below 2**63."""
    digest = hashlib.blake2b(f"{seed}/{frame}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _Rounds:
    """The state of one `play`."""

    def __init__(
        self,
        policy: Policy,
        sessions: Sessions,
        specs: Sequence[EpisodeSpec],
        on_episode: Callable[[Trajectory], None] | None,
    ) -> None:
        self.policy, self.sessions, self.specs = policy, sessions, specs
        self.on_episode = on_episode
        self.next = 0
        self.active: list[_Episode] = []
        self.done: dict[int, Trajectory] = {}
        self.dead_rounds = 0
        self.answered = False
        """The environment has answered at least once."""
        self.last_loss = ""

    def run(self, count: int) -> list[Trajectory]:
        free = list(range(count))
        try:
            while self.active or self.next < len(self.specs):
                self._begin(free)
                self._observe()
                free = [episode.slot for episode in self.active if self._over(episode)]
                self.active = [episode for episode in self.active if not self._over(episode)]
                self._act()
        finally:
            self.policy.release(
                [(e.number, frame) for e in self.active for frame in e.trajectory.frames]
            )
        if not self.answered:
            raise EpisodeError(f"the environment played no episode: {self.last_loss}")
        return [self.done[number] for number in range(len(self.specs))]

    def _over(self, episode: _Episode) -> bool:
        return episode.number in self.done

    def _begin(self, free: Sequence[int]) -> None:
        """Reset free sessions to the next specs."""
        for slot in free[: len(self.specs) - self.next]:
            spec = self.specs[self.next]
            trajectory = Trajectory(
                problem_id=spec.problem_id,
                difficulty=spec.difficulty,
                group_id=spec.group_id,
                tier=spec.tier,
            )
            episode = _Episode(self.next, slot, spec, trajectory, time.monotonic())
            episode.waiting = self.sessions.reset(slot, problem_id=spec.problem_id)
            self.active.append(episode)
            self.next += 1

    def _observe(self) -> None:
        """Await all observations and write them into the records."""
        failures = 0
        for episode in self.active:
            assert episode.waiting is not None
            try:
                observation = episode.waiting.result()
            except (EpisodeError, RefusedError) as error:
                failures += 1
                self.last_loss = str(error)
                kind = "refused" if isinstance(error, RefusedError) else "connection"
                self._finish(episode, void=f"{kind}: {error}")
            else:
                self.answered = True
                self._take(episode, observation)
            # In the order of the episodes, not of their arrival.
            self.policy.release(episode.ended)
            episode.ended = []
        self.dead_rounds = self.dead_rounds + 1 if failures == len(self.active) else 0
        if self.dead_rounds >= _DEAD_ROUNDS:
            raise EpisodeError(
                f"the environment plays no more ({len(self.done)} of {len(self.specs)} "
                f"episodes were over): {self.last_loss}"
            )

    def _take(self, episode: _Episode, observation: RLMObservation) -> None:
        record = episode.trajectory
        arrived_s = time.monotonic() - episode.started
        record.counters = observation.counters
        if card := observation.problem:
            record.difficulty = card.difficulty or record.difficulty
            record.group_id = card.group_id or record.group_id
            record.tier = card.tier or record.tier
        ready = []
        for view in observation.frames:
            frame = record.frames.get(view.frame) or self._open(record, view)
            if view.status == "ready":
                ready.append(view)
            elif view.status == "ended":
                frame.stop_reason = view.stop_reason
                frame.ended_s = arrived_s
                episode.ended.append((episode.number, view.frame))
        if observation.done or observation.void is not None:
            record.components = dict(observation.components)
            record.evidence = observation.evidence
            record.frame_scores = dict(observation.frame_scores)
            record.answer = observation.answer
            if observation.void is None and observation.reward is not None:
                record.reward = float(observation.reward)
            self._finish(episode, void=observation.void)
        elif not ready:
            self._finish(episode, void="the environment waits for no frame and is not done")
        else:
            episode.requested = [
                (self._request(episode, view, observation), _as_text(view)) for view in ready
            ]

    @staticmethod
    def _open(record: Trajectory, view: FrameView) -> FrameRecord:
        parent = None if view.parent is None else record.frames.get(view.parent)
        turn = len(parent.turns) - 1 if parent else None
        frame = FrameRecord(view.frame, view.parent, view.depth, view.kind, opened_in=turn)
        return record.frames.setdefault(view.frame, frame)

    def _request(
        self, episode: _Episode, view: FrameView, observation: RLMObservation
    ) -> TurnRequest:
        turn = len(episode.trajectory.frames[view.frame].turns)
        return TurnRequest(
            key=(episode.number, view.frame),
            messages=view.messages,
            depth=view.depth,
            kind=view.kind,
            first=turn == 0,
            seed=turn_seed(episode.spec.seed, view.frame, turn),
            problem=observation.problem,
        )

    def _act(self) -> None:
        """One turn of every ready frame; an episode's are sent as soon as all are written.

        So the environment works while the policy still writes the longest turns of a round.
        """
        asked = [(episode, *pair) for episode in self.active for pair in episode.requested]
        if not asked:
            return
        started = time.monotonic()
        for place, reply in replies(self.policy, [request for _, request, _ in asked]):
            episode, request, text = asked[place]
            frame = request.key[1]
            seconds = time.monotonic() - started
            record = _record(text, reply, started - episode.started, seconds)
            episode.trajectory.frames[frame].turns.append(record)
            episode.turns[frame] = FrameTurn(frame=frame, text=reply.text, finish=reply.finish)
            if len(episode.turns) == len(episode.requested):
                self._send(episode)

    def _send(self, episode: _Episode) -> None:
        # In the order of the requests, not of their replies.
        turns = [episode.turns[request.key[1]] for request, _ in episode.requested]
        episode.turns = {}
        action = RLMAction(turns=turns, seq=episode.seq)
        episode.seq += 1
        episode.waiting = self.sessions.step(episode.slot, action)

    def _finish(self, episode: _Episode, void: str | None) -> None:
        record = episode.trajectory
        record.void = void
        if void is not None:
            record.reward, record.components, record.evidence = None, {}, None
        record.seconds = time.monotonic() - episode.started
        episode.ended = [(episode.number, frame) for frame in record.frames]
        self.done[episode.number] = record
        if self.on_episode is not None:
            self.on_episode(record)


def _as_text(view: FrameView) -> str:
    return "\n\n".join(message.content for message in view.messages)


def _record(observation: str, reply: TurnReply, at_s: float, seconds: float) -> TurnRecord:
    return TurnRecord(
        observation=observation,
        text=reply.text,
        finish=reply.finish,
        prompt_ids=list(reply.prompt_ids),
        sampled_ids=list(reply.sampled_ids),
        logprobs=list(reply.logprobs),
        at_s=at_s,
        seconds=seconds,
    )
