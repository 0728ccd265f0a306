"""Rows for supervised training: only the policy's own good turns have labels."""

from agent.demonstrations.sft_rows import IGNORED, demonstration_rows, good_episodes, repetitive
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from env.models import StopReason


def turn(prompt: list[int], sampled: list[int]) -> TurnRecord:
    return TurnRecord("", "", "stop", prompt_ids=prompt, sampled_ids=sampled)


def episode(*said: TurnRecord, reward: float | None = 1.0, end: StopReason = "final") -> Trajectory:
    frame = FrameRecord(0, None, 0, "rlm", list(said), end)
    return Trajectory("p", "easy", frames={0: frame}, reward=reward)


TWO = (turn([1, 2], [3, 4]), turn([5], [6]))


def test_a_frame_is_one_row_with_labels_on_its_own_tokens() -> None:
    [row] = demonstration_rows({0: episode(*TWO)})
    assert row["input_ids"] == [1, 2, 3, 4, 5, 6]
    assert row["labels"] == [IGNORED, IGNORED, 3, 4, IGNORED, 6]


def test_a_mistake_has_no_labels_and_its_repair_has() -> None:
    [row] = demonstration_rows({7: episode(*TWO)}, {(7, 0, 0), (6, 0, 1), (7, 1, 1)})
    assert row["labels"] == [IGNORED] * 5 + [6]
    assert demonstration_rows({7: episode(*TWO)}, {(7, 0, 0), (7, 0, 1)}) == []


def test_a_frame_without_an_answer_is_no_example() -> None:
    assert demonstration_rows({0: episode(*TWO, end="max_turns")}) == []


def test_good_episodes_have_enough_reward() -> None:
    played = [episode(reward=0.9), episode(reward=0.5), episode(reward=None), episode(reward=0.7)]
    assert list(good_episodes(played, 0.7)) == [0, 3]


def asking(*replies: str) -> Trajectory:
    tree = episode(*TWO)
    for number, reply in enumerate(replies, 1):
        said = TurnRecord("", reply, "stop", prompt_ids=[1], sampled_ids=[2])
        tree.frames[number] = FrameRecord(number, 0, 1, "llm", [said], "final")
    return tree


def test_two_idle_readers_are_taught_for_each_that_finds_something() -> None:
    played = {3: asking("no", "yes", *["no"] * 9), 4: asking("no")}
    left_out = repetitive(played, ["no"], seed=0, most=2)
    assert (3, 2) not in left_out
    assert len([frame for number, frame in left_out if number == 3]) == 10 - 2
    assert (4, 1) in left_out
    rows = demonstration_rows({3: asking("no", "yes", "no", "no")}, left_out={(3, 1), (3, 4)})
    assert len(rows) == 1 + 2


def test_two_hundred_roots_of_the_keyed_plan_are_enough() -> None:
    played = {number: asking("1") for number in range(202)}
    left_out = repetitive(played, ["none"], seed=0, most=200)
    assert {frame for _, frame in left_out} == {0}
    assert len(left_out) == 2
    # Problems are sorted by level, and every level has its own roots.
    assert left_out != {(200, 0), (201, 0)}
