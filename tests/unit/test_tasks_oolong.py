"""Problems of the long-context benchmark, their scores, and answers without a model."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest

from tasks.oolong import baselines, expert
from tasks.oolong.contexts import CHARS_PER_TOKEN, fragments, topic_of, topics, world
from tasks.oolong.questions import KINDS, LongProblem, problems, read_question
from tasks.oolong.scoring import score
from tasks.oolong.solve import solve


@pytest.fixture(scope="module")
def asked() -> list[LongProblem]:
    return list(problems(0, 2048, 80, labels=False))


def rows(problem: LongProblem) -> list[tuple[str, str, str]]:
    return [(line.month, line.user, line.topic) for line in problem.lines]


def test_a_seed_gives_the_same_problems_and_more_of_them_change_none() -> None:
    few, many = list(problems(3, 1024, 12, False)), list(problems(3, 1024, 24, False))
    assert few == many[:12]
    others = {one.problem_id for one in problems(4, 1024, 12, False)}
    assert not {one.problem_id for one in few} & others


def test_eight_questions_share_a_context_and_contexts_differ(asked: list[LongProblem]) -> None:
    assert Counter(Counter(one.context_id for one in asked).values()) == {len(KINDS): 10}
    assert len({one.context for one in asked}) == 10
    assert {one.kind for one in asked} == {kind.name for kind in KINDS}


def test_a_context_fills_its_length_but_for_one_message() -> None:
    for length in (1024, 8192):
        for labels in (False, True):
            (one,) = problems(0, length, 1, labels)
            share = len(one.context) / (length * CHARS_PER_TOKEN)
            assert (0.85 if not labels else 0.95) < share <= 1


def test_no_answer_is_a_tie(asked: list[LongProblem]) -> None:
    for one in [*asked, *problems(1, 1024, 200, False)]:
        counts = Counter(topic for _, _, topic in rows(one))
        if one.kind in ("most", "least"):
            order = counts.most_common()
            best, next_ = order[:2] if one.kind == "most" else order[:-3:-1]
            assert (one.gold, len(order)) == (best[0], len(topics()))
            assert best[1] != next_[1]
        elif one.kind == "compare":
            first, second = counts[one.parts["a"]], counts[one.parts["b"]]
            assert one.gold == ("more" if first > second else "less")
            assert first != second
        else:
            assert solve(one.kind, rows(one), one.parts) == [one.gold]


def test_counts_are_those_of_the_lines(asked: list[LongProblem]) -> None:
    for one in asked:
        if one.kind == "user count":
            user, topic = one.parts["user"], one.parts["a"]
            found = [
                line
                for line in one.context.split("\n")
                if line.split(" | ")[1] == user and topic_of(line) == topic
            ]
            assert one.gold == str(len(found))
        if one.kind == "which month":
            months = Counter(
                line[5:7] for line in one.context.split("\n") if topic_of(line) == one.parts["a"]
            )
            best = months.most_common(1)[0][0]
            assert one.gold == baselines.BY_NAME[one.kind].choices()[int(best) - 1]


def test_a_tie_is_reported_as_several_answers() -> None:
    tied = [("May", "elm", "sport"), ("June", "ash", "sport"), ("May", "ash", "music")]
    assert solve("which user", tied, {"a": "sport"}) == ["ash", "elm"]
    assert solve("compare", tied[1:], {"a": "sport", "b": "music"}) == ["more", "less"]


def test_no_message_names_its_topic_unless_labels_are_printed() -> None:
    (hidden,) = problems(0, 16_384, 1, labels=False)
    (printed,) = problems(0, 16_384, 1, labels=True)
    names = re.compile(rf"\b({'|'.join(topics())})\b", re.I)
    assert names.search(hidden.context) is None
    assert (hidden.lines, hidden.gold) == (printed.lines, printed.gold)
    for line, message in zip(printed.context.split("\n"), printed.lines, strict=True):
        assert line.split(" | ")[2] == message.topic
    for about in world()["topics"].values():
        assert not names.search(" ".join(about["messages"]))


def test_each_message_has_one_topic_and_all_are_read(asked: list[LongProblem]) -> None:
    assert len(fragments()) == sum(len(about["messages"]) for about in world()["topics"].values())
    texts = [re.sub(r"\{\w+\}", "x", m) for t in world()["topics"].values() for m in t["messages"]]
    for fragment in fragments():
        assert sum(fragment.replace("{n}", "x") in text for text in texts) == 1, fragment
    assert all(topic_of(line.text) == line.topic for one in asked for line in one.lines)


def test_slots_are_all_filled(asked: list[LongProblem]) -> None:
    assert not any("{" in one.context or "{" in one.question for one in asked)


def test_a_question_says_all_that_an_answer_needs(asked: list[LongProblem]) -> None:
    for one in asked:
        assert read_question(one.question) == (one.kind, one.parts)
        assert all(topic in one.question for topic in topics())


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "wanted"),
    [
        ("count", "12", "12", 1.0),
        ("count", "12", 12.0, 1.0),
        ("count", "12", [14], 0.75**2),
        ("count", "12", "The answer is 13.", 0.75),
        ("count", "1200", "Answer: 1,200 messages", 1.0),
        ("count", "12", "12 or 13", 0.0),
        ("count", "12", True, 0.0),
        ("count", "12", "9" * 400, 0.0),
        ("count", "0", "-1", 0.0),
        ("most", "music", "**Music**", 1.0),
        ("most", "music", "music or sport", 0.0),
        ("most", "music", ["music", "sport"], 0.0),
        ("most", "music", {"topic": "music"}, 0.0),
        ("most", "music", None, 0.0),
        ("most", "music", "musical", 0.0),
        ("compare", "less", "less frequent", 1.0),
        ("which month", "May", "may", 1.0),
        ("which month", "May", "2031-05", 0.0),
        ("which user", "elm", "elm is the answer", 1.0),
    ],
)
def test_scores(kind: str, gold: str, answer: object, wanted: float) -> None:
    assert score(kind, gold, answer) == pytest.approx(wanted)


def mean(name: str, of: list[LongProblem]) -> float:
    answers = baselines.BASELINES[name](of)
    scores = [score(one.kind, one.gold, text) for one, text in zip(of, answers, strict=True)]
    return sum(scores) / len(scores)


def test_answers_without_reading_score_low_and_code_reads_printed_labels() -> None:
    hidden = list(problems(0, 8192, 200, labels=False))
    assert all(mean(name, hidden) < 0.4 for name in baselines.BASELINES)
    assert mean("keywords", list(problems(0, 8192, 40, labels=True))) == 1


def test_every_answer_of_a_list_is_asked_for() -> None:
    many = list(problems(0, 1024, 400, labels=False))
    for kind in KINDS:
        if kind.choices:
            golds = Counter(one.gold for one in many if one.kind == kind.name)
            assert golds.keys() == set(kind.choices()), kind.name
            assert golds.most_common(1)[0][1] <= 0.4 * 50 or kind.name == "compare"


def test_a_reader_errs_as_often_as_it_is_set_to(asked: list[LongProblem]) -> None:
    lines = [line for one in asked[::8] for line in one.lines]
    right = sum(expert.read(line.text, 0.8) == line.topic for line in lines) / len(lines)
    assert right == pytest.approx(0.8, abs=0.06)
    assert all(expert.read(line.text, 1.0) == line.topic for line in lines)


def test_a_plain_answer_is_counted_from_what_the_prompt_shows(asked: list[LongProblem]) -> None:
    for one in islice(asked, 16):
        assert expert.answer_plainly(f"{one.context}\n\n{one.question}", 1.0) == one.gold
