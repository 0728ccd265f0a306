"""Passages that count as read because a reader replied their numbers."""

from typing import Any

import pytest
from helpers.work import calls

from rewards.found import papers_found
from rewards.numbered import numbered_passages

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
    "reply", ["4", "4.", "The ones that fit are 4 and 9.", "[4]", "**4**", 4, [4], ["4"], "4, 4; 9"]
)
def test_a_reader_that_replies_the_number_of_the_evidence_has_read_its_paper(reply: Any) -> None:
    assert found((FOUR, reply))


NO_NUMBER = [
    *("none", "", "3", "1 2 3", "0", "-4", "4.5", "44", "04444", "\u0664", "\u2074", "0x4"),
    *(None, [], 4.0, True, {"4": 4}, [[4]], "9" * 10_000, 10**5000, [10**5000, -4]),
    "I am not sure, but in my opinion it could be the 3rd or 4",
]


@pytest.mark.parametrize("reply", NO_NUMBER, ids=range(len(NO_NUMBER)))
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
    assert not found((FOUR.replace("Numbers:", "Yes or no?"), "4"))


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
