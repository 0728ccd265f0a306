"""Stage `train`: GRPO on trees of episodes, with the curriculum, from models/base.

Writes models/adapter, reports/train.parquet with a row per step, models/checkpoints, and some
episodes of every `TABLE_EVERY`-th step in reports/raw_episodes.jsonl. With `train.processes` above
1, this process has the environment and the MLflow run, and ranks train (`agent/training/ranks.py`,
`train_rank.py`). A killed run resumes from the newest checkpoint, which has all state. The problems
of a step depend only on the seed and the step's number. Checkpoints of other code, settings or data
are renamed to models/checkpoints.<date>-<time>.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agent.demonstrations import moves
from agent.models.model_files import require_lora, warn_without_gpu
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.training import checkpoints, ranks
from agent.training.checkpoints import Start
from agent.training.curriculum import METRIC, Curriculum
from agent.training.groups import Drawn, draw_groups
from agent.training.metrics import draw_metrics, episode_metrics, trainer_metrics
from env.client import Sessions
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.environment import environment
from tasks.errors import ConfigError, as_stage_error
from tasks.io import replacing, require
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.runs import StageRun
from tasks.training.fingerprint import fingerprint
from tasks.training.problem_data import read_problems, unseen
from tasks.training.training_log import TrainingLog

CHECKPOINTS = Path("models/checkpoints")
TABLE_EVERY = 10
"""Steps between tables of raw episodes."""
JOB = "job.json"
"""File of the stage's settings and addresses, in the folder of the ranks."""

