"""Episodes that are dealt to ranks, with ranks that are only said to be there."""

import pytest

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.training import ranks
from env.errors import EpisodeError

SPECS = [EpisodeSpec(name, seed=seed) for name in "abc" for seed in range(2)]
PARTS = {0: [0, 1, 4, 5], 1: [2, 3]}
"""Places of the episodes that each of two ranks plays."""


def trees(places):
    return [Trajectory(SPECS[n].problem_id, str(SPECS[n].seed)) for n in places]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("other_fails", [False, True])
def test_whole_groups_are_dealt_and_a_loss_of_one_rank_is_of_all(monkeypatch, rank, other_fails):
    def gather(own):
        places = PARTS[1 - rank]
        parts = [own, (places, trees(places), "gone" if other_fails else None)]
        return parts if rank == 0 else parts[::-1]

    def play(specs):
        assert specs == [SPECS[n] for n in PARTS[rank]]
        return trees(PARTS[rank])

    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "index", lambda: rank)
    monkeypatch.setattr(ranks, "gather", gather)
    if other_fails:
        with pytest.raises(EpisodeError, match="gone"):
            ranks.play_dealt(play, SPECS)
    else:
        assert ranks.play_dealt(play, SPECS) == trees(range(len(SPECS)))
