"""The demonstrator plays real episodes: it shows every source, by readers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agent.demonstrations import keyed_plan
from agent.demonstrations.demonstrator import Demonstrator
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.problems.schema import Problem, to_row
from env.problems.store import ProblemStore
from env.settings import EnvSettings
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.prepare import read_source, write_parquet


def played(
    sessions: Sessions, env: EnvSettings, problems: Sequence[Problem], **options: Any
) -> tuple[list[Trajectory], Demonstrator]:
    policy = Demonstrator(problems, env, **options)
    specs = [EpisodeSpec(problem.problem_id, seed=n) for n, problem in enumerate(problems)]
    return play(policy, sessions, specs, sessions=sessions.count), policy


@pytest.mark.parametrize("style", ["compact", "full"])
def test_readers_choose_the_sentences_of_fields(
    style: str, server_params: Params, server_url: str, server_problems: ProblemStore
) -> None:
    problems = [server_problems.get(name) for name in server_problems.ids("train")[::9]]
    env = server_params.env.model_copy(update={"prompt_style": style})
    with Sessions(server_url, 8) as sessions:
        episodes, _ = played(sessions, env, problems)
    for episode in episodes:
        assert episode.metrics is not None
        assert episode.metrics.exact_match
        assert {frame.kind for frame in episode.children(0)} == {"llm"}
        assert episode.reward is not None
        assert episode.reward > 0.85
        begins = episode.root.turns[0].text.startswith("```repl")
        assert begins == (style == "compact")


def hub_rows() -> list[dict[str, object]]:
    """Questions of the Hub's form: quotes of a sentence, and of two lines."""
    rows: list[dict[str, object]] = []
    for topic in ("Kalvot", "Mirbex", "Dorvek", "Jedgeb", "Sorpik", "Lantuf"):
        one = f"{topic} grows in {topic}land, where many kinds of other trees grow as well."
        two = f"To grow, {topic} waits,\nas others do until it rains."
        filler = "\n\n".join(f"Sentence {n} says nothing about {topic}." for n in range(60))
        texts = [
            "\n\n".join([f"On {topic}", filler, one, f"{topic} is a word.", two]),
            "\n\n".join(["Notes", f"{topic} was not seen.", filler]),
        ]
        papers = [
            {"paperId": f"{topic}-{n}", "title": f"On {topic}", "abstract": "short", "text": text}
            for n, text in enumerate(texts)
        ]
        evidence = [{"paperId": f"{topic}-0", "selections": [{"text": one}, {"text": two}]}]
        rows.append(
            {"question": f"Where does {topic} grow?", "papers": papers, "evidence": evidence}
        )
    return rows


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Params, Sessions]]:
    """A server of such questions, which are in `data` of its settings' data set."""
    folder = tmp_path_factory.mktemp("hub")
    path = folder / "hub.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in hub_rows()), encoding="utf-8")
    params = resolve(overrides=["threads=1", "prepare.source=hub", f"prepare.hub.name={path}"])
    rows = [to_row(problem) for problem in read_source(params).problems]
    write_parquet(folder / "all.parquet", rows)
    with local_server(params, data=folder) as url, Sessions(url, 4) as sessions:
        yield params, sessions


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("slips", [0.0, 1.0])
def test_readers_name_ranked_passages_of_a_data_set_of_the_hub(
    hub: tuple[Params, Sessions], style: str, slips: float
) -> None:
    params, sessions = hub
    # The server's own style: only the words of the turns differ.
    env = params.env.model_copy(update={"prompt_style": style})
    args = (env, params.rewards)
    problems = read_source(params).problems
    assert [keyed_plan.fault(problem, *args) for problem in problems] == [None] * len(problems)
    told = {"rewards": params.rewards, "slips": slips}
    episodes, policy = played(sessions, env, problems, **told)
    for number, (problem, episode) in enumerate(zip(problems, episodes, strict=True)):
        assert episode.metrics is not None
        assert episode.metrics.exact_match
        assert episode.components["format_compliance"] > 0
        assert len(episode.root.turns) == (2 if slips else 1)
        assert ((number, 0, 0) in policy.mistakes) == (slips > 0)
        if slips:
            assert "NameError" in episode.root.turns[1].observation
        asked = dict.fromkeys(prompt for prompt, _ in keyed_plan.readers(problem, *args))
        assert len(episode.children(0)) == len(asked)
