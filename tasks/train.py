"""Stage `train`: GRPO on trees of episodes, under the curriculum, from models/base.

Writes models/adapter (models/policy with `train.method: full`) and reports/train.parquet, a row
a step; besides, models/checkpoints, and in reports/raw_episodes.jsonl some episodes of every
`table_every`-th step. A killed run resumes: what decides the next step is in the newest
checkpoint, and its problems depend on the seed and the step's number alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tasks.config import Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import replacing
from tasks.progress import Steps

if TYPE_CHECKING:
    from agent.rollout import EpisodeSpec
    from agent.trajectory import Trajectory
    from env.client import Sessions
    from tasks.tracking import StageRun

BASE = Path("models/base")
DATA = Path("data/problems/train.parquet")
RESULT = {"lora": Path("models/adapter"), "full": Path("models/policy")}
CHECKPOINTS = Path("models/checkpoints")
BOOKKEEPING = {"save_every", "keep_checkpoints", "table_every", "report_to"}
"""Settings that may change without spoiling a resume."""
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agent", "env", "rewards")
"""What plays, scores and trains; a checkpoint of other code is not gone on from."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Train to the last step, from the newest fitting checkpoint; returns the result's path.

    Raises:
        ConfigError: training at temperature 0, or a control that the data do not allow.
        StageError: the base or the data are missing, there is no room, the environment is gone,
            or log-probabilities do not agree.
    """
    import torch

    from agent import checkpoints
    from agent.errors import CheckpointError, ParityError, PolicyError, RolloutError
    from agent.models import load_model
    from agent.trainer import TreeGRPOTrainer
    from env.client import Sessions
    from env.errors import EpisodeError

    settings = params.train
    if settings.generation.temperature == 0:
        raise ConfigError("train.generation.temperature: 0 samples nothing to learn from; use 1.0")
    problems = read_problems(DATA, settings.curriculum.levels)
    if not BASE.is_dir():
        raise StageError(f"train: {BASE} is missing; run the stage warmstart first")
    torch.set_num_threads(params.threads)
    start = checkpoints.choose(CHECKPOINTS, marks := fingerprint(params))
    progress = Steps("train", settings.steps)
    progress.say(start.reason)
    run.set_tags({"start": start.reason})
    if start.checkpoint is None:
        checkpoints.clear(CHECKPOINTS)
    result = RESULT[settings.method]
    sessions_wanted = min(params.env.max_sessions, settings.problems_per_step * settings.group_size)
    try:
        model, tokenizer = load_model(BASE)
        with (
            environment(params) as url,
            Sessions(url, sessions_wanted) as sessions,
            progress,
        ):
            loop = Loop(params, run, problems, sessions, tokenizer, progress, marks)
            trainer = TreeGRPOTrainer(
                model,
                tokenizer,
                settings,
                output_dir=CHECKPOINTS,
                rollout=loop.rollout,
                on_step=loop.on_step,
                state=loop.save,
            )
            checkpoints.require_space(
                CHECKPOINTS, trainer.checkpoint_bytes(), settings.keep_checkpoints
            )
            loop.begin(start.state)
            trainer.resume(start.checkpoint)
        with replacing(result) as temporary:
            trainer.save_result(temporary)
        loop.log.write()
    except (CheckpointError, EpisodeError, ParityError, PolicyError, RolloutError) as error:
        raise StageError(f"train: {error}") from error
    return result


class Loop:
    """What the trainer calls back: episodes to learn from, and where its figures go."""

    def __init__(
        self,
        params: Params,
        run: StageRun,
        problems: dict[str, list[EpisodeSpec]],
        sessions: Sessions,
        tokenizer: Any,
        progress: Steps,
        marks: dict[str, str],
    ) -> None:
        from agent.curriculum import Curriculum
        from agent.groups import Drawn
        from tasks.training_log import TrainingLog

        self.settings = params.train
        self.success_at = params.rewards.success_at
        self.run, self.problems, self.sessions = run, problems, sessions
        self.tokenizer, self.progress, self.marks = tokenizer, progress, marks
        self.curriculum = Curriculum(self.settings.curriculum)
        self.log = TrainingLog(run, params.tracking.traces)
        self.drawn = Drawn(groups=[], episodes=[])
        self.started = time.monotonic()

    def begin(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint's state, if there is one."""
        if state is not None:
            self.curriculum.restore(state["curriculum"])
            self.log.restore(state)
            self.progress.begin_at(state["step"])

    def rollout(self, model: Any, step: int) -> list[list[Trajectory]]:
        """Play the groups of a step with the live weights."""
        from agent.groups import draw_groups
        from agent.models import TransformersPolicy
        from agent.rollout import play

        self.started = time.monotonic()
        policy = TransformersPolicy(model, self.tokenizer, self.settings.generation)
        self.drawn = draw_groups(
            lambda specs: play(policy, self.sessions, specs, sessions=self.sessions.count),
            step,
            self.curriculum,
            self.problems,
            self.settings,
        )
        return self.drawn.groups

    def on_step(self, step: int, logs: dict[str, float]) -> None:
        """After the optimizer step: the curriculum's gate, the figures, the progress."""
        from agent.metrics import draw_metrics, episode_metrics, trainer_metrics

        level, index = self.curriculum.level, self.curriculum.index
        played = self.drawn.episodes
        events = self.curriculum.update(step, played)
        metric = events[0].metric if events else self.curriculum.metric
        metrics = {
            **episode_metrics(played, self.success_at),
            **trainer_metrics(logs),
            **draw_metrics(self.drawn),
            "curriculum/level": float(index),
            "train/step_seconds": time.monotonic() - self.started,
        }
        if metric is not None:
            metrics["curriculum/metric"] = metric
        self.log.add_step(step, metrics, level=level, event=events[0].kind if events else "")
        if step % self.settings.table_every == 0 or step == 1:
            self.log.add_episodes(step, played)
        # Neither is there when all of the step's own episodes were lost.
        reward, primary = (metrics.get(f"reward/{n}", math.nan) for n in ("overall", "primary"))
        self.progress.done(step, f"{level}  reward {reward:.3f}  primary {primary:.3f}")
        for event in events:
            self.progress.say(
                f"step {step}: {event.kind} from {event.source} to {event.target} "
                f"({self.settings.curriculum.metric} {event.metric:.3f})"
            )
            self.run.set_tags({f"curriculum_{event.kind}_{step}": f"{event.source}>{event.target}"})

    def save(self) -> dict[str, Any]:
        """Write the reports; what a resume needs, for the checkpoint."""
        self.log.write()
        return {
            "fingerprint": self.marks,
            "curriculum": self.curriculum.state(),
            **self.log.state(),
        }


