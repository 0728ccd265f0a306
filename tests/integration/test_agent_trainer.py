"""The trainer on a tiny model, with a rollout that samples little trees from the live weights."""

import numpy as np
import pytest
import torch
from helpers.tiny_trees import SETTINGS, make_trainer, note_logprobs, play_trees, tiny_model

from agent.errors import CheckpointError, LogprobCheckError, RolloutError
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import SftSettings, TrainSettings
from agent.training import checkpoints
from agent.training.logprob_check import Mismatch, require_agreement
from agent.training.trained_weights import copies

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]

CLOCKS = {
    *("train/tokens_per_second", "train/rollout_seconds", "train/gradient_seconds"),
    *("epoch", "step_time"),
}
"""Metrics that differ from run to run; `epoch` is the Trainer's measure of progress."""


TOO_LARGE = 5e-5
"""Error of reported log-probabilities, below the limit of the check."""


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    settings = SETTINGS.model_copy(update={"max_step_kl": 1e-4})
    whole_log: list = []
    whole = make_trainer(tmp_path / "whole", settings, log=whole_log)
    whole.resume(None)

    def killed_at_step_4(model, step):
        if step == 4:
            raise KeyboardInterrupt
        return play_trees(model, step)

    cut = make_trainer(tmp_path / "cut", settings, rollout=killed_at_step_4)
    with pytest.raises(KeyboardInterrupt):
        cut.resume(None)
    start = checkpoints.choose(tmp_path / "cut", {"a": 1})
    assert start.checkpoint is not None
    assert start.reason.startswith("resuming after step 2 ")
    assert start.state is not None
    assert start.state["seen"] == [1, 2]

    resumed_log: list = []
    resumed = make_trainer(tmp_path / "cut", settings, log=resumed_log)
    resumed.resume(start.checkpoint)
    assert [step for step, _ in resumed_log] == [3, 4]
    for name, value in copies(whole.live_model).items():
        assert torch.equal(copies(resumed.live_model)[name], value), name
    assert min(figures["train/step_scale"] for _, figures in whole_log) < 1  # the limit did bite
    reported = [row["reward/overall"] for row in whole.state.log_history if len(row) == 3]
    assert reported == [1.0, 2.0, 3.0, 4.0]  # what `on_step` returns goes to `report_to`
    # All figures but the clocks, of the first step after the resume as well.
    for (_, mine), (_, other) in zip(resumed_log, whole_log[2:], strict=True):
        assert mine.keys() == other.keys()
        for key in mine:
            if key not in CLOCKS:
                assert mine[key] == other[key], key


def test_the_logprob_check_catches_another_temperature(tmp_path):
    with pytest.raises(LogprobCheckError, match=r"step 1: .*\(max .*limit 0\.001"):
        make_trainer(tmp_path, temperature=0.7).resume(None)


def test_the_logprob_check_catches_an_adapter_lost_after_the_first_step(tmp_path):
    base = tiny_model()
    settings = SETTINGS.model_copy(update={"learning_rate": 5e-2})
    trainer = make_trainer(tmp_path, settings, rollout=lambda _, step: play_trees(base, step))
    with pytest.raises(LogprobCheckError, match="step 2"):
        trainer.resume(None)


def test_rounded_weights_have_limits_of_their_own():
    require_agreement(Mismatch(tokens=9, mean=0.04, p99=0.4, max=3.0), exact=False, step=1)
    for limit, mean, p99 in (("mean", 0.06, 0.1), ("p99", 0.01, 0.6)):
        with pytest.raises(LogprobCheckError, match=rf"\({limit} .*limit 0\.0?5\)"):
            require_agreement(Mismatch(tokens=9, mean=mean, p99=p99, max=3.0), exact=False, step=1)


def test_non_finite_weights_stop_the_run_at_once(tmp_path):
    def rollout(model, step):
        groups = play_trees(model, step)
        if step == 3:  # not one of the steps that are always compared
            next(p for p in model.parameters() if p.requires_grad).data.fill_(float("nan"))
        return groups

    with pytest.raises(LogprobCheckError, match=r"step 3: the weight .* is not finite"):
        make_trainer(tmp_path, rollout=rollout).resume(None)


