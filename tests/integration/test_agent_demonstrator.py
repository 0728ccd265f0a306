"""The demonstrator plays real episodes: it shows every source, by readers."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from helpers.problem_files import write_problems
from helpers.quoted import quoted

from agent.demonstrations import keyed_plan
from agent.demonstrations.demonstrator import Demonstrator
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.problems.schema import Problem
from env.settings import EnvSettings
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server


def played(
    sessions: Sessions, env: EnvSettings, problems: Sequence[Problem], **options: Any
) -> tuple[list[Trajectory], Demonstrator]:
    policy = Demonstrator(problems, env, **options)
    specs = [EpisodeSpec(problem.problem_id, seed=n) for n, problem in enumerate(problems)]
    return play(policy, sessions, specs, sessions=sessions.count), policy


@pytest.mark.parametrize("style", ["compact", "full"])
def test_readers_choose_the_sentences_of_fields(style, server_params, server_url, server_problems):
    problems = [server_problems.get(name) for name in server_problems.ids("train")[::9]]
    env = server_params.env.model_copy(update={"prompt_style": style})
    with Sessions(server_url, 8) as sessions:
        episodes, _ = played(sessions, env, problems)
        repaired, policy = played(sessions, env, problems, slips=1.0)
    assert all(episode.metrics.exact_match for episode in repaired)
    assert len(policy.mistakes) == len(problems)
    for episode in episodes:
        assert episode.metrics.exact_match
        assert {frame.kind for frame in episode.children(0)} == {"llm"}
        assert episode.reward > 0.85
        assert episode.root.turns[0].text.startswith("```repl") == (style == "compact")


def own_problem(topic: str) -> Problem:
    """Its gold is a sentence, and two lines."""
    one = f"{topic} grows in {topic}land, where many kinds of other trees grow as well."
    two = f"To grow, {topic} waits,\nas others do until it rains."
    filler = "\n\n".join(f"Sentence {n} says nothing about {topic}." for n in range(60))
    texts = {
        f"{topic}-0": f"On {topic}\n\n{filler}\n\n{one}\n\n{topic} is a word.\n\n{two}",
        f"{topic}-1": f"Notes\n\n{topic} was not seen.\n\n{filler}",
    }
    made = quoted(f"Where does {topic} grow?", texts, (f"{topic}-0", one), (f"{topic}-0", two))
    return made.model_copy(update={"problem_id": topic})


PROBLEMS = list(map(own_problem, ("Kalvot", "Mirbex", "Dorvek", "Jedgeb", "Sorpik", "Lantuf")))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Params, Sessions]]:
    """A server of such questions."""
    folder = tmp_path_factory.mktemp("own")
    params = resolve(overrides=["threads=1", "prepare.source=files"])
    write_problems(folder / "train.parquet", PROBLEMS)
    with local_server(params, data=folder) as url, Sessions(url, 4) as sessions:
        yield params, sessions


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("slips", [0.0, 1.0])
def test_readers_choose_ranked_passages_of_other_problems(own, style, slips):
    params, sessions = own
    # The server's own style: only the words of the turns differ.
    env = params.env.model_copy(update={"prompt_style": style})
    args = (env, params.rewards)
    assert {keyed_plan.demonstration_fault(problem, *args) for problem in PROBLEMS} == {None}
    told = {"rewards": params.rewards, "slips": slips}
    episodes, policy = played(sessions, env, PROBLEMS, **told)
    for number, (problem, episode) in enumerate(zip(PROBLEMS, episodes, strict=True)):
        assert episode.metrics.exact_match
        assert episode.components["format_compliance"] > 0
        assert len(episode.root.turns) == (2 if slips else 1)
        assert ((number, 0, 0) in policy.mistakes) == (slips > 0)
        if slips:
            assert "NameError" in episode.root.turns[1].observation
        asked = dict.fromkeys(prompt for prompt, _ in keyed_plan.readers(problem, *args))
        assert len(episode.children(0)) == len(asked)
