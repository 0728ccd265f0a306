"""Ways to ask a model: a recursive episode, or one request with the context in its prompt.

Each answer goes to the file as soon as it is there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from agent.policies.base import Policy, TurnReply, TurnRequest
from agent.rollouts.own_documents import Question, play_trees
from agent.rollouts.trajectory import Trajectory
from env.prompts import llm_messages
from tasks.oolong.contexts import CHARS_PER_TOKEN
from tasks.oolong.players import OolongPlayer
from tasks.oolong.questions import DOCUMENT, LongProblem
from tasks.oolong.results import AnswerFile, ScoredAnswer
from tasks.oolong.scoring import SHOWN, plain_text, score

TREE = "tree"
"""Name of the recursive arm."""
_FINAL = " Pass it to FINAL as a string: it is not a list of passages."


def scored(problem: LongProblem, arm: str, answer: Any, **facts: Any) -> ScoredAnswer:
    """Record of an answer; `void` among the facts leaves it without a score."""
    return ScoredAnswer(
        problem_id=problem.problem_id,
        arm=arm,
        labels=problem.labels,
        length=problem.length,
        context_id=problem.context_id,
        kind=problem.kind,
        gold=problem.gold,
        answer=plain_text(answer)[:SHOWN],
        score=score(problem.kind, problem.gold, answer) if facts.get("void") is None else None,
        **facts,
    )


def ask_trees(
    player: OolongPlayer, url: str, asked: Sequence[LongProblem], kept: AnswerFile
) -> None:
    """Play a recursive episode for each problem."""
    bill = _Bill(player)

    def ended(episode: Trajectory) -> None:
        facts = {
            "void": episode.void,
            "tokens": episode.counters.tokens,
            "sub_calls": episode.counters.sub_calls,
            "seconds": round(episode.seconds, 3),
            **bill.since(),
        }
        answer = episode.answer if episode.answered else None
        kept.add(scored(asked[int(episode.problem_id)], TREE, answer, **facts))

    questions = [
        Question(problem.question + _FINAL, {DOCUMENT: problem.context}) for problem in asked
    ]
    play_trees(player.policy, url, questions, sessions=player.sessions, on_episode=ended)


def ask_plainly(
    player: OolongPlayer, arm: str, asked: Sequence[LongProblem], window: int, kept: AnswerFile
) -> None:
    """Ask each question once, with as much of its context as the window holds."""
    bill, prompts = _Bill(player), [plain_prompt(problem, window) for problem in asked]
    started = time.monotonic()
    requests = [
        TurnRequest((place, 0), llm_messages("full", text), 0, "llm", first=True, seed=place)
        for place, (text, _) in enumerate(prompts)
    ]
    for place, reply in as_answered(player.policy, requests, player.sessions):
        text, cut = prompts[place]
        lost = "the model gave no answer" if reply.finish == "error" else None
        facts = {
            "void": lost,
            "cut": cut,
            "tokens": (len(text) + len(reply.text)) // CHARS_PER_TOKEN,
            "seconds": round(time.monotonic() - started, 3),
            **bill.since(),
        }
        kept.add(scored(asked[place], arm, reply.text, **facts))


def plain_prompt(problem: LongProblem, window: int) -> tuple[str, bool]:
    """Prompt with context and question, and whether the context was cut at the window."""
    room = max(0, window * CHARS_PER_TOKEN - len(problem.question))
    context = problem.context
    cut = len(context) > room
    if cut:
        context = context[:room].rpartition("\n")[0]
    return f"{context}\n\n{problem.question}", cut


def as_answered(
    policy: Policy, requests: Sequence[TurnRequest], workers: int
) -> Iterator[tuple[int, TurnReply]]:
    """(index of the request, reply) as soon as each reply is there.

    Raises:
        PolicyError: the policy raised it.
    """
    left = deque(enumerate(requests))
    done: SimpleQueue[tuple[int, TurnReply | BaseException]] = SimpleQueue()

    def work() -> None:
        while left:
            try:
                place, request = left.popleft()
            except IndexError:
                return
            try:
                done.put((place, policy.act([request])[0]))
            except BaseException as error:
                done.put((place, error))

    for _ in range(min(workers, len(requests))):
        Thread(target=work, name="plain", daemon=True).start()
    try:
        for _ in requests:
            place, reply = done.get()
            if isinstance(reply, BaseException):
                raise reply
            yield place, reply
    finally:
        left.clear()
        policy.release([request.key for request in requests])


class _Bill:
    """Usage of an endpoint since the last answer, so that the sum over answers is the whole."""

    def __init__(self, player: OolongPlayer) -> None:
        self._player, self._before = player, vars(player.usage).copy()

    def since(self) -> dict[str, int]:
        """Requests and tokens since the last call."""
        now = vars(self._player.usage).copy()
        names = ("requests", "prompt_tokens", "completion_tokens")
        found = {name: now[name] - self._before[name] for name in names}
        self._before = now
        return found