def fingerprint(params: Params) -> dict[str, str]:
    """What must be the same for a checkpoint to be continued, by name."""
    from tasks.lineage import files_hash, folder_hash

    levels = params.prepare.synthetic.levels  # of which the hint is in no file: only in prompts
    settings = {
        "train": params.train.model_dump(mode="json", exclude=BOOKKEEPING),
        "env": params.env.model_dump(mode="json"),
        "rewards": params.rewards.model_dump(mode="json"),
    }
    return {
        **{
            f"settings of {name}": _digest(json.dumps(s, sort_keys=True).encode())
            for name, s in settings.items()
        },
        "base model": folder_hash(BASE),
        "training data": _digest(DATA.read_bytes()),
        "hints": ",".join(name for name, level in levels.items() if level.hint),
        "code": files_hash(_code(), ROOT),
    }


def _code() -> list[Path]:
    packages = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return sorted([*packages, ROOT / "tasks/train.py"])


def read_problems(path: Path, levels: Sequence[str]) -> dict[str, list[EpisodeSpec]]:
    """Training problems by level, in the order of their ids; public columns only.

    Raises:
        StageError: no data, or none of a level.
    """
    from agent.rollout import EpisodeSpec

    if not path.is_file():
        raise StageError(f"train: {path} is missing; run the stage prepare first")
    frame = pd.read_parquet(path, columns=["problem_id", "group_id", "difficulty", "tier"])
    problems: dict[str, list[EpisodeSpec]] = {}
    for row in frame.sort_values("problem_id").itertuples(index=False):
        spec = EpisodeSpec(
            problem_id=str(row.problem_id),
            difficulty=str(row.difficulty),
            group_id=str(row.group_id),
            tier=str(row.tier),
        )
        problems.setdefault(spec.difficulty, []).append(spec)
    missing = [level for level in levels if level not in problems]
    if missing:
        raise StageError(
            f"train: {path} holds no problem of difficulty {', '.join(missing)}; change "
            "train.curriculum.levels or run the stage prepare again"
        )
    return problems


@contextmanager
def environment(params: Params) -> Iterator[str]:
    """URL of the environment; for the control `wrong_gold` one with the gold mixed up."""
    from tasks import deploy

    if params.train.control != "wrong_gold":
        with deploy.environment(params) as url:
            yield url
        return
    with tempfile.TemporaryDirectory(prefix="rlm-control-") as folder:
        swapped = with_wrong_gold(pd.read_parquet(DATA))
        swapped.to_parquet(Path(folder) / DATA.name, index=False)
        logger.warning("control wrong_gold: each problem is scored by another one's gold")
        with deploy.local_server(params, data=Path(folder)) as url:
            yield url


def with_wrong_gold(problems: pd.DataFrame) -> pd.DataFrame:
    """The same problems, each with evidence and tier of the next one about the same papers.

    Raises:
        ConfigError: a group has a single question.
    """
    swapped = problems.sort_values(["group_id", "problem_id"], ignore_index=True)
    groups = swapped.groupby("group_id", sort=False)
    if (groups["problem_id"].transform("size") < 2).any():
        raise ConfigError(
            "train.control: wrong_gold needs groups of two questions or more: raise "
            "prepare.synthetic.questions_per_group"
        )
    for name in ("evidence", "tier"):
        following = groups[name].shift(-1)
        swapped[name] = following.where(following.notna(), groups[name].transform("first"))
    return swapped


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
