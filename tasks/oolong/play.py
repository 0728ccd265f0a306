"""Asks a model all questions that have no answer yet, from short contexts to long ones.

Baselines answer the same questions without a model. Neighbours: `arms.py` asks, `results.py` keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.policies.endpoint import Usage
from tasks.errors import StageError, as_stage_error
from tasks.io import write_text
from tasks.oolong.arms import TREE, ask_plainly, ask_trees, scored
from tasks.oolong.baselines import BASELINES
from tasks.oolong.players import OolongPlayer
from tasks.oolong.questions import LongProblem, problems
from tasks.oolong.results import AnswerFile, answer_file
from tasks.registry import serving

BASELINE_FILE = "without_model.jsonl"
"""Answers of the baselines; no model's file has an underscore in its name."""
_ROOT_TOKENS = 2000
"""Tokens of a root's prompt and code, about."""
Say = Callable[[str], object]


@dataclass(frozen=True)
class OolongPlan:
    """Questions of a run, and the folder of their answers."""

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
                            ask_trees(player, url, pending, kept)
                    elif pending:
                        with as_stage_error():
                            ask_plainly(player, arm, pending, plan.window or 0, kept)
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
    write_text(plan.out / BASELINE_FILE, "".join(json.dumps(row) + "\n" for row in rows))


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
    there = sum(one.void is None for one in kept.answers.values())
    text = f"{questions:,} questions follow; {kept.path} has {there:,} answers."
    if there and questions:
        text = f"Continues. {text}"
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
