"""Passages that count as read because a reader replied their numbers; what replies are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.work import calls

from rewards.children import child_scores
from rewards.found import papers_found
from rewards.numbered import numbered_passages
from rewards.primary import primary_objective
from rewards.settings import RewardSettings
from rewards.spans import Evidence, Located, locate, span_f1

GOLD = "Kalvot scores 42 on Mirbex."
OTHERS = ["A study of Filtod.", "Pezmas gets a prize in 1999.", "Sevzex is not new at all."]
PAPERS = {"p1": "\n".join([*OTHERS, GOLD]), "p2": "A study of Moklep.\nLufkig is not new, either."}
START = PAPERS["p1"].index(GOLD)
EVIDENCE = [[("p1", START, START + len(GOLD))]]


def numbered(*texts: str, start: int = 1, form: str = "{} {}") -> str:
    lines = (form.format(number, text) for number, text in enumerate(texts, start))
    return "\n".join(["How accurate is Kalvot? Numbers:", *lines])


def found(*readers: tuple[str, Any]) -> bool:
    children = [({"context": prompt}, answer) for prompt, answer in readers]
    return papers_found(PAPERS, EVIDENCE, children, 0.95) == {"p1"}


FOUR = numbered(*OTHERS, GOLD)


@pytest.mark.parametrize(
    "reply",
    ["4", "4.", "The ones that fit are 4 and 9.", "[4]", "**4**", 4, [4], ["4"], "4, 4; 9"],
)
def test_a_reader_that_replies_the_number_of_the_evidence_has_read_its_paper(reply: Any) -> None:
    assert found((FOUR, reply))


@pytest.mark.parametrize(
    "reply",
    [
        *("none", "", "3", "1 2 3", "0", "-4", "4.5", "44", "04444", "\u0664", "\u2074", "0x4"),
        *(None, [], 4.0, True, {"4": 4}, [[4]], "9" * 10_000, 10**5000, [10**5000, -4]),
        "I am not sure, but in my opinion it could be the 3rd or 4",
    ],
    ids=lambda reply: str(reply)[:20] if not isinstance(reply, (int, list)) else "huge",
)
def test_other_replies_name_nothing(reply: Any) -> None:
    assert not found((FOUR, reply))


@pytest.mark.parametrize("form", ["{} {}", "{}. {}", "{}: {}", "[{}] {}", "({}) {}", "{})\t{}"])
def test_numbers_may_be_written_in_usual_ways(form: str) -> None:
    assert found((numbered(*OTHERS, GOLD, form=form), "4"))
    assert found((numbered(*OTHERS, GOLD, start=17, form=form), "20"))


def test_who_names_more_than_half_has_chosen_nothing() -> None:
    assert not found((FOUR, "1 2 3 4"))
    assert not found((numbered(GOLD), "1"))
    assert not found((numbered(GOLD, GOLD), "1"))
    assert found((numbered(GOLD, OTHERS[2], OTHERS[0]), "1"))
    assert not found((numbered(GOLD, OTHERS[0]), "1"))
    # What others return counts, too, and parts of what is named are nothing to choose from.
    assert not found((numbered(GOLD, GOLD[1:], GOLD[2:], GOLD[:-1]), "1"))
    assert not found((numbered(GOLD, *(GOLD[at : at + 17] for at in range(9))), "1"))
    quoted = ({"context": PAPERS["p1"] + "-" * 99}, OTHERS)
    readers = [({"context": numbered(GOLD, OTHERS[2])}, "1")]
    assert papers_found(PAPERS, EVIDENCE, readers, 0.95) == {"p1"}
    assert not papers_found(PAPERS, EVIDENCE, [*readers, quoted], 0.95)


def test_readers_of_one_passage_are_judged_together() -> None:
    no = [(numbered(text), "none") for text in OTHERS]
    assert found((numbered(GOLD), "1"), *no)
    assert not found((numbered(GOLD), "1"), *((prompt, "1") for prompt, _ in no))
    assert not found((numbered(GOLD), "1"), (no[0][0], "A novel of many words. " * 9))


def asked(text: str) -> str:
    return f"How accurate is Kalvot? Yes or no?\n{text}"


AFTER = "{}\nHow accurate is Kalvot? Yes or no?"


@pytest.mark.parametrize("form", [asked("{}"), AFTER, f"How accurate is Kalvot?\n{AFTER}"])
@pytest.mark.parametrize("reply", ["yes", "Yes.", "**Yes**", "yes, it is", "Yes!"])
def test_a_reader_that_says_yes_to_the_evidence_has_read_its_paper(reply: str, form: str) -> None:
    no = [(form.format(text), "no") for text in OTHERS]
    assert found((form.format(GOLD), reply), *no)
    assert found((f"{asked(GOLD)}\nKalvot?", reply), *no)
    assert found((GOLD, reply), *no)


@pytest.mark.parametrize("reply", ["no", "none", "yesterday", "", None, True, ["yes"], "yes " * 99])
def test_a_reader_that_does_not_say_yes_names_nothing(reply: Any) -> None:
    assert not found((asked(GOLD), reply), *((asked(text), "no") for text in OTHERS))


def test_who_says_yes_to_more_than_half_has_chosen_nothing() -> None:
    yes = [(asked(text), "yes") for text in OTHERS]
    assert not found((asked(GOLD), "yes"))
    assert not found((asked(GOLD), "yes"), *yes)
    assert not found((asked(GOLD), "yes"), (asked("A junk sentence of words. " * 9), "no"))
    assert not found((asked(GOLD), "yes"), (asked(GOLD), "no"), (asked(GOLD), "no"))
    assert not found((FOUR, "yes"))


def test_yes_without_the_passage_names_nothing() -> None:
    no = [(asked(text), "no") for text in OTHERS]
    assert not found((asked("passage 4"), "yes"), *no)
    assert not found((asked(GOLD[:13]), "yes"), (asked(GOLD[13:]), "yes"), *no)


def test_repeats_and_what_is_in_no_paper_make_nothing_look_chosen() -> None:
    assert not found((numbered(*[GOLD] * 4), "1"))
    assert not found((numbered(GOLD), "1"), (numbered(GOLD), "none"))
    assert not found((numbered(GOLD, "-" * 500, "A junk sentence of many words." * 9), "1"))


def test_a_passage_in_parts_or_elsewhere_is_none() -> None:
    assert not found((numbered(GOLD[:13], GOLD[13:], *OTHERS), "1 2"))
    assert not found((f"{GOLD}\n{numbered('', '', *OTHERS)}", "1 2"))
    assert not found((f"{numbered(*OTHERS)} 4 {GOLD}", "4"))


def test_passages_may_have_lines_that_start_with_numbers_and_a_question_may_follow() -> None:
    text = "3 papers ask.\n1 one\n12 lines of\n2 two\n3 three\n7 of them\n4 four\n\nWhich?"
    assert numbered_passages(text) == {
        1: "one\n12 lines of",
        2: "two",
        3: "three\n7 of them",
        4: "four\n\nWhich?",
    }
    assert numbered_passages("3 three\n2 two\n1 one") == {1: "one"}
    assert numbered_passages("no numbers") == {}
    assert found((f"{numbered(GOLD, OTHERS[1])}\nWhich of them?", "1"), (FOUR, "none"))


def test_a_child_with_several_texts_is_no_reader() -> None:
    given = {"a": numbered(*OTHERS, GOLD), "b": "Nothing."}
    assert papers_found(PAPERS, EVIDENCE, [(given, "4")], 0.95) == frozenset()


def test_the_work_grows_with_the_characters() -> None:
    def work(lines: int) -> int:
        text = "\n".join(f"{n % 9999} x" for n in range(lines))
        return calls(lambda: found((text, " ".join(map(str, range(lines))))))

    assert work(8000) < 3 * work(4000)


def score(prompt: str, reply: Any, *answer: str, evidence: Evidence = EVIDENCE) -> float | None:
    """Score of a reader in an episode whose root answered with these quotes."""
    return scored({3: (prompt, reply)}, PAPERS, list(answer), evidence).get(3)


def scored(
    readers: dict[int, tuple[str, Any]],
    papers: dict[str, str],
    answer: Any,
    evidence: Evidence = EVIDENCE,
    agents: dict[int, Any] | None = None,
) -> dict[int, float]:
    located = locate(answer, papers, RewardSettings())
    return child_scores(readers, agents or {}, papers, located, evidence, RewardSettings())


def value(located: Located, evidence: Evidence = EVIDENCE) -> float:
    """Mean of the primary objective and of plain F1."""
    primary = primary_objective(located, evidence, RewardSettings())
    return (primary + span_f1(located.retrieved, evidence).f1) / 2


def worth(*answer: str) -> float:
    return value(locate(list(answer), PAPERS, RewardSettings()))


ONE, NO_GOLD = f"How accurate is Kalvot? Yes or no?\n{GOLD}", numbered(*OTHERS)
NOT_GOLD, TWO = ONE.replace(GOLD, OTHERS[0]), numbered(*OTHERS[1:])
WRONG = worth(GOLD) - worth(GOLD, OTHERS[0])
"""What the wrong passage costs an answer that is otherwise right."""
EVERY = (*OTHERS, GOLD)
ALL = sum(worth(*EVERY) - worth(*(text for text in EVERY if text != other)) for other in EVERY)


@pytest.mark.parametrize(
    ("prompt", "reply", "answer", "expected"),
    [
        (ONE, "yes", [GOLD], 1.0),
        (ONE, "no", [], -1.0),
        (ONE, "yes", [], 1.0),  # a root that ignores its reader
        (ONE, "yes", [GOLD, OTHERS[0]], worth(GOLD, OTHERS[0])),
        (NOT_GOLD, "no", [GOLD], WRONG),
        (NOT_GOLD, "yes", [GOLD, OTHERS[0]], -WRONG),
        (NOT_GOLD, "no", [], 0.0),  # where nothing is right, a wrong quote costs nothing
        (FOUR, "4", [GOLD], 1.0),  # a sum beyond 1
        (FOUR, "none", [], -1.0),
        (FOUR, "1 2 3 4", [*OTHERS, GOLD], ALL),
        (FOUR, "yes, 4", [GOLD], 1.0),
        (FOUR, "yes", [], -1.0),  # asked for numbers
        (NO_GOLD, "none", [GOLD], 1.0),  # a sum beyond 1
        (TWO, "none", [GOLD], sum(1 - worth(GOLD, other) for other in OTHERS[1:])),
        (numbered(*[OTHERS[0]] * 250), "none", [GOLD], WRONG),  # the same one counts once
        (ONE, "maybe yes", [GOLD], -1.0),
        (NOT_GOLD, "a novel of many words " * 99, [GOLD], -WRONG),
        (FOUR, "a novel of many words " * 99, [], -1.0),
        ("Is it? Yes or no?\n42", "yes", [GOLD], 0.0),  # too short to quote
        (f"{ONE}\nYes or no?", "yes", [GOLD], 1.0),
        (f"{ONE}\n3 more runs follow.", "no", [], -1.0),
        (f"{FOUR}\nWhich of them?", "4", [], 1.0),
        (f"{GOLD}\nHow accurate? Yes or no?", "yes", [GOLD], 1.0),
        (f"{GOLD}\nHow accurate? Yes or no?", "no", [], -1.0),
        (f"{OTHERS[0]}\nHow accurate? Yes or no?", "perhaps", [GOLD], -WRONG),
        (f"Is it?\n{GOLD}\nIs it? Yes or no?", "no", [], -1.0),
        (f"{GOLD}\n{OTHERS[0]}\n{GOLD} Yes or no?", "no", [GOLD], WRONG),  # gold as the question
    ],
)
def test_a_reply_is_worth_what_the_answer_would_lose_by_the_opposite(
    prompt: str, reply: Any, answer: list[str], expected: float
) -> None:
    assert score(prompt, reply, *answer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        # Not word for word in a paper: "no" might be wrong, or right about nothing.
        (ONE.replace("42", "43"), "no"),
        (f"How accurate\nis it?\n{GOLD}", "no"),
        (f"Is it?\n'{GOLD}'", "no"),
        (numbered("Nothing at all.", GOLD), "none"),
        ("Is it?\n", "no"),
        ("Who are you?", "A reader that was asked nothing"),
        (f"Sum it up.\n0 {GOLD}", "a novel of many words " * 99),
    ],
)
def test_who_was_shown_nothing_to_choose_from_has_no_score(prompt: str, reply: str) -> None:
    assert score(prompt, reply, GOLD) is None


@pytest.mark.parametrize(
    ("reply", "answer"),
    [("1 2 3 4", [*OTHERS, GOLD]), ("none", []), ("novel " * 99, []), ("1 2 3", OTHERS)],
    ids=["numbers of all", "silence", "evasion", "numbers of what is wrong"],
)
def test_cheats_of_readers_gain_less_than_an_honest_reply(reply: str, answer: list[str]) -> None:
    assert (score(FOUR, reply, *answer) or 1.0) < (score(FOUR, "4", GOLD) or 0.0) - 0.5


def test_cheats_of_readers_of_a_long_list_gain_less_than_an_honest_reply() -> None:
    facts = [f"Fact {n} of Kalvot is {n}{n}{n}." for n in range(9)]
    papers, at = {"p": "\n".join(facts)}, [0, len("\n".join(facts[:4])) + 1]
    gold: Evidence = [[("p", start, start + len(facts[0]))] for start in at]
    replies = {"4": [0, 4], "none": [0], "novel " * 99: [0], "4 5": [0, 4, 5], "5": [0, 5]}
    honest, *others = (
        scored({3: (numbered(*facts[1:]), reply)}, papers, [facts[n] for n in kept], gold)[3]
        for reply, kept in replies.items()
    )
    assert max(others) < honest - 0.1


@pytest.mark.parametrize(("reply", "sign"), [("yes", 1), ("no", -1), ("1", 1), ("none", -1)])
def test_a_single_numbered_passage_may_be_answered_by_yes(reply: str, sign: int) -> None:
    assert score(f"How? Passage 1: yes or no?\n1. {GOLD}", reply, GOLD) == sign


def test_a_wrong_passage_for_whose_sake_the_root_dropped_the_evidence_costs_its_reader() -> None:
    asked = {n: (f"{text}\nYes or no?", "yes") for n, text in enumerate((OTHERS[0], GOLD))}
    assert scored(asked, PAPERS, [OTHERS[0]])[0] == pytest.approx(-WRONG)
    assert scored(asked, PAPERS, [OTHERS[0]]) == scored(asked, PAPERS, [OTHERS[0], GOLD])


def test_a_second_place_of_a_passage_makes_it_no_worse() -> None:
    twice = {"p0": f"{GOLD} {GOLD}", **PAPERS}
    quote = {"paper_id": "p1", "text": GOLD}
    assert scored({3: (ONE, "yes")}, twice, [quote]) == {3: 1.0}
    assert scored({3: (ONE, "yes")}, twice, []) == {3: 1.0}
    # A bare quote is at all places: F1 is 0.5, and the primary objective 0.
    assert scored({3: (ONE, "yes")}, twice, [GOLD])[3] == pytest.approx(0.25)


def test_a_passage_whose_lines_begin_with_numbers_is_one() -> None:
    steps = "To reset it, open Settings.\n1. Choose Account.\n2. Choose Reset, then confirm."
    papers, evidence = {"p": f"{steps}\nOther lines follow."}, [[("p", 0, 27)]]
    prompt = f"How do I reset it? Passage 1: yes or no?\n{steps}"
    for reply, answer, sign in [("yes", [steps], 1), ("no", [], -1), ("novel " * 99, [], -1)]:
        half_f1 = scored({3: (prompt, reply)}, papers, answer, evidence)[3]
        assert half_f1 == pytest.approx(sign * 27 / (27 + len(steps)))


def test_an_item_that_sticks_out_of_a_passage_comes_from_elsewhere() -> None:
    text = "".join(chr(97 + n % 26) + chr(97 + n // 26) for n in range(500))
    papers, evidence = {"p": text, "q": "Nothing is here."}, [[("p", 100, 300)]]
    answer = [text[100:300], "Nothing is here."]
    located = locate(answer, papers, RewardSettings())
    now = value(located, evidence)
    for start, end in ((250, 450), (299, 499)):
        more = {**located.pieces, "p": {(100, 300), (start, end)}}
        prompt = f"Is it? Yes or no?\n{text[start:end]}"
        lost = scored({3: (prompt, "no")}, papers, answer, evidence)[3]
        assert lost == pytest.approx(now - value(replace(located, pieces=more), evidence))
    inside = f"Is it? Yes or no?\n{text[50:900]}"  # of which the root quotes a part
    assert scored({3: (inside, "yes")}, papers, answer, evidence)[3] == pytest.approx(now)


@pytest.mark.parametrize("alternatives", [1, 200])
def test_scores_of_large_answers_take_no_longer_than_their_search(alternatives: int) -> None:
    lines = [f"Line {n} says {n * 7919 % 10007} of it." for n in range(3000)]
    papers = {"p": "\n".join(lines)}
    at = [papers["p"].index(line) for line in lines[:alternatives]]
    evidence = [[("p", a, a + 10) for a in at]]
    readers = {n: (numbered(*lines[9 * n : 9 * n + 9]), "1 2") for n in range(48)}
    answer = [{"paper_id": "p", "text": line} for line in lines[::2]]
    assert calls(lambda: scored(readers, papers, answer, evidence)) < 3_000_000


def test_readers_of_papers_that_are_too_long_to_search_have_no_score() -> None:
    papers = {"p1": PAPERS["p1"] + "ab" * 30_000_000}
    readers = {3: (FOUR, "4"), 4: (FOUR, "none")}
    assert scored(readers, papers, []) == {}


@pytest.mark.parametrize(
    ("returned", "answer", "expected"),
    [
        ([GOLD], [GOLD], 1.0),
        ([GOLD], [], 1.0),  # a root that ignores it
        ([], [GOLD], 0.0),  # silence
        (None, [GOLD], 0.0),
        (OTHERS[:1], [GOLD, OTHERS[0]], -WRONG),
        (["a sentence that no paper has"], [GOLD], 0.0),
        ([PAPERS["p1"]], [GOLD, *OTHERS], worth(PAPERS["p1"])),  # everything
        ([PAPERS["p1"]], [GOLD], worth(PAPERS["p1"])),  # and the root chose
    ],
)
def test_an_agent_is_worth_what_it_returned(returned: Any, answer: Any, expected: float) -> None:
    assert scored({}, PAPERS, answer, agents={4: returned}) == {4: pytest.approx(expected)}


def test_agents_share_the_limit_of_their_searches() -> None:
    papers = {"p1": PAPERS["p1"].ljust(200_000)}
    quotes = [GOLD, *(f"a made up sentence {n}" for n in range(79))]
    for agents, worth in ((6, 1.0), (7, 0.0)):  # 80 quotes x 200,000 characters each
        returned = dict.fromkeys(range(agents), quotes)
        assert scored({}, papers, [GOLD], agents=returned) == dict.fromkeys(returned, worth)
