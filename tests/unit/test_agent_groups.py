"""Episodes of a step: voids replaced, groups without a signal exchanged."""

from collections.abc import Callable, Sequence

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import CurriculumSettings, TrainSettings
from agent.training.curriculum import Curriculum
from agent.training.groups import Drawn, draw_groups
from env.errors import EpisodeError

PROBLEMS = {
    level: [EpisodeSpec(f"{level}-{i}", difficulty=level) for i in range(40)]
    for level in ("easy", "medium", "hard")
}
SETTINGS = TrainSettings(problems_per_step=4, group_size=4, resample_groups=2, replace_voids=2)


class Env:
    """Environment with rewards and voids of the test; `calls` records the specs."""

    def __init__(
        self,
        reward: Callable[[EpisodeSpec], float],
        void: Callable[[EpisodeSpec, int], bool] = lambda spec, call: False,
    ) -> None:
        self.reward, self.void = reward, void
        self.calls: list[list[EpisodeSpec]] = []

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        self.calls.append(list(specs))
        return [self._play(spec) for spec in specs]

    def _play(self, spec: EpisodeSpec) -> Trajectory:
        tree = Trajectory(
            f"{spec.problem_id}/{spec.seed}",
            spec.difficulty,
            frames={0: FrameRecord(0, None, 0, "rlm", [], "final")},
            reward=self.reward(spec),
        )
        tree.components = {"primary_objective": tree.reward}
        if self.void(spec, len(self.calls)):
            tree.void, tree.reward = "lost", None
        return tree


def by_seed(spec: EpisodeSpec) -> float:
    return (spec.seed % 97) / 97


def draw(env: Env, settings: TrainSettings = SETTINGS, step: int = 3) -> Drawn:
    return draw_groups(env, step, Curriculum(settings.curriculum), PROBLEMS, settings)


def test_groups_with_a_signal_are_played_once():
    env = Env(by_seed)
    drawn = draw(env)
    assert len(env.calls) == 1
    assert [len(group) for group in drawn.groups] == [4] * 4
    assert drawn.episodes == [tree for group in drawn.groups for tree in group]
    assert (drawn.replaced_voids, drawn.resampled_groups, drawn.extra_episodes) == (0, 0, 0)


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


def test_the_rounds_are_bounded_and_a_group_that_stays_flat_stays():
    env = Env(lambda spec: 0.0)
    drawn = draw(env)
    assert len(env.calls) == 3
    assert len({spec.problem_id for call in env.calls for spec in call}) == 12
    assert drawn.resampled_groups == 0
    assert drawn.extra_episodes == 32
    assert [tree for group in drawn.groups for tree in group] == drawn.episodes
    off = SETTINGS.model_copy(update={"resample_groups": 0})
    env = Env(lambda spec: 0.0)
    assert draw(env, off).extra_episodes == 0
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


def test_a_void_episode_is_played_again_first_as_it_was():
    env = Env(by_seed, void=lambda spec, call: call == 1 and spec.seed % 5 == 0)
    drawn = draw(env)
    lost = [spec for spec in env.calls[0] if spec.seed % 5 == 0]
    assert lost
    assert env.calls[1] == lost
    whole = draw(Env(by_seed))
    assert drawn.groups == whole.groups  # as if nothing had been lost
    assert drawn.replaced_voids == len(lost)
    assert sum(tree.void is not None for tree in drawn.episodes) == len(lost)
    assert len(drawn.episodes) == 16 + len(lost)


def test_an_episode_that_is_void_by_itself_gets_another_seed_and_then_stays_void():
    env = Env(by_seed, void=lambda spec, call: spec.seed == env.calls[0][0].seed)
    drawn = draw(env)
    assert [len(call) for call in env.calls] == [16, 1, 1]
    again, other = env.calls[1][0], env.calls[2][0]
    assert again == env.calls[0][0]
    assert other.problem_id == again.problem_id
    assert other.seed not in {spec.seed for spec in env.calls[0]}
    assert drawn.groups[0][0].void is None
    never = Env(by_seed, void=lambda spec, call: spec.problem_id == never.calls[0][0].problem_id)
    drawn = draw(never, SETTINGS.model_copy(update={"resample_groups": 0}))
    assert [tree.void for tree in drawn.groups[0]] == ["lost"] * 4
    assert drawn.replaced_voids == 0
    assert drawn.extra_episodes == 8


def test_a_lost_environment_costs_only_the_extra_episodes():
    def reward(spec: EpisodeSpec) -> float:
        if len(env.calls) > 1:
            raise EpisodeError("gone")
        return 0.0

    env = Env(reward)
    drawn = draw(env)
    assert [len(group) for group in drawn.groups] == [4] * 4
    assert drawn.resampled_groups == 0


def test_levels_of_exchanged_groups_come_from_the_curriculum():
    always = CurriculumSettings(mode="always", min_steps=1, window=1, replay=0.5)
    settings = SETTINGS.model_copy(update={"curriculum": always, "problems_per_step": 8})
    curriculum = Curriculum(always)
    good = [Trajectory("p", "easy", reward=1.0, components={"primary_objective": 1.0})]
    curriculum.update(1, good)
    assert curriculum.level == "medium"
    env = Env(lambda spec: 0.0)
    draw_groups(env, 2, curriculum, PROBLEMS, settings)
    for call in env.calls[1:]:
        levels = [spec.difficulty for spec in call]
        assert set(levels) == {"easy", "medium"}
        assert "hard" not in levels


def test_too_few_problems_to_exchange_give_fewer_groups():
    few = {level: specs[:5] for level, specs in PROBLEMS.items()}
    env = Env(lambda spec: 0.0)
    draw_groups(env, 1, Curriculum(SETTINGS.curriculum), few, SETTINGS)
    assert [len(call) for call in env.calls] == [16, 4]


def test_the_next_steps_own_problems_do_not_depend_on_the_exchange():
    moves_at_once = CurriculumSettings(mode="always", min_steps=1, window=1, replay=0.0)

    def played_next(resample_groups: int) -> list[EpisodeSpec]:
        changed = {"resample_groups": resample_groups, "curriculum": moves_at_once}
        settings = SETTINGS.model_copy(update=changed)
        curriculum = Curriculum(moves_at_once)
        # Flat are the step's own groups alone; their substitutes would unlock the next level.
        env = Env(lambda spec: 0.0 if len(env.calls) == 1 else 0.8 + by_seed(spec) / 5)
        drawn = draw_groups(env, 1, curriculum, PROBLEMS, settings)
        assert drawn.resampled_groups == (4 if resample_groups else 0)
        curriculum.update(1, drawn.episodes)
        following = Env(by_seed)
        draw_groups(following, 2, curriculum, PROBLEMS, settings)
        return following.calls[0]

    assert played_next(2) == played_next(0)
