"""Rows for supervised training from demonstrated episodes, one row per conversation.

A row has the ids of a rollout; only tokens that the policy wrote have a label. `TokenisedPolicy`
gives turns that are known as text the layout of a rollout, without log-probabilities. Neighbours:
`demonstrator.py` and `endpoint.py` (policies that write texts), `conversations.py` (ids of frames),
`supervised.py` (trains on the rows).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import TypedDict

from agent.models.chat_template import ChatFormat
from agent.policies.base import FrameKey, Policy, TurnReply, TurnRequest
from agent.policies.conversations import Conversations, TurnPrompt
from agent.rollouts.trajectory import FrameRecord, Trajectory
from env.models import Message

IGNORED = -100
"""Label of a token without a loss."""
TAUGHT = {"keyed": 200, "moves": 800}
"""Episodes of each plan whose code is taught."""
_IDLE_READERS = 2
"""Readers that find nothing for each that does."""


class DemonstrationRow(TypedDict):
    """A conversation; both lists have one entry per token."""

    input_ids: list[int]
    labels: list[int]


def demonstration_rows(
    episodes: Mapping[int, Trajectory],
    mistakes: Collection[tuple[int, int, int]] = (),
    *,
    left_out: Collection[tuple[int, int]] = (),
) -> list[DemonstrationRow]:
    """Rows of the frames that ended with an answer.

    Args:
        episodes: good episodes by their number.
        mistakes: (episode, frame, turn) of turns that have no labels.
        left_out: (episode, frame) of frames that would teach nothing new.
    """
    rows = []
    for number, episode in episodes.items():
        for frame in episode.frames.values():
            if frame.stop_reason == "final" and (number, frame.frame) not in left_out:
                wrong = {turn for e, f, turn in mistakes if (e, f) == (number, frame.frame)}
                rows.append(_row(frame, wrong))
    return [row for row in rows if any(label != IGNORED for label in row["labels"])]


def reader_rows(
    chat: ChatFormat, read: Iterable[tuple[list[Message], str]]
) -> list[DemonstrationRow]:
    """Rows of readers that nobody played: their messages, and their right replies."""
    rows = []
    for messages, reply in read:
        prompt, completion = chat.first(messages), chat.completion(reply)
        labels = [IGNORED] * len(prompt) + completion
        rows.append(DemonstrationRow(input_ids=prompt + completion, labels=labels))
    return rows


def repetitive(
    episodes: Mapping[int, Trajectory], nothing: Collection[str], seed: int, most: int
) -> set[tuple[int, int]]:
    """Frames that repeat what enough others show, as (episode, frame).

    Code of a plan is alike for all questions, so a few hundred episodes teach it. Most
    readers find nothing in what they're shown. A model that sees all of these learns to say so
    always, long before it learns to read; it gets two for each that finds something.

    Args:
        episodes: good episodes by their number.
        nothing: replies of readers that find nothing.
        seed: seed of the choice among these readers.
        most: episodes whose code is taught.
    """
    rng = Random(seed)
    taught = set(rng.sample(list(episodes), min(most, len(episodes))))
    repeats = {
        (number, frame.frame)
        for number in episodes.keys() - taught
        for frame in episodes[number].frames.values()
        if frame.kind == "rlm"
    }
    for number, episode in episodes.items():
        readers = [frame for frame in episode.frames.values() if frame.kind == "llm"]
        idle = [frame.frame for frame in readers if frame.turns[-1].text in nothing]
        quota = _IDLE_READERS * (len(readers) - len(idle))
        repeats |= {(number, frame) for frame in rng.sample(idle, max(0, len(idle) - quota))}
    return repeats


def good_episodes(episodes: Sequence[Trajectory], min_reward: float) -> dict[int, Trajectory]:
    """Episodes with enough reward, by their number."""
    return {
        number: episode
        for number, episode in enumerate(episodes)
        if episode.reward is not None and episode.reward >= min_reward
    }


def _row(frame: FrameRecord, wrong: Collection[int]) -> DemonstrationRow:
    """Row of a frame's conversation; turns that are `wrong` have no labels."""
    row = DemonstrationRow(input_ids=[], labels=[])
    for number, turn in enumerate(frame.turns):
        row["input_ids"] += turn.prompt_ids + turn.sampled_ids
        row["labels"] += [IGNORED] * len(turn.prompt_ids)
        row["labels"] += [IGNORED] * len(turn.sampled_ids) if number in wrong else turn.sampled_ids
    return row


class TokenisedPolicy:
    """Policy that adds token ids to the turns of another one.

    A turn beyond the limits of `Conversations` is cut as a sampled one would be, and finishes with
    `length`.

    Args:
        policy: writes the texts.
        conversations: token ids and limits of the frames, for the model that will be trained.
    """

    def __init__(self, policy: Policy, conversations: Conversations) -> None:
        self._policy = policy
        self._conversations = conversations

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request."""
        prompts = [self._conversations.read(request) for request in requests]
        replies = self._policy.act(requests)
        return [
            self._with_ids(request, prompt, reply)
            for request, prompt, reply in zip(requests, prompts, replies, strict=True)
        ]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        ended = list(keys)
        self._policy.release(ended)
        for key in ended:
            self._conversations.release(key)

    def _with_ids(self, request: TurnRequest, prompt: TurnPrompt, reply: TurnReply) -> TurnReply:
        if reply.finish == "error":
            return reply
        ids = self._conversations.chat.completion(reply.text)
        if reply.finish == "length":  # the other policy's own limit cut it, so it has no end
            ids.pop()
        ids = ids[: prompt.limit]
        if not ids:
            return TurnReply(text="", finish="length")
        return self._conversations.reply(request, prompt, ids, logprobs=[])
