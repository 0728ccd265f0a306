"""Warm start by demonstrations: an adapter that teaches a base model the form of the work.

A script that knows the gold, or a teacher behind an API, plays training problems on the
environment. Episodes with enough reward become rows for supervised training. The adapter is saved
inside of the base, `models/base/adapter`, and GRPO continues with it. Nothing merges it before the
stage `export`: a merge into a 4-bit base would round the training away.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agent.demonstrations import keyed_plan, move_demonstrator
from agent.demonstrations.demonstrator import Demonstrator, Mistake
from agent.demonstrations.move_demonstrator import MoveDemonstrator
from agent.demonstrations.sft_rows import (
    TAUGHT,
    DemonstrationRow,
    TokenisedPolicy,
    demonstration_rows,
    good_episodes,
    reader_rows,
    repetitive,
)
from agent.models import model_files
from agent.policies.base import Policy
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import load_configs, load_model
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.training import checkpoints
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.prompts import llm_messages
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.environment import environment
from tasks.errors import ConfigError, StageError, as_stage_error
from tasks.io import digest, replacing
from tasks.registry import base_sources, serving
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.lineage import folder_hash
from tasks.tracking.runs import StageRun
from tasks.training.fingerprint import code_hash
from tasks.training.problem_data import draw_shown

CHECKPOINTS = Path("models/warmstart")
"""Checkpoints of the supervised training; those of another one are set aside, not deleted."""
SLIPS = 0.15
"""Episodes of the demonstrator with a mistake and its repair."""

logger = logging.getLogger(__name__)


@as_stage_error()
def write_base(params: Params, run: StageRun, base: Path) -> Path:
    """Write the base model with an adapter that was trained on demonstrations.

    Raises:
        ConfigError: the limits leave no room for a demonstration.
        StageError: data, base, Unsloth or its GPU is missing, the teacher does not answer, no
            episode is good, or the training failed.
    """
    # TRL takes seconds to import.
    from agent.demonstrations.supervised import count_steps, train_adapter
    from agent.demonstrations.unsloth_process import train_with_unsloth

    require_demonstrable(params)
    settings = params.warmstart.sft
    problems = choose(params)
    torch.set_num_threads(params.threads)
    with replacing(base) as folder:
        origin = base_sources.write_source(params, run, folder)
        model_files.free_memory()  # for the process of Unsloth
        rows = demonstrate(params, run, problems, *load_configs(folder))
        steps = count_steps(rows, settings, params.train)
        batches = [params.train.micro_batch_tokens, params.model.backend, model_files.this_device()]
        marks = {
            "code": code_hash(),
            "settings": digest([settings.model_dump(), params.train.lora.model_dump(), batches]),
            "base model": folder_hash(folder),
            "demonstrations": digest(rows),
        }
        start = checkpoints.begin(CHECKPOINTS, marks)
        if start.reason != checkpoints.NOTHING:
            progress.say(start.reason)
        resume = checkpoints.Resume(CHECKPOINTS, start.checkpoint, marks)
        with progress.doing("supervised training", "steps", steps) as work:
            if start.state:
                work.begin_at(start.state["step"])

            def on_step(step: int, figures: Mapping[str, float]) -> None:
                work.advance()
                run.log_metrics({"warmstart/loss": figures["loss"]}, step=step)

            job = (rows, settings, params.train)
            out = folder / model_files.ADAPTER
            if params.model.backend == "unsloth":
                train_with_unsloth(
                    folder,
                    *job,
                    out=out,
                    frame_tokens=params.generation.max_frame_tokens,
                    threads=params.threads,
                    on_step=on_step,
                    start=resume,
                )
            else:
                model, tokenizer = load_model(folder)
                train_adapter(model, tokenizer, *job, out=out, on_step=on_step, start=resume)
        _name_base(out, origin)
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)  # the base has their result
    base_sources.forget_source()
    return base


def _name_base(adapter: Path, name: str) -> None:
    """Name the base in an adapter's config, which has the temporary folder of the stage."""
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"base_model_name_or_path": name}, indent=2) + "\n")


def require_demonstrable(params: Params) -> None:
    """Refuse limits under which nothing can be demonstrated, and a missing Unsloth.

    Raises:
        ConfigError: a setting is not supported.
        PolicyError: `model.backend` is not installed, or needs a GPU.
    """
    settings = params.warmstart.sft
    if settings.teacher == "demonstrator":
        moving = settings.plan == "moves"
        readers = settings.moves.most_frames - 1 if moving else keyed_plan.RANKED
        if readers >= params.env.limits.max_frames:
            fewer = ", or lower moves.readers or children" if moving else ""
            raise ConfigError(
                f"warmstart.sft: a demonstration has up to {readers} children, and "
                f"env.limits.max_frames allows {params.env.limits.max_frames} frames with the "
                f"root. Raise max_frames{fewer}."
            )
        if params.env.passage_chars >= params.rewards.read_chars:
            logger.warning(
                "warmstart: a reader that is shown a passage of %d characters or more has read its "
                "paper (rewards.read_chars), which costs process quality. Raise read_chars above "
                "env.passage_chars (%d), or lower that.",
                params.rewards.read_chars,
                params.env.passage_chars,
            )
    if params.model.backend == "unsloth":
        from agent.demonstrations.unsloth_process import require_unsloth

        require_unsloth()


