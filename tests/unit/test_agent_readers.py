"""Accuracy of readers, from the texts of their frames."""

from agent.evaluation.readers import reader_metrics
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from env.problems.lexicon import lexicon, untaught

FIELD = lexicon(512)
TAUGHT = sorted(set(FIELD) - untaught(512))[:3]
HIDDEN = sorted(untaught(512))[:2]


def episode(shown: list[str], said: str, kind: str = "llm") -> Trajectory:
    text = "Answer.\n\n" + "\n".join(f"On {name}, Kesrog gets 42." for name in shown)
    root = FrameRecord(0, None, 0, "rlm", [TurnRecord(text, f"r = '{said}'", "stop")])
    reader = FrameRecord(1, 0, 1, kind, [TurnRecord(text, said, "stop")])
    return Trajectory("p", "easy", frames={0: root, 1: reader})


def other(name: str) -> str:
    return "code" if FIELD[name] != "code" else "text"


def test_right_wrong_and_untold_fields_are_told_apart_by_kind_of_name():
    one, two, three = TAUGHT
    known, guessed = HIDDEN
    played = [
        episode([one, two, known], f"{one} {FIELD[one]} {two} {other(two)} {known} unknown "),
        episode([three, guessed], f"{three} {guessed} {FIELD[guessed]}"),
    ]
    assert reader_metrics(played, 512) == {
        "readers/right": 2 / 5,
        "readers/wrong": 1 / 5,
        "readers/untaught_right": 1 / 2,
        "readers/untaught_wrong": 0.0,
    }


def test_a_child_with_a_repl_is_no_reader_and_other_worlds_have_no_figures():
    assert reader_metrics([episode(TAUGHT, "", kind="rlm")], 512) == {}
    assert reader_metrics([episode([], "nothing")], 512) == {}
