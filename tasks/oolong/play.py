"""Asks a model all questions, in the recursive harness and plainly, and keeps each answer.

Baselines answer the same questions without a model.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from agent.policies.base import Policy, TurnReply, TurnRequest
from agent.policies.endpoint import Usage
from agent.rollouts.own_documents import Question, play_trees
from agent.rollouts.trajectory import Trajectory
from env.prompts import llm_messages
from tasks.errors import StageError, as_stage_error
from tasks.io import write_text
from tasks.oolong.baselines import BASELINES
from tasks.oolong.contexts import CHARS_PER_TOKEN
from tasks.oolong.players import OolongPlayer
from tasks.oolong.questions import DOCUMENT, LongProblem, problems
from tasks.oolong.results import AnswerFile, ScoredAnswer, answer_file
from tasks.oolong.scoring import SHOWN, plain_text, score
from tasks.registry import serving

TREE = "tree"
_ROOT_TOKENS = 2000
"""Tokens of a root's prompt and code, about."""
_FINAL = " Pass it to FINAL as a string: it is not a list of passages."
Say = Callable[[str], object]


@dataclass(frozen=True)
class OolongPlan:
    """What to ask."""

    lengths: Sequence[int]
    """Tokens of the contexts, ascending."""
    count: int
    """Problems of each length."""
    labels: Sequence[bool]
    window: int | None
    """Tokens of a plain request; None: no plain requests."""
    seed: int
    out: Path

    @property
    def arms(self) -> list[str]:
        """Ways in which the model is asked."""
        return [TREE, *([] if self.window is None else [f"plain-{self.window}"])]

    def cells(self) -> Iterator[tuple[int, bool, list[LongProblem]]]:
        """Length, labels, and the problems of both, from short to long."""
        for length in self.lengths:
            for labels in self.labels:
                yield length, labels, list(problems(self.seed, length, self.count, labels))


def answer_all(player: OolongPlayer, plan: OolongPlan, say: Say) -> None:
    """Ask the player every question that has no answer yet.

    Raises:
        ConfigError: the results were made under other settings.
        StageError: the model or the environment fails; all answers so far are kept.
    """
    path = plan.out / f"{player.file_name}.jsonl"
    with ExitStack() as stack:
        kept = stack.enter_context(answer_file(path, player.settings))
        say(estimate(player, plan, kept))
        url = None
        for length, labels, asked in plan.cells():
            for arm in plan.arms:
                pending = [one for one in asked if not kept.has(one.problem_id, arm)]
                try:
                    if pending and arm == TREE:
                        if url is None:
                            params = serving.for_documents(player.params)
                            url = stack.enter_context(serving.own_server(params))
                        with as_stage_error():
                            _ask_trees(player, url, pending, kept)
                    elif pending:
                        with as_stage_error():
                            _ask_plainly(player, arm, pending, plan.window or 0, kept)
                except StageError as error:
                    raise StageError(
                        f"{error} All {len(kept.answers)} answers so far are in {path}; the same "
                        "command continues."
                    ) from error
                if pending:
                    say(progress(player, arm, labels, length, asked, kept))


def answer_baselines(plan: OolongPlan) -> None:
    """Answer with each baseline, and write its file again, since this takes seconds."""
    rows: list[dict[str, Any]] = [{"model": "baselines"}]
    for _, _, asked in plan.cells():
        for name, answers in BASELINES.items():
            answered = zip(asked, answers(asked), strict=True)
            rows += [asdict(scored(problem, name, answer)) for problem, answer in answered]
    write_text(plan.out / "baselines.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def estimate(player: OolongPlayer, plan: OolongPlan, kept: AnswerFile) -> str:
    """Number of questions to come, with least tokens and cost, in words."""
    questions = tokens = 0
    for length, _, asked in plan.cells():
        for arm in plan.arms:
            count = sum(not kept.has(one.problem_id, arm) for one in asked)
            questions += count
            least = length + _ROOT_TOKENS if arm == TREE else min(length, plan.window or 0)
            tokens += count * least
    prices = player.params.evaluate_model
    total = Usage(prompt_tokens=tokens).cost(prices.prompt_price, 0.0)
    price = "unknown (evaluate_model.prompt_price is 0)" if not total else f"about {total:,.2f}"
    text = f"{len(kept.answers)} answers are there, {questions} questions follow."
    if not questions or player.endpoint is None:
        return text
    return (
        f"{text} A model that reads each context once reads about {tokens:,} tokens. Their cost is "
        f"{price}, without output tokens. Ctrl-C stops, the same command continues."
    )


def progress(
    player: OolongPlayer,
    arm: str,
    labels: bool,
    length: int,
    asked: Sequence[LongProblem],
    kept: AnswerFile,
) -> str:
    """Mean score and cost of a length that was just played, in words."""
    found = [kept.answers[one.problem_id, arm] for one in asked if kept.has(one.problem_id, arm)]
    scores = [one.score for one in found if one.score is not None]
    mean = f"mean score {sum(scores) / len(scores):.2f}" if scores else "all lost"
    prices, used = player.params.evaluate_model, player.usage
    cost = used.cost(prices.prompt_price, prices.completion_price)
    paid = f", {used.prompt_tokens + used.completion_tokens:,} tokens" if used.requests else ""
    paid += f" and {cost:,.2f} paid so far" if cost else ""
    shown = "with labels" if labels else "without labels"
    return f"{length:,} tokens {shown}, {arm}: {len(found)} of {len(asked)} answered, {mean}{paid}"


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


def _ask_trees(
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


def _ask_plainly(
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