def choose(params: Params) -> list[Problem]:
    """Training problems, as many of each level that is trained; of all, where a level has fewer.

    Raises:
        SettingsError: the data is missing.
        StageError: the demonstrator can show none of them.
    """
    settings, levels = params.warmstart.sft, params.train.curriculum.levels
    store = ProblemStore.load(paths.PROBLEMS)
    chosen: list[Problem] = []
    for level in levels:
        ids = draw_shown(store.ids("train", level), level, settings, len(levels))
        chosen += map(store.get, ids)
    if settings.teacher == "endpoint":
        return chosen
    faults = {problem.problem_id: demonstration_fault(params, problem) for problem in chosen}
    shown = [problem for problem in chosen if faults[problem.problem_id] is None]
    for reason, count in Counter(filter(None, faults.values())).most_common():
        logger.warning("warmstart: %d of %d problems are not shown: %s", count, len(chosen), reason)
    if not shown:
        first = next(iter(faults.values()), "no problem of train.curriculum.levels")
        raise StageError(
            f"none of {len(chosen)} training problems can be shown ({first}). "
            "Correct the data, or set warmstart.sft.teacher=endpoint."
        )
    return shown


def demonstration_fault(params: Params, problem: Problem) -> str | None:
    """Reason why the demonstrator can't show a problem; None if it can."""
    if params.warmstart.sft.plan == "moves":
        return move_demonstrator.demonstration_fault(problem, params.warmstart.sft.moves)
    if problem.candidates:
        return None
    return keyed_plan.demonstration_fault(problem, params.env, params.rewards)


def demonstrate(
    params: Params, run: StageRun, problems: Sequence[Problem], model: Any, tokenizer: Any
) -> list[DemonstrationRow]:
    """Play the problems and return the rows of the good episodes.

    Args:
        model: the model that will be trained, or its `SavedConfigs`.
        tokenizer: its tokenizer.

    Raises:
        StageError: no episode is good.
    """
    settings, generation = params.warmstart.sft, params.generation
    conversations = Conversations(model, tokenizer, generation)
    if settings.teacher == "endpoint":
        episodes = play_all(params, endpoint(params), conversations, problems)
        good = good_episodes(episodes, settings.min_reward)
        mistakes, left_out = set[Mistake](), set[tuple[int, int]]()
    else:
        demonstrator = demonstrator_of(params, problems)
        episodes = play_all(params, demonstrator, conversations, problems)
        # A ranked passage may be longer than the evidence in it, and some may not be ranked. The
        # reward says whether such an answer is worth showing.
        good = good_episodes(episodes, settings.min_reward)
        mistakes = demonstrator.mistakes
        left_out = repetitive(good, keyed_plan.YES_OR_NO[:1], settings.seed, TAUGHT[settings.plan])
    rows = demonstration_rows(good, mistakes, left_out=left_out)
    if settings.teacher == "demonstrator" and settings.plan == "moves":
        read = move_demonstrator.lessons(problems, settings.moves, params.env, params.rewards)
        asked = ((llm_messages(params.env.prompt_style, p), reply) for p, reply in read)
        rows += reader_rows(conversations.chat, asked)
    played = Counter(problem.difficulty for problem in problems)
    shown = Counter(episode.difficulty for episode in good.values())
    run.log_metrics(
        {f"warmstart/shown_{level}": shown[level] / count for level, count in played.items()}
        | {"warmstart/rows": float(len(rows))}
    )
    if not rows:
        raise StageError(
            f"none of {len(episodes)} demonstrations is good enough. Raise max_turn_tokens and "
            "max_frame_tokens of generation, or lower warmstart.sft.min_reward."
        )
    logger.info("warmstart: %d of %d demonstrations are good", len(good), len(episodes))
    return rows


def demonstrator_of(params: Params, problems: Sequence[Problem]) -> Demonstrator | MoveDemonstrator:
    """The script that plays the plan of the settings."""
    settings = params.warmstart.sft
    if settings.plan == "moves":
        return MoveDemonstrator(problems, settings.moves, params.rewards.min_cover, settings.seed)
    return Demonstrator(
        problems,
        params.env,
        slips=SLIPS,
        seed=settings.seed,
        near_chars=settings.near_chars,
        rewards=params.rewards,
    )


def play_all(
    params: Params, policy: Policy, conversations: Conversations, problems: Sequence[Problem]
) -> list[Trajectory]:
    """Episodes of the problems, with the token ids of the model that will be trained."""
    specs = [
        EpisodeSpec(problem.problem_id, seed=number, difficulty=problem.difficulty)
        for number, problem in enumerate(problems)
    ]
    sessions = min(params.env.max_sessions, params.generation.batch_frames)
    with environment(params) as url:
        tokenised = TokenisedPolicy(policy, conversations)
        return play_shown("demonstrations", tokenised, url, specs, sessions=sessions)


def endpoint(params: Params) -> Policy:
    """The teacher behind an API; its key is in the environment variable OPENAI_API_KEY.

    Raises:
        PolicyError: it refuses a test question or does not answer.
    """
    settings = params.warmstart.sft
    assert settings.base_url is not None
    assert settings.model is not None
    teacher = serving.endpoint(params, settings.base_url, settings.model, params.generation)
    teacher.check()
    return teacher
