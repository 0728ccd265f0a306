"""Measurements of a policy: answers by number of papers, and readers by kind of name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any

import torch

from agent.nano.examples import Encoder
from agent.nano.plans import UNKNOWN, ReadingTalks, reader_talk, sentences_on
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.training.group_sampling import LEAST_BUDGET
from benchmarks import trained
from benchmarks.fields import PAPERS, levels
from env.problems.lexicon import untaught, untrained
from env.problems.names import RESERVED
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from rewards.sentences import expert_tokens, lines_shown, share
from tasks.deployment.local import local_server
from tasks.params import Params
from tasks.train import BASE

SESSIONS = 64
READ_TOGETHER = 4
"""Sentences of a reader in the table of readers."""
TIMES = 4
"""Readers of each name."""


@dataclass(frozen=True)
class MeasuredAnswer:
    """One problem's greedy answer."""

    papers: int
    collection: str
    f1: float
    """0 for an episode without an answer."""
    covered: float
    """Share of the method's sentences that a frame was shown."""
    root_tokens: int
    child_tokens: int
    """Tokens that were read and written, each once."""
    frames: int
    turns: int
    """Turns of the root, one after the other."""
    stop: str


def held_out(params: Params, sizes: Sequence[int], problems: int) -> tuple[Params, ProblemStore]:
    """Settings and store of test problems: one question a collection, a level for each size."""
    world = params.prepare.synthetic.model_copy(
        update={
            "levels": levels(sizes),
            "questions_per_collection": 1,
            "collections": {"train": 0, "validation": 0, "test": problems},
        }
    )
    prepare = params.prepare.model_copy(update={"synthetic": world})
    return params.model_copy(update={"prepare": prepare}), ProblemStore.generate(world)


def base_policy(params: Params) -> TransformersPolicy:
    """The greedy base of the working directory."""
    torch.set_num_threads(params.threads)
    return TransformersPolicy(*load_model(BASE), params.evaluate.generation.greedy)


def trained_policy(params: Params) -> TransformersPolicy:
    """The greedy policy that the stage `train` left in the working directory."""
    return trained.trained_policy(params, temperature=0.0)


def answers(
    params: Params,
    load: Callable[[Params], TransformersPolicy],
    problems: int,
    sizes: Sequence[int] = PAPERS,
    budget: float | None = None,
) -> list[dict[str, Any]]:
    """Greedy answers to held-out problems, by size.

    Two processes of one thread each play the sizes, the largest first.

    Args:
        params: limits of the environment.
        load: a function of a module that loads the policy of every frame.
        problems: problems of each size.
        sizes: numbers of papers.
        budget: tokens of a tree as a multiple of the expert's; None for no budget.
    """
    one = params.model_copy(update={"threads": 1})
    answered = partial(_answers, one, load, problems, budget)
    largest_first = sorted(sizes, reverse=True)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(zip(largest_first, pool.map(answered, largest_first), strict=True))
    return [answer for size in sizes for answer in found[size]]


def _answers(
    params: Params,
    load: Callable[[Params], TransformersPolicy],
    problems: int,
    budget: float | None,
    size: int,
) -> list[dict[str, Any]]:
    """Greedy answers to held-out problems of one size."""
    served, store = held_out(params, (size,), problems)
    asked = [store.get(problem_id) for problem_id in store.ids("test")]
    specs = [
        EpisodeSpec(problem.problem_id, seed=0, tree_tokens=_budget(problem, budget))
        for problem in asked
    ]
    with local_server(served, data=None) as url:
        played = play(load(params), url, specs, sessions=SESSIONS)
    return [
        asdict(_answer(size, problem, episode))
        for problem, episode in zip(asked, played, strict=True)
        if episode.void is None
    ]


def _budget(problem: Problem, multiple: float | None) -> int | None:
    if multiple is None:
        return None
    return max(LEAST_BUDGET, round(multiple * expert_tokens(len(problem.candidates))))


def _answer(size: int, problem: Problem, episode: Trajectory) -> MeasuredAnswer:
    sizes = {
        frame.frame: sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in frame.turns)
        for frame in episode.frames.values()
    }
    texts = [turn.observation for frame in episode.frames.values() for turn in frame.turns]
    lines = {span.text for span in problem.candidates}
    return MeasuredAnswer(
        papers=size,
        collection=problem.collection_id,
        f1=episode.metrics.f1 if episode.metrics else 0.0,
        covered=share(lines, lines_shown(lines, texts)),
        root_tokens=sizes[0],
        child_tokens=sum(sizes.values()) - sizes[0],
        frames=len(episode.frames),
        turns=len(episode.root.turns),
        stop=str(episode.root.stop_reason),
    )


@torch.inference_mode()
def readers(model: Any, tokenizer: Any, size: int) -> dict[str, dict[str, float]]:
    """Probability of the right field, and of "unknown", by kind of name.

    Args:
        model: model in evaluation mode.
        tokenizer: its tokenizer.
        size: names of the lexicon.
    """
    rng = Random("readers")
    talks = ReadingTalks(size)
    kinds = {
        "taught": rng.sample(talks.taught, len(untaught(size))),
        "in training problems only": sorted(untaught(size) - untrained(size)),
        "in neither": sorted(untrained(size)),
    }
    encoder = Encoder(tokenizer, 0.0, 1.0, 1.0)
    word = tokenizer.encode(f" {UNKNOWN} ", add_special_tokens=False)[0]
    found = {}
    for kind, names in kinds.items():
        rights, unknowns = [], []
        for name in [name for name in names for _ in range(TIMES)]:
            listed = rng.sample(talks.taught, READ_TOGETHER)
            place = rng.randrange(READ_TOGETHER)
            listed[place] = name
            sentences = sentences_on(rng, rng.choice(RESERVED), listed)
            answer = talks.answer(rng, listed)  # right, since the lexicon holds all
            [example] = encoder.encode([reader_talk(sentences, answer)])
            at = [t for t, weight in enumerate(example.weights) if weight > 0][2 * place + 1]
            logits = model(input_ids=torch.from_numpy(example.ids)[None]).logits[0, at - 1]
            shares = torch.softmax(logits.float(), dim=-1)
            rights.append(float(shares[example.ids[at]]))
            unknowns.append(float(shares[word]))
        found[kind] = {
            "right": sum(rights) / len(rights),
            "unknown": sum(unknowns) / len(unknowns),
        }
    return found
