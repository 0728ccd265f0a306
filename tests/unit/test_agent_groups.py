"""Episodes of a step: voids replaced, groups without a signal exchanged."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import CurriculumSettings, TrainSettings
from agent.training.batching import make_rows
from agent.training.curriculum import Curriculum
from agent.training.groups import Drawn, draw_groups, groups_for
from agent.training.metrics import draw_metrics
from env.errors import EpisodeError
from env.models import BUSY

PROBLEMS = {
    level: [EpisodeSpec(f"{level}-{i}", difficulty=level) for i in range(40)]
    for level in ("easy", "medium", "hard")
}
SETTINGS = TrainSettings(problems_per_step=4, group_size=4, resample_groups=2)
OWN = SETTINGS.model_copy(update={"resample_groups": 0})
EIGHT = OWN.model_copy(update={"group_size": 8})
ALWAYS = CurriculumSettings(mode="always", window=1)

Void = Callable[[EpisodeSpec, int], str | None]
"""(episode, call) -> its void."""


class Env:
    """Environment with rewards and voids of the test; `calls` records the specs."""

    def __init__(
        self,
        reward: Callable[[EpisodeSpec], float],
        void: Void = lambda spec, call: None,
        turns: int = 1,
    ) -> None:
        self.reward, self.void, self.turns = reward, void, turns
        self.calls: list[list[EpisodeSpec]] = []

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        self.calls.append(list(specs))
        return [self._play(spec) for spec in specs]

    def _play(self, spec: EpisodeSpec) -> Trajectory:
        turns = [TurnRecord("", "", "stop", [1], [2, 3], [-1.0, -1.0])] * self.turns
        frames = {0: FrameRecord(0, None, 0, "rlm", turns, "final")}
        name = f"{spec.problem_id}/{spec.seed}"
        tree = Trajectory(name, spec.difficulty, frames=frames, reward=self.reward(spec))
        tree.components = {"primary_objective": tree.reward}
        if (reason := self.void(spec, len(self.calls))) is not None:
            tree.void, tree.reward, tree.components = reason, None, {}
            tree.root.stop_reason = "timeout" if reason == BUSY else None
        return tree


def by_seed(spec: EpisodeSpec) -> float:
    return (spec.seed % 97) / 97


def draw(env: Env, settings: TrainSettings = SETTINGS, step: int = 3) -> Drawn:
    return draw_groups(env, step, Curriculum(settings.curriculum), PROBLEMS, settings)


def test_a_group_is_one_problem_which_does_not_return_before_all_were_played():
    played = [
        {(spec.problem_id, spec.difficulty) for spec in group}
        for step in range(1, 11)
        for group in groups_for(step, ["medium"] * 4, PROBLEMS, SETTINGS)
    ]
    assert [len(problem) for problem in played] == [1] * 40
    assert set.union(*played) == {(spec.problem_id, "medium") for spec in PROBLEMS["medium"]}


def test_flat_groups_are_exchanged_for_others_and_still_reported():
    def flat_at_first(spec: EpisodeSpec) -> float:
        flat = {env.calls[0][0].problem_id, env.calls[0][-1].problem_id}
        return 0.0 if spec.problem_id in flat else by_seed(spec)

    env = Env(flat_at_first)
    drawn = draw(env)
    assert drawn.resampled_groups == 2
    assert drawn.extra_episodes == len(env.calls[1]) == 8
    own = {spec.problem_id for spec in env.calls[0]}
    others = {spec.problem_id for spec in env.calls[1]}
    assert not own & others
    assert len(others) == 2
    learnt = {tree.problem_id for group in drawn.groups for tree in group}
    assert len([p for p in learnt if p.split("/")[0] in others]) == 8
    # The figures of the step are those of its own problems: the exchanged were chosen for spread.
    assert {tree.problem_id.split("/")[0] for tree in drawn.episodes} == own
    assert len(drawn.episodes) == 16


def test_groups_without_a_signal_are_split_by_whether_their_episodes_succeed(monkeypatch):
    rewards = {0: [0.1, 0.1, 0.1, 0.1], 1: [0.9, 0.9, 0.9, 0.9], 2: [0.5, 0.49, 0.5, 0.49]}

    def reward(spec: EpisodeSpec) -> float:
        if spec not in env.calls[0]:
            return by_seed(spec)
        group, sample = divmod(env.calls[0].index(spec), 4)
        return rewards[group][sample] if group in rewards else by_seed(spec)

    env = Env(reward, void=lambda spec, call: "lost" if spec == env.calls[0][0] else None)
    monkeypatch.setattr("agent.training.groups.REPLAYS", 0)
    drawn = draw(env)
    found = draw_metrics(drawn)
    # A void is neither; the third group is too even to learn from, but some of it succeeds.
    assert (found["train/too_hard_groups"], found["train/too_easy_groups"]) == (1, 1)
    rows = make_rows(drawn.groups, SETTINGS)
    assert drawn.resampled_groups == 3
    assert len(drawn.flat_groups) == rows.flat_groups + drawn.resampled_groups == 3


def test_the_rounds_are_bounded_and_a_group_that_stays_flat_stays():
    env = Env(lambda spec: 0.0)
    drawn = draw(env)
    assert len(env.calls) == 3
    assert len({spec.problem_id for call in env.calls for spec in call}) == 12
    assert (drawn.resampled_groups, drawn.extra_episodes) == (0, 32)
    assert [tree for group in drawn.groups for tree in group] == drawn.episodes
    env = Env(lambda spec: 0.0)
    assert draw(env, OWN).extra_episodes == 0
    assert len(env.calls) == 1


def test_the_episodes_depend_only_on_seed_and_step():
    def specs_at(step: int, seed: int = 0) -> list[list[EpisodeSpec]]:
        env = Env(lambda spec: 0.0)
        draw(env, SETTINGS.model_copy(update={"seed": seed}), step)
        return env.calls

    assert specs_at(5) == specs_at(5)
    assert specs_at(5)[1:] != specs_at(6)[1:]
    assert specs_at(5)[1:] != specs_at(5, seed=1)[1:]
    seeds = [spec.seed for call in specs_at(5) for spec in call]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("reason", ["lost", BUSY])
def test_a_void_episode_is_played_again_first_as_it_was(reason):
    def is_lost(spec: EpisodeSpec) -> bool:
        return spec == env.calls[0][0] if reason == BUSY else spec.seed % 5 == 0

    env = Env(by_seed, lambda spec, call: reason if call == 1 and is_lost(spec) else None)
    drawn = draw(env)
    lost = list(filter(is_lost, env.calls[0]))
    assert lost
    assert len(env.calls) == 2
    assert drawn.charged_voids == 0
    assert env.calls[1] == lost
    assert drawn.groups == draw(Env(by_seed)).groups  # as if nothing had been lost
    assert drawn.replaced_voids == len(lost)
    assert sum(tree.void is not None for tree in drawn.episodes) == len(lost)
    assert len(drawn.episodes) == 16 + len(lost)


def test_an_episode_that_is_void_by_itself_gets_another_seed_and_then_stays_void():
    def same(spec: EpisodeSpec, call: int) -> str | None:
        return "lost" if spec.seed == env.calls[0][0].seed else None

    env = Env(by_seed, same)
    drawn = draw(env)
    assert [len(call) for call in env.calls] == [16, 1, 1]
    again, other = env.calls[1][0], env.calls[2][0]
    assert again == env.calls[0][0]
    assert other.problem_id == again.problem_id
    assert other.seed not in {spec.seed for spec in env.calls[0]}
    assert drawn.groups[0][0].void is None
    never = Env(by_seed, lambda spec, call: "lost")
    drawn = draw(never, OWN.model_copy(update={"problems_per_step": 1}))
    assert [tree.void for tree in drawn.groups[0]] == ["lost"] * 4
    assert (drawn.replaced_voids, drawn.extra_episodes) == (0, 8)


def poor(spec: EpisodeSpec) -> bool:
    return by_seed(spec) < 0.5


def burns(spec: EpisodeSpec, call: int) -> str | None:
    """It burns CPU until the machine is too busy for its own cell."""
    return BUSY if poor(spec) else None


def burns_once(spec: EpisodeSpec, call: int) -> str | None:
    """It reads a clock, so that its replay with the same seed is another episode."""
    return BUSY if poor(spec) and call == 1 else None


def rewards(drawn: Drawn) -> list[list[float | None]]:
    return [[tree.reward for tree in group] for group in drawn.groups]


@pytest.mark.parametrize("cheat", [burns, burns_once])
def test_voiding_poor_episodes_does_not_pay(cheat: Void) -> None:
    luck = Random(0)
    env = Env(lambda spec: luck.random() if len(env.calls) > 1 else by_seed(spec), cheat)
    drawn = draw(env, EIGHT)
    for group, other in zip(drawn.groups, rewards(draw(Env(by_seed), EIGHT)), strict=True):
        lost = [i for i, value in enumerate(other) if value < 0.5]
        # One episode of a problem is excused: it was played again, or stays out.
        worse = [i for i in lost if group[i].reward is not None]
        least = min(tree.reward for tree in group if tree.reward is not None)
        assert len([i for i in worse if group[i].reward == least]) >= len(lost) - 1 > 0
    assert drawn.charged_voids > len(drawn.groups)
    assert drawn.extra_episodes <= 2 * len(drawn.groups)
    # The figures of the step still call them void.
    assert sum(tree.void == BUSY for tree in drawn.episodes) >= drawn.charged_voids


def disconnects(spec: EpisodeSpec, call: int) -> str | None:
    """It loses its connection, by whatever means, where the episode looks poor."""
    return "connection: closed (1009)" if poor(spec) else None


def is_refused(spec: EpisodeSpec, call: int) -> str | None:
    return "refused: a message has at most 2000000 bytes" if poor(spec) else None


@pytest.mark.parametrize("cheat", [burns, disconnects, is_refused])
def test_a_charged_episode_is_trained_away_from(cheat: Void) -> None:
    drawn = draw(Env(by_seed, cheat), OWN)
    rows = make_rows(drawn.groups, SETTINGS).rows
    trees = [tree for group in drawn.groups for tree in group]
    charged = [row for row in rows if trees[row.tree].root.stop_reason == "timeout" and row.weight]
    assert len(charged) == drawn.charged_voids > 0
    assert all(row.fate == "trained" and row.advantage <= 0 for row in charged)
    assert any(row.advantage < 0 for row in charged)


@pytest.mark.parametrize("cheat", [disconnects, is_refused])
def test_losing_the_connection_of_poor_episodes_does_not_pay(cheat):
    env = Env(by_seed, cheat)
    drawn = draw(env, EIGHT)
    lost = [spec for spec in env.calls[0] if poor(spec)]
    assert drawn.charged_voids == len(lost) > 8
    for group, honest in zip(rewards(drawn), rewards(draw(Env(by_seed), EIGHT)), strict=True):
        least = min(value for value in honest if value is not None and value >= 0.5)
        assert group == [max(value or 0.0, least) for value in honest]
    # Each was played again once, and a valid episode beside it.
    assert len(env.calls) == 2
    assert sum(poor(spec) for spec in env.calls[1]) == len(lost)
    assert drawn.extra_episodes == len(env.calls[1]) <= 2 * len(lost)


def test_without_a_valid_episode_or_a_turn_nobody_is_charged() -> None:
    assert draw(Env(by_seed, lambda spec, call: BUSY), OWN).charged_voids == 0
    assert draw(Env(by_seed, disconnects, turns=0), OWN).charged_voids == 0


@pytest.mark.parametrize("outages", [(1,), (1, 2), (1, 2, 3)])
def test_an_outage_is_charged_to_nobody(outages: tuple[int, ...]) -> None:
    """Half of the episodes in flight are lost, whatever they contain."""
    turn = iter(range(10**6))

    def outage(spec: EpisodeSpec, call: int) -> str | None:
        return "connection: no answer" if call in outages and next(turn) % 4 < 2 else None

    assert draw(Env(by_seed, outage), OWN).charged_voids == 0


def test_a_lost_environment_costs_only_the_extra_episodes():
    def reward(spec: EpisodeSpec) -> float:
        if len(env.calls) > 1:
            raise EpisodeError("gone")
        return 0.0

    env = Env(reward)
    drawn = draw(env)
    assert [len(group) for group in drawn.groups] == [4] * 4
    assert drawn.resampled_groups == 0


def test_levels_of_exchanged_groups_come_from_the_curriculum(monkeypatch):
    monkeypatch.setattr("agent.training.curriculum.MIN_STEPS", 1)
    monkeypatch.setattr("agent.training.curriculum.REPLAY", 0.5)
    settings = SETTINGS.model_copy(update={"curriculum": ALWAYS, "problems_per_step": 8})
    curriculum = Curriculum(ALWAYS)
    good = [Trajectory("p", "easy", reward=1.0, components={"primary_objective": 1.0})]
    curriculum.update(1, good)
    assert curriculum.level == "medium"
    env = Env(lambda spec: 0.0)
    draw_groups(env, 2, curriculum, PROBLEMS, settings)
    for call in env.calls[1:]:
        assert {spec.difficulty for spec in call} == {"easy", "medium"}


def test_too_few_problems_to_exchange_give_fewer_groups():
    few = {level: specs[:5] for level, specs in PROBLEMS.items()}
    env = Env(lambda spec: 0.0)
    draw_groups(env, 1, Curriculum(SETTINGS.curriculum), few, SETTINGS)
    assert [len(call) for call in env.calls] == [16, 4]


def test_the_next_steps_own_problems_do_not_depend_on_the_exchange(monkeypatch):
    monkeypatch.setattr("agent.training.curriculum.MIN_STEPS", 1)
    monkeypatch.setattr("agent.training.curriculum.REPLAY", 0.0)

    def played_next(resample_groups: int) -> list[EpisodeSpec]:
        changed = {"resample_groups": resample_groups, "curriculum": ALWAYS}
        settings = SETTINGS.model_copy(update=changed)
        curriculum = Curriculum(ALWAYS)
        # Flat are the step's own groups alone; their substitutes would unlock the next level.
        env = Env(lambda spec: 0.0 if len(env.calls) == 1 else 0.8 + by_seed(spec) / 5)
        drawn = draw_groups(env, 1, curriculum, PROBLEMS, settings)
        assert drawn.resampled_groups == (4 if resample_groups else 0)
        curriculum.update(1, drawn.episodes)
        following = Env(by_seed)
        draw_groups(following, 2, curriculum, PROBLEMS, settings)
        return following.calls[0]

    assert played_next(2) == played_next(0)