def test_a_step_without_a_signal_changes_nothing(tmp_path):
    started: list[dict[str, torch.Tensor]] = []

    def rollout(model, step):
        started.append(copies(model))
        groups = play_trees(model, step)
        if step > 1:
            for group in groups:
                for tree in group:
                    tree.reward = 0.5
        return groups

    log: list = []
    settings = SETTINGS.model_copy(update={"steps": 3})
    trainer = make_trainer(tmp_path, settings, rollout=rollout, log=log)
    trainer.resume(None)
    # The log-probabilities of step 2 are compared all the same.
    assert ["train/logprob_mismatch_max" in figures for _, figures in log] == [True, True, False]
    first, *flat = [*started, copies(trainer.live_model)]
    assert any(not torch.equal(flat[0][name], value) for name, value in first.items())
    for later in flat[1:]:
        for name, value in later.items():
            assert torch.equal(value, flat[0][name]), name


def test_a_step_of_void_episodes_stops_the_run(tmp_path):
    def rollout(model, step):
        groups = play_trees(model, step)
        for group in groups:
            for tree in group:
                tree.void = "connection lost"
        return groups

    with pytest.raises(RolloutError, match="connection lost"):
        make_trainer(tmp_path, rollout=rollout).resume(None)


def test_a_finished_run_has_told_its_mismatches_and_once_more_plays_nothing(tmp_path):
    def rollout(model, step):
        groups = play_trees(model, step)
        for turn in (t for g in groups for one in g for f in one.frames.values() for t in f.turns):
            turn.logprobs = [value + TOO_LARGE for value in turn.logprobs]
        return groups

    log: list[tuple[int, dict[str, float]]] = []
    trainer = make_trainer(tmp_path, rollout=rollout, log=log)
    trainer.resume(None)
    assert [step for step, _ in log] == [1, 2, 3, 4]
    for _, logs in log:
        assert logs["train/logprob_mismatch_max"] == pytest.approx(TOO_LARGE, rel=0.1)

    start = checkpoints.choose(tmp_path, {"a": 1})
    assert start.reason.startswith(f"resuming after step {SETTINGS.steps} from ")
    again = make_trainer(tmp_path, rollout=lambda *_: pytest.fail("an episode was played"))
    again.resume(start.checkpoint)
    for one, other in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_full_disk_leaves_the_earlier_checkpoints_as_many_as_are_kept(tmp_path, monkeypatch):
    settings = SETTINGS.model_copy(update={"save_every": 1, "keep_checkpoints": 2})
    trainer = make_trainer(tmp_path, settings)
    plain = torch.save

    def full(what, where, *args, **kwargs):
        if "checkpoint-4" in str(where):
            raise OSError(28, "No space left on device")
        return plain(what, where, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"step 4 .*No space left"):
        trainer.resume(None)
    assert list(checkpoints.steps(tmp_path)) == [2, 3]


def test_the_learning_rate_warms_up_from_above_zero_and_then_falls():
    from agent.training.trl_config import learning_rate_factor

    settings = TrainSettings(steps=10, warmup_steps=3)
    factors = [learning_rate_factor(step, settings) for step in range(10)]
    assert factors[:4] == pytest.approx([0.25, 0.45, 0.6, 0.7])
    assert factors[4:] == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_the_trainers_never_split_a_batch_over_gpus(tmp_path):
    from agent.demonstrations.supervised import supervised_arguments
    from agent.training.trl_config import training_arguments

    train = TrainSettings()
    grpo = training_arguments(train, tmp_path)
    for arguments in (grpo, supervised_arguments(SftSettings(), train, tmp_path)):
        assert arguments.device is not None  # counts the GPUs, unless it has already
        assert arguments.n_gpu == 1


WANTED = 7


def play_wanted(model: torch.nn.Module, step: int) -> list[list[Trajectory]]:
    """Two groups of eight roots that really sample; the reward is the share of `WANTED`."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.tensor([[2, 3]] * 16)
    for _ in range(6):
        with torch.no_grad():
            distribution = torch.softmax(model(input_ids=ids).logits[:, -1].float(), -1)
        ids = torch.cat([ids, torch.multinomial(distribution, 1, generator=generator)], dim=1)
    trees = []
    for row in ids[:, 2:].tolist():
        turn = TurnRecord("", "", "stop", prompt_ids=[2, 3], sampled_ids=row)
        frames = {0: FrameRecord(0, None, 0, "rlm", [turn], "final")}
        trees.append(Trajectory("p", "easy", frames=frames, reward=row.count(WANTED) / len(row)))
    note_logprobs(model, trees)
    return [trees[:8], trees[8:]]


def test_training_raises_the_reward(tmp_path):
    means = []

    def rollout(model, step):
        groups = play_wanted(model, step)
        means.append(np.mean([tree.reward for group in groups for tree in group]))
        return groups

    changed = {"steps": 12, "learning_rate": 0.03, "group_size": 8, "max_step_kl": 1e9}
    make_trainer(tmp_path, SETTINGS.model_copy(update=changed), rollout=rollout).resume(None)
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 0.2