logger = logging.getLogger(__name__)


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Train to the last step, from the newest checkpoint that fits; returns the result's path.

    Raises:
        ConfigError: the temperature is 0.
        StageError: base or data is missing, the disk is full, a rank failed, the environment is
            lost, or log-probabilities of trainer and rollout differ. Or the base has another
            adapter.
    """
    settings = params.train
    warn_without_gpu(params.model)
    if params.generation.temperature == 0:
        raise ConfigError("generation.temperature is 0 (all episodes are equal). Set 1.0.")
    problems = read_problems(paths.TRAIN, settings.curriculum.levels)
    require(paths.BASE, "warmstart")
    require_lora(paths.BASE, settings.lora)
    start = checkpoints.begin(CHECKPOINTS, marks := fingerprint(params, paths.BASE, paths.TRAIN))
    progress.say(start.reason)
    run.set_tags({"start": start.reason})
    with environment(params) as url:
        if (processes := processes_here(settings.processes)) > 1:
            marks = marks_of_rank(marks, start)
            job = {"url": url, "run": [run.run_id, run.experiment_id], "marks": marks}
            with progress.stage("train", quiet=True):  # rank 0 says how far they are
                learn_in_ranks(params, job, processes)
        else:
            learn(params, run, url, problems, start, marks)
    return paths.TRAINED


def processes_here(wanted: int) -> int:
    """Processes of the training: the wanted number, or one for each GPU if they are fewer."""
    devices = torch.cuda.device_count()
    if 0 < devices < wanted:
        logger.warning("train.processes is %d, but GPUs are %d: one each", wanted, devices)
        return devices
    return wanted


def marks_of_rank(marks: dict[str, str], start: Start) -> dict[str, str]:
    """Marks that all ranks must share, by name: code, settings, data, base and checkpoint."""
    return marks | {"checkpoint": start.checkpoint.name if start.checkpoint else "none"}


def learn_in_ranks(params: Params, job: dict[str, Any], processes: int) -> None:
    """Train in several processes, each of which runs `learn`.

    Args:
        params: settings.
        job: marks that all ranks must share, address of the environment, and the MLflow run.
        processes: number of processes.

    Raises:
        RankError: a rank failed.
    """
    job = {"params": params.model_dump(by_alias=True, mode="json"), **job}
    with tempfile.TemporaryDirectory(prefix="rlm-ranks-") as name:
        (Path(name) / JOB).write_text(json.dumps(job), encoding="utf-8")
        ranks.launch("tasks.train_rank", Path(name), processes, threads_of_rank(params))


def learn(
    params: Params,
    run: StageRun,
    url: str,
    problems: dict[str, list[EpisodeSpec]],
    start: Start,
    marks: dict[str, str],
) -> None:
    """Train from a start to the last step; with several ranks, each calls it and rank 0 writes.

    Raises:
        CheckpointError, EpisodeError, LogprobCheckError, PolicyError, RolloutError: see `run`.
    """
    from agent.training.trainer import TreeGRPOTrainer  # TRL takes seconds to import

    settings = params.train
    torch.set_num_threads(threads_of_rank(params))
    sessions_wanted = min(params.env.max_sessions, settings.problems_per_step * settings.group_size)
    with progress.doing("load the model"):
        model, tokenizer = load_model(paths.BASE)
    shown = progress.doing("", "steps", settings.steps)
    with Sessions(url, sessions_wanted) as sessions, shown as steps:
        callbacks = TrainingCallbacks(params, run, problems, sessions, tokenizer, steps, marks)
        trainer = TreeGRPOTrainer(
            model,
            tokenizer,
            settings,
            output_dir=CHECKPOINTS,
            rollout=callbacks.rollout,
            on_step=callbacks.on_step,
            state=callbacks.save,
            temperature=params.generation.temperature,
            counted=progress.counted,
        )
        size = trainer.checkpoint_bytes()
        checkpoints.require_space(CHECKPOINTS, size, settings.keep_checkpoints)
        callbacks.begin(start.state)
        trainer.resume(start.checkpoint)
    if ranks.index() == 0:
        with replacing(paths.TRAINED) as temporary:
            trainer.save_result(temporary)
        callbacks.log.write()


def threads_of_rank(params: Params) -> int:
    """Threads of each process of the training."""
    return max(1, params.threads // params.train.processes)


class TrainingCallbacks:
    """Callbacks of the trainer: they play episodes and log figures."""

    def __init__(
        self,
        params: Params,
        run: StageRun,
        problems: dict[str, list[EpisodeSpec]],
        sessions: Sessions,
        tokenizer: Any,
        steps: progress.Work,
        marks: dict[str, str],
    ) -> None:
        self.settings, self.generation = params.train, params.generation
        sft = params.warmstart.sft
        self.moves = sft.moves if sft.plan == "moves" else None
        self.run, self.problems, self.sessions = run, unseen(problems, params), sessions
        self.flight = max(1, sessions.count // ranks.count())
        self.tokenizer, self.steps, self.marks = tokenizer, steps, marks
        self.curriculum = Curriculum(self.settings.curriculum)
        self.log = TrainingLog(run)
        self.drawn = Drawn(groups=[], episodes=[])
        self.started = time.monotonic()

    def begin(self, state: dict[str, Any] | None) -> None:
        """Restore the state of a checkpoint, if one is given."""
        if state is not None:
            self.curriculum.restore(state["curriculum"])
            self.log.restore(state)
            self.steps.begin_at(state["step"])

    def rollout(self, model: Any, step: int) -> list[list[Trajectory]]:
        """Groups of episodes of a step, played with the current weights."""
        self.started = time.monotonic()
        policy = TransformersPolicy(model, self.tokenizer, self.generation)
        name = "rollout" if ranks.count() == 1 else "rollout of rank 0"

        def play(dealt: Sequence[EpisodeSpec]) -> list[Trajectory]:
            return play_shown(name, policy, self.sessions, dealt, sessions=self.flight)

        self.drawn = draw_groups(
            lambda specs: ranks.play_dealt(play, specs),
            step,
            self.curriculum,
            self.problems,
            self.settings,
        )
        return self.drawn.groups

    def on_step(self, step: int, logs: dict[str, float]) -> dict[str, float]:
        """Update the curriculum; rank 0 logs figures, shows progress, and returns the figures."""
        level, index = self.curriculum.level, self.curriculum.index
        played = self.drawn.episodes
        events = self.curriculum.update(step, played)
        if ranks.index():
            return {}
        metric = events[0].metric if events else self.curriculum.metric
        metrics = {
            **(moves.shares(played, self.moves) if self.moves else {}),
            **episode_metrics(played),
            **trainer_metrics(logs),
            **draw_metrics(self.drawn),
            "curriculum/level": float(index),
            "train/step_seconds": time.monotonic() - self.started,
        }
        if metric is not None:
            metrics["curriculum/metric"] = metric
        self.log.add_step(step, metrics, level=level, event=events[0].kind if events else "")
        if step % TABLE_EVERY == 0 or step == 1:
            self.log.add_episodes(step, played)
        # Both are missing if all episodes of the step are void.
        reward, primary = (metrics.get(f"reward/{n}", math.nan) for n in ("overall", "primary"))
        self.steps.advance()
        figures = f"{level}  reward {reward:.3f}  primary {primary:.3f}"
        progress.say(f"step {step}/{self.settings.steps}  {figures}")
        for event in events:
            progress.say(
                f"step {step}: {event.kind} from {event.source} to {event.target} "
                f"({METRIC} {event.metric:.3f})"
            )
            self.run.set_tags({f"curriculum_{event.kind}_{step}": f"{event.source}>{event.target}"})
        return metrics

    def save(self) -> dict[str, Any]:
        """Write the reports; returns the state that a checkpoint stores to resume."""
        self.log.write()
        return {"fingerprint": self.marks, "curriculum": self.curriculum.state()} | self.log.state()
