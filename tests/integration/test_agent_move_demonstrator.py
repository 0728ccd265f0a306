"""Drawn moves are played on a real server, where cheats by shape earn little."""

from collections.abc import Iterator, Sequence

import pytest
from helpers.problem_files import write_problems
from helpers.quoted import quoted

from agent.demonstrations import move_demonstrator
from agent.demonstrations.move_demonstrator import MoveDemonstrator, lessons
from agent.demonstrations.moves import passage_of
from agent.policies.base import Policy
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import MovesSettings
from benchmarks.exploits import trials_cheats
from env.client import Sessions
from env.problems.schema import Problem
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server

FOUND = (
    "Headache was significantly less frequent with mint than with rice compared by day (P = 0.02)."
)
ALSO = "Nausea did not differ significantly between the mint and the rice group (P = 0.7)."
MEASURED = ("weight", "height", "pulse", "hunger", "thirst", "mood", "balance", "reach", "pace")
MOVES = MovesSettings(
    words=["significantly", "compared", "group"],
    word_counts=[0, 1],
    near=0.3,
    reads={"nobody": 1, "readers": 1, "children": 1},
    readers=[4],
    children=[2],
    lesson_passages=4,
)


def report(name: str, *results: str) -> str:
    filler = [f"Patients of the {name} trial number {n} came to their visit." for n in range(40)]
    measured = [
        f"The {what} of the {name} group was {n}, no better compared with mint (P = 0.{n})."
        for n, what in enumerate(MEASURED, 10)
    ]
    parts = ["BODY.RESULTS:", " ".join([*measured[:6], *results, *measured[6:]])]
    return "\n\n".join([f"TITLE: {name}", " ".join(filler), *parts])


def trial(number: int, outcome: str, result: str) -> Problem:
    texts = {
        "a.txt": report("mint", ALSO, FOUND, "Nobody left the mint group."),
        "b.txt": report("salt", "Sleep was longer with salt (P = 0.04).", "Nobody left."),
        "c.txt": report("zinc", "Zinc and iron did not differ in sleep (P = 0.9)."),
    }
    question = f"How does mint compare with rice in its effect on {outcome}?"
    made = quoted(question, texts, ("a.txt", result))
    return made.model_copy(update={"problem_id": f"t{number}", "tier": "singleton"})


PROBLEMS = [trial(0, "headache", FOUND), trial(1, "nausea", ALSO)]


@pytest.fixture(scope="module")
def params() -> Params:
    return resolve("trials", ["threads=1"])


@pytest.fixture(scope="module")
def sessions(params: Params, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    folder = tmp_path_factory.mktemp("trials")
    write_problems(folder / "train.parquet", PROBLEMS)
    with local_server(params, data=folder) as url, Sessions(url, 8) as opened:
        yield opened


def played(sessions: Sessions, policy: Policy, times: int) -> Sequence[Trajectory]:
    specs = [EpisodeSpec(one.problem_id, seed=n) for n in range(times) for one in PROBLEMS]
    return play(policy, sessions, specs, sessions=sessions.count)


@pytest.fixture(scope="module")
def episodes(params: Params, sessions: Sessions) -> Sequence[Trajectory]:
    return played(sessions, MoveDemonstrator(PROBLEMS, MOVES, params.rewards.min_cover, seed=0), 20)


def test_every_move_ends_with_an_answer(episodes: Sequence[Trajectory]) -> None:
    kinds = {frame.kind for one in episodes for frame in one.frames.values() if frame.frame}
    assert kinds == {"llm", "rlm"}
    for one in episodes:
        assert one.void is None
        assert {frame.stop_reason for frame in one.frames.values()} == {"final"}
        assert one.counters.errors == 0
    assert len({one.reward for one in episodes}) > 5  # so something is there to be found


def test_readers_of_moves_know_the_gold(episodes: Sequence[Trajectory]) -> None:
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for one in episodes:
        gold = FOUND if one.problem_id == "t0" else ALSO
        for frame in one.frames.values():
            if frame.kind == "llm":
                said[gold in frame.turns[0].observation].add(frame.turns[0].text)
    assert said == {True: {"yes"}, False: {"no"}}


def test_lessons_show_all_evidence_and_what_is_hard(params: Params) -> None:
    shown = list(lessons(PROBLEMS, MOVES, params.env, params.rewards))
    asked = PROBLEMS[0].question
    own = {passage_of(p, asked): reply for p, reply in shown if p.startswith(asked)}
    assert own[FOUND] == "yes"
    assert sum(reply == "yes" for reply in own.values()) == 1
    assert len(own) <= MOVES.lesson_passages
    assert all(passage in PROBLEMS[0].texts["a.txt"] for passage in own)
    assert shown == list(lessons(PROBLEMS, MOVES, params.env, params.rewards))
    assert not list(lessons(PROBLEMS, MovesSettings(), params.env, params.rewards))


def test_a_question_of_another_form_cannot_be_shown() -> None:
    other = PROBLEMS[0].model_copy(update={"question": "Does mint help?"})
    assert move_demonstrator.demonstration_fault(PROBLEMS[0], MOVES) is None
    assert "form" in str(move_demonstrator.demonstration_fault(other, MOVES))


@pytest.mark.parametrize("name", list(trials_cheats.CHEATS))
def test_a_cheat_by_shape_earns_less_than_reading(params, sessions, name):
    expert = played(sessions, trials_cheats.expert(PROBLEMS, params), 1)
    cheat = played(sessions, trials_cheats.CHEATS[name](), 1)
    for honest, cheated in zip(expert, cheat, strict=True):
        assert honest.reward > 0.8
        assert cheated.reward <= max(0.25, cheated.metrics.f1)
