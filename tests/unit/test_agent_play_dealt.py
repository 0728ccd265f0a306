"""Episodes that are dealt to ranks, with ranks that are only said to be there."""

from __future__ import annotations

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.training import ranks
from env.errors import EpisodeError

SPECS = [EpisodeSpec(name, seed=seed) for name in "abc" for seed in range(2)]


def deal(monkeypatch, play) -> list[list[Trajectory] | str]:
    """Episodes that each of two ranks gets, or the message of its error."""
    sent: list = []
    outcome: list[list[Trajectory] | str] = []
    monkeypatch.setattr(ranks, "count", lambda: 2)
    for last in (False, True):  # first each rank sends its part, then each gets all parts
        for rank in (0, 1):
            monkeypatch.setattr(ranks, "index", lambda rank=rank: rank)
            monkeypatch.setattr(
                ranks, "gather", lambda part, last=last: sent if last else sent.append(part) or []
            )
            try:
                found: list[Trajectory] | str = ranks.play_dealt(
                    lambda specs, rank=rank: play(rank, specs), SPECS
                )
            except EpisodeError as error:
                found = str(error)
            except KeyError:  # no other part is there yet
                continue
            outcome.append(found)
    return outcome


def test_each_rank_plays_whole_groups_and_all_get_all_episodes_in_order(monkeypatch):
    played: dict[int, list[str]] = {}

    def play(rank, specs):
        played[rank] = [spec.problem_id for spec in specs]
        return [Trajectory(spec.problem_id, str(spec.seed)) for spec in specs]

    outcome = deal(monkeypatch, play)
    assert played == {0: ["a", "a", "c", "c"], 1: ["b", "b"]}
    wanted = [(spec.problem_id, str(spec.seed)) for spec in SPECS]
    assert len(outcome) == 2
    for found in outcome:
        assert [(tree.problem_id, tree.difficulty) for tree in found] == wanted


def test_an_environment_lost_to_one_rank_is_lost_to_all(monkeypatch):
    def play(rank, specs):
        if rank == 1:
            raise EpisodeError("gone")
        return [Trajectory(spec.problem_id, "") for spec in specs]

    assert deal(monkeypatch, play) == ["gone", "gone"]
