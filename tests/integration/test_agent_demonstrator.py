"""The demonstrator plays real episodes: it shows every source and never runs ahead of its eyes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.demonstrations import keyed_plan
from agent.demonstrations.demonstrator import Demonstrator
from agent.demonstrations.keyed_plan import Keyed
from agent.demonstrations.reading_plan import LEAST_F1, fault
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

FEW = "prepare.synthetic.collections={train: 1, validation: 1, test: 1}"


def assert_shown(episodes: Sequence[Trajectory]) -> None:
    for episode in episodes:
        assert episode.metrics is not None
        assert episode.metrics.f1 >= LEAST_F1, episode.problem_id


def assert_writes_what_was_shown(
    episodes: Sequence[Trajectory], problems: Sequence[Problem]
) -> None:
    """Every frame has read the gold that it writes, in its prompt or in an observation."""
    written = 0
    for episode, problem in zip(episodes, problems, strict=True):
        gold = {span.text for fact in problem.evidence for span in fact.spans}
        for frame in episode.frames.values():
            read = ""
            for turn in frame.turns:
                read += turn.observation
                quoted = {text for text in gold if json.dumps(text)[1:-1] in turn.text}
                assert [text for text in quoted if text not in read] == []
                written += len(quoted)
    assert written


def played(
    sessions: Sessions, env: EnvSettings, problems: Sequence[Problem], **options: Any
) -> tuple[list[Trajectory], Demonstrator]:
    policy = Demonstrator(problems, env, **options)
    specs = [EpisodeSpec(problem.problem_id, seed=n) for n, problem in enumerate(problems)]
    return play(policy, sessions, specs, sessions=sessions.count), policy


@pytest.fixture(scope="module")
def papers() -> Params:
    """Settings of the world of whole papers, with few of them."""
    return resolve("papers", ["threads=1", FEW])


@pytest.fixture(scope="module")
def sessions(papers: Params) -> Iterator[Sessions]:
    """A server of that world."""
    with local_server(papers, data=None) as url, Sessions(url, 8) as opened:
        yield opened


def test_problems_of_whole_papers_are_shown(papers: Params, sessions: Sessions) -> None:
    store = ProblemStore.generate(papers.prepare.synthetic)
    problems = [store.get(name) for name in store.ids()]
    assert {fault(problem, papers.env.limits, papers.rewards) for problem in problems} == {None}
    problems = problems[::2]
    plain, _ = played(sessions, papers.env, problems)
    slipped, policy = played(sessions, papers.env, problems, slips=1.0)
    assert_shown(plain)
    assert_shown(slipped)
    assert_writes_what_was_shown(plain, problems)
    assert sum(episode.reward or 0.0 for episode in plain) / len(plain) > 0.9
    assert len(policy.mistakes) > len(problems) / 2
    told = []
    for episode, frame, turn in policy.mistakes:
        turns = slipped[episode].frames[frame].turns
        told.append("NameError" in turns[turn + 1].observation)
        assert told[-1] or "not verbatim: [" in turns[turn + 1].observation
    assert {True, False} == set(told)


@pytest.mark.parametrize(("style", "keyed"), [("full", Keyed(24, 8)), ("compact", Keyed(12, 1))])
def test_readers_name_ranked_passages_of_whole_papers(
    papers: Params, sessions: Sessions, style: str, keyed: Keyed
) -> None:
    # The server's own style: only the words of the turns differ.
    env = papers.env.model_copy(update={"prompt_style": style})
    store = ProblemStore.generate(papers.prepare.synthetic)
    every = [store.get(name) for level in ("easy", "medium") for name in store.ids(None, level)]
    args = (keyed, env, papers.rewards)
    problems = [problem for problem in every if keyed_plan.fault(problem, *args) is None]
    assert len(problems) > len(every) / 2
    episodes, _ = played(sessions, env, problems, keyed=keyed, rewards=papers.rewards)
    for problem, episode in zip(problems, episodes, strict=True):
        assert episode.answer == keyed_plan.answer(problem, *args)
        assert episode.components["format_compliance"] > 0
        assert len(episode.root.turns) == 1
        replies = [frame.turns[0].text for frame in episode.children(0)]
        assert len(replies) == len(list(keyed_plan.readers(problem, *args)))
        assert any(reply != "none" for reply in replies)
        if keyed.shown > 1:
            assert episode.components["process_quality"] > 0
    assert max(episode.reward or 0.0 for episode in episodes) > 0.8


@pytest.mark.parametrize("style", ["compact", "full"])
def test_readers_choose_the_sentences_of_fields(
    style: str, server_params: Params, server_url: str, server_problems: ProblemStore
) -> None:
    problems = [server_problems.get(name) for name in server_problems.ids("train")[::9]]
    env = server_params.env.model_copy(update={"prompt_style": style})
    with Sessions(server_url, 8) as sessions:
        episodes, _ = played(sessions, env, problems)
    assert_shown(episodes)
    for episode in episodes:
        assert {frame.kind for frame in episode.children(0)} == {"llm"}
        assert episode.reward is not None
        assert episode.reward > 0.85
        begins = episode.root.turns[0].text.startswith("```repl")
        assert begins == (style == "compact")


def hub_rows() -> list[dict[str, object]]:
    """Questions of the Hub's form: long quotes, quotes in words of their own, two lines."""
    rows: list[dict[str, object]] = []
    for topic in ("Kalvot", "Mirbex", "Dorvek", "Jedgeb", "Sorpik", "Lantuf"):
        long = f"{topic} grows in {topic}land, " + "where many kinds of other trees grow " * 9
        filler = "\n".join(f"Sentence {n} says nothing about it." for n in range(400))
        blank = "\n".join(f"Row {n} stays blank." for n in range(500, 800))
        texts = [
            f"On {topic}\n{filler}\n{long}as well.\n{filler}\n{blank}\nOthers tire,\nif it rains.",
            f"Notes\n{topic} was not seen.\n{filler}",
        ]
        papers = [
            {"paperId": f"{topic}-{n}", "title": f"On {topic}", "abstract": "short", "text": text}
            for n, text in enumerate(texts)
        ]
        selections = [{"text": f"{long}as well."}, {"text": "Others tire,\nif it rains."}]
        evidence = [{"paperId": f"{topic}-0", "selections": selections}]
        rows.append(
            {"question": f"Where does {topic} grow?", "papers": papers, "evidence": evidence}
        )
    return rows


def test_a_data_set_of_the_hub_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "hub.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in hub_rows()), encoding="utf-8")
    changes = [
        *("threads=1", "prepare.source=hub", f"prepare.hub.name={path}"),
        *("env.prompt_style=full", "env.search_window=80", "env.limits.max_turns=12"),
        "env.limits.observation_chars=6000",
    ]
    params = resolve(overrides=changes)
    problems = [problem for problem in read_source(params).problems if problem.split == "train"]
    write_parquet(tmp_path / "train.parquet", [to_row(problem) for problem in problems])
    with local_server(params, data=tmp_path) as url, Sessions(url, 4) as sessions:
        episodes, _ = played(sessions, params.env, problems)
    assert_shown(episodes)
    assert_writes_what_was_shown(episodes, problems)
    quotes = [turn.text for e in episodes for f in e.frames.values() for turn in f.turns]
    assert any("extract(context, " in text for text in quotes)
    assert any("start = 0" in text for text in quotes)  # read page by page
