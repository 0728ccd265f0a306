"""Plays many episodes in parallel; one call of the policy serves the ready frames of all trees.

A round has three parts. Free sessions begin episodes, all observations are awaited, and the policy
writes a turn for every ready frame. An episode's turns are sent while the policy writes others.
Nothing depends on timing, so the same specs, policy and sessions give the same episodes.
Neighbours: `env/client.py` carries the messages, `trajectory.py` is the record.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from agent.policies.base import FrameKey, Policy, TurnReply, TurnRequest, replies
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord, kept_answer
from env.client import Sessions
from env.errors import EpisodeError, RefusedError
from env.models import MESSAGE_BYTES, FrameTurn, FrameView, RLMAction, RLMObservation

_TURN_BYTES = 100
"""Bytes of a turn in a message, without its text."""
_DEAD_ROUNDS = 2
"""Consecutive rounds in which every session failed, after which the server counts as lost."""


@dataclass
class _Episode:
    """An episode in flight."""

    number: int
    """Index of its spec."""
    slot: int
    spec: EpisodeSpec
    trajectory: Trajectory
    started: float
    ended: list[FrameKey] = field(default_factory=list)
    """Frames whose state the policy can discard."""
    requests: list[TurnRequest] = field(default_factory=list)
    """Requests of this round."""
    turns: dict[int, FrameTurn] = field(default_factory=dict)
    """Turns of this round, by frame."""
    waiting: Future[RLMObservation] | None = None


def play(
    policy: Policy,
    where: str | Sessions,
    specs: Sequence[EpisodeSpec],
    *,
    sessions: int,
    on_episode: Callable[[Trajectory], None] | None = None,
    whole_answers: bool = False,
    on_turn: Callable[[int], object] | None = None,
) -> list[Trajectory]:
    """Play one episode for each spec.

    Args:
        policy: plays every frame.
        where: the environment's URL, or at least `sessions` open sessions.
        specs: episodes to play; there may be more of them than sessions.
        sessions: episodes in flight.
        on_episode: called with each record when its episode ends.
        whole_answers: keep answers of every length, for callers that use them.
        on_turn: called with the index of a spec after each turn of its episode. An error that it
            raises ends the call.

    Returns:
        Records in the order of the specs. An episode lost to infrastructure has `void` set and no
        reward. Causes: a dropped connection, a failed policy, a refused action.

    Raises:
        EpisodeError: every session failed or was refused in two consecutive rounds, or no episode
            began (no server, or one with other problems).
    """
    if sessions < 1:
        raise ValueError(f"play got {sessions} sessions. Use at least one.")
    count = min(sessions, len(specs))
    if not count:
        return []
    with Sessions(where, count) if isinstance(where, str) else nullcontext(where) as opened:
        rounds = _Rounds(policy, opened, specs, on_episode, whole_answers, on_turn)
        return rounds.run(min(count, opened.count))


def turn_seed(seed: int, frame: int, turn: int) -> int:
    """Sampling seed of a turn, below 2**63."""
    digest = hashlib.blake2b(f"{seed}/{frame}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def fitting(reply: TurnReply, most_bytes: int) -> TurnReply:
    """The reply, or one that was cut off so that all turns of a round fit into one message.

    Args:
        reply: turn of the policy.
        most_bytes: part of the message that the turn may take.
    """
    text = reply.text.encode("utf-8", "replace").decode()  # a lone surrogate would be refused
    room = most_bytes - _TURN_BYTES
    if len(json.dumps(text)) <= room:
        return replace(reply, text=text) if text != reply.text else reply
    # An escaped character has at most 12 bytes.
    return replace(reply, text=text[: room // 12], finish="length")


@dataclass
class _Rounds:
    """State of one call of `play`."""

    policy: Policy
    sessions: Sessions
    specs: Sequence[EpisodeSpec]
    on_episode: Callable[[Trajectory], None] | None
    whole_answers: bool
    on_turn: Callable[[int], object] | None
    next: int = 0
    """Index of the next spec."""
    active: list[_Episode] = field(default_factory=list)
    done: dict[int, Trajectory] = field(default_factory=dict)
    dead_rounds: int = 0
    answered: bool = False
    """Whether the environment has answered at least once."""
    last_loss: str = ""

    def run(self, count: int) -> list[Trajectory]:
        free = list(range(count))
        try:
            while self.active or self.next < len(self.specs):
                self._begin(free)
                self._observe()
                free = [e.slot for e in self.active if e.number in self.done]
                self.active = [e for e in self.active if e.number not in self.done]
                self._act()
        finally:
            self.policy.release([(e.number, f) for e in self.active for f in e.trajectory.frames])
        if not self.answered:
            raise EpisodeError(f"the environment played no episode ({self.last_loss})")
        return [self.done[number] for number in range(len(self.specs))]

    def _begin(self, free: Sequence[int]) -> None:
        """Begin the next episodes in the free sessions."""
        for slot in free[: len(self.specs) - self.next]:
            spec = self.specs[self.next]
            trajectory = Trajectory(spec.problem_id, spec.difficulty, spec.collection_id, spec.tier)
            episode = _Episode(self.next, slot, spec, trajectory, time.monotonic())
            episode.waiting = self.sessions.reset(slot, problem_id=spec.problem_id)
            self.active.append(episode)
            self.next += 1

    def _observe(self) -> None:
        """Await all observations and add them to the records."""
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
            # Release in the order of the episodes, not of arrival.
            self.policy.release(episode.ended)
            episode.ended = []
        self.dead_rounds = self.dead_rounds + 1 if failures == len(self.active) else 0
        if self.dead_rounds >= _DEAD_ROUNDS:
            raise EpisodeError(
                f"environment lost after {len(self.done)} of {len(self.specs)} episodes "
                f"({self.last_loss})"
            )

    def _take(self, episode: _Episode, observation: RLMObservation) -> None:
        """Add an observation to the record; collect the next requests or end the episode."""
        record = episode.trajectory
        record.counters = observation.counters
        if card := observation.problem:
            record.difficulty = card.difficulty or record.difficulty
            record.collection_id = card.collection_id or record.collection_id
            record.tier = card.tier or record.tier
        ready = []
        for view in observation.frames:
            if (frame := record.frames.get(view.frame)) is None:
                frame = FrameRecord(view.frame, view.parent, view.depth, view.kind)
                record.frames[view.frame] = frame
            if view.status == "ready":
                ready.append(view)
            elif view.status == "ended":
                frame.stop_reason = view.stop_reason
                episode.ended.append((episode.number, view.frame))
        if observation.done or observation.void is not None:
            record.components = dict(observation.components)
            record.metrics = observation.metrics
            answer = observation.answer
            record.answer = answer if self.whole_answers else kept_answer(answer)
            if observation.void is None and observation.reward is not None:
                record.reward = float(observation.reward)
            self._finish(episode, void=observation.void)
        elif not ready:
            self._finish(episode, void="the environment waits for no frame and is not done")
        else:
            episode.requests = [self._request(episode, view, observation) for view in ready]

    def _request(self, episode: _Episode, view: FrameView, seen: RLMObservation) -> TurnRequest:
        turn = len(episode.trajectory.frames[view.frame].turns)
        return TurnRequest(
            key=(episode.number, view.frame),
            messages=view.messages,
            depth=view.depth,
            kind=view.kind,
            first=turn == 0,
            seed=turn_seed(episode.spec.seed, view.frame, turn),
            problem=seen.problem,
        )

    def _act(self) -> None:
        """Play a turn of every ready frame; send an episode's turns when all are written.

        So the environment works while the policy writes the longest turns of a round.
        """
        asked = [(episode, request) for episode in self.active for request in episode.requests]
        if not asked:
            return
        for place, reply in replies(self.policy, [request for _, request in asked]):
            episode, request = asked[place]
            reply = fitting(reply, MESSAGE_BYTES // (len(episode.requests) + 1))
            frame = request.key[1]
            record = TurnRecord(
                observation="\n\n".join(message.content for message in request.messages),
                **vars(reply),
            )
            episode.trajectory.frames[frame].turns.append(record)
            if self.on_turn is not None:
                self.on_turn(episode.number)
            episode.turns[frame] = FrameTurn(
                frame=frame,
                text=reply.text,
                finish=reply.finish,
                tokens=len(reply.prompt_ids) + len(reply.sampled_ids),
            )
            if len(episode.turns) == len(episode.requests):
                self._send(episode)

    def _send(self, episode: _Episode) -> None:
        # Send in the order of the requests, not of their replies.
        turns = [episode.turns[request.key[1]] for request in episode.requests]
        episode.turns = {}
        episode.waiting = self.sessions.step(episode.slot, RLMAction(turns=turns))

    def _finish(self, episode: _Episode, void: str | None) -> None:
        record = episode.trajectory
        record.void = void
        if void is not None:
            record.reward, record.components, record.metrics = None, {}, None
        record.seconds = time.monotonic() - episode.started
        episode.ended = [(episode.number, frame) for frame in record.frames]
        self.done[episode.number] = record
        if self.on_episode is not None:
            self.on_episode(record)
