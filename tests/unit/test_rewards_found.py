"""Papers that count as read because a child returned their evidence."""

from typing import Any

import pytest
from helpers.work import calls

from rewards.found import papers_found

GOLD = "Kalvot scores 42 on Mirbex."
OTHER = "On Mirbex, Kalvot gets 58."
PAPERS = {
    "p1": f"A study of Filtod.\n{GOLD}\nPezmas gets a prize in 1999.\nSevzex is not new.",
    "p2": f"A study of Moklep.\nKalvot reaches 71 on Gexzuk.\n{OTHER}\nLufkig is not new.",
    "p3": "A study of Vaplep.\nKotkat scores 29 on Fodjum.",
}


def place(paper_id: str, text: str) -> tuple[str, int, int]:
    start = PAPERS[paper_id].index(text)
    return paper_id, start, start + len(text)


EVIDENCE = [[place("p1", GOLD)], [place("p2", OTHER)]]


def found(answer: Any, *given: str, min_cover: float = 0.95) -> frozenset[str]:
    texts = {f"c{n}": text for n, text in enumerate(given or [PAPERS["p1"]])}
    return papers_found(PAPERS, EVIDENCE, [(texts, answer)], min_cover)


def test_a_child_that_returns_the_evidence_has_read_its_paper() -> None:
    start, end = place("p1", GOLD)[1:]
    for answer in (
        *(GOLD, [[GOLD]], f"It says: {GOLD}", GOLD[:-1], GOLD[1:]),  # the last: within min_cover
        {"paper_id": "p1", "text": GOLD},
        {"paper_id": "c0", "start": start, "end": end},
    ):
        assert found(answer) == {"p1"}


def test_one_child_may_find_several_papers_and_only_those_it_was_given() -> None:
    both = [GOLD, OTHER]
    assert found(both, PAPERS["p1"], PAPERS["p2"], PAPERS["p3"]) == {"p1", "p2"}
    assert found(both, PAPERS["p1"], PAPERS["p3"]) == {"p1"}
    assert papers_found(PAPERS, EVIDENCE, [], 0.95) == frozenset()


def test_children_that_together_return_most_of_it_have_chosen_nothing() -> None:
    lines = [GOLD, OTHER, *(line for text in PAPERS.values() for line in text.split("\n")[:2])]
    lines = list(dict.fromkeys(lines))
    thirds = [lines[n::3] for n in range(3)]

    def found_by(*children: tuple[dict[str, str], Any]) -> frozenset[str]:
        return papers_found(PAPERS, EVIDENCE, children, 0.95)

    whole = {"c": "\n".join(lines)}
    assert found_by((whole, thirds[0]), (whole, thirds[1][:0])) == {"p1"}
    assert found_by(*((whole, third) for third in thirds)) == frozenset()
    # Neither another order nor filler of their own makes it a choice.
    for extra in ({"c": "\n".join(reversed(lines))}, {**whole, "d": "-" * 900}):
        assert found_by(*((extra, third) for third in thirds)) == frozenset()
    assert found_by(({"c": GOLD, "d": "-" * 900}, GOLD)) == frozenset()
    # Readers of whole papers have chosen, however many there are.
    assert found_by(({"c": PAPERS["p1"]}, GOLD), ({"c": PAPERS["p2"]}, OTHER)) == {"p1", "p2"}


NAN = float("nan")


NOTHING = [
    *(None, [], "ok", PAPERS["p1"], GOLD[:20], GOLD.lower(), GOLD[::-1], OTHER, [GOLD, NAN]),
    PAPERS["p1"].split("\n"),
    [GOLD[:13], GOLD[13:]],
    [PAPERS["p1"][k : k + 30] for k in range(0, 90, 2)],
    {"paper_id": "c0", "start": 0, "end": 99},
    {"paper_id": "c0", "start": 0, "end": 10**9},
    {"paper_id": "c0", "start": True, "end": 60},
]


@pytest.mark.parametrize("answer", NOTHING, ids=repr)
def test_who_returns_nothing_everything_or_a_part_has_found_nothing(answer: Any) -> None:
    assert found(answer) == frozenset()


def test_a_cut_quote_is_shorter_than_evidence_may_be() -> None:
    assert found(GOLD[:-3]) == frozenset()
    assert found(GOLD[:-3], min_cover=0.85) == {"p1"}


def test_an_alternative_counts_for_the_papers_that_hold_it() -> None:
    papers = {**PAPERS, "p4": f"A study of Bokpil.\n{GOLD}\nLufkig scores 25 on Pudlep."}
    evidence = [[place("p1", GOLD), ("p4", 19, 19 + len(GOLD))]]
    assert papers_found(papers, evidence, [({"c": papers["p4"]}, GOLD)], 0.95) == {"p1", "p4"}


def test_the_work_grows_with_what_children_return_and_not_with_their_number() -> None:
    papers = {"p1": "".join(f"Kalvot scores {n} on Mirbex. " for n in range(2000))}

    def work(children: int) -> int:
        given = [({"c": papers["p1"][:40]}, "Kalvot scores 0 on Mirbex.")] * children
        return calls(lambda: papers_found(papers, [[("p1", 0, 26)]], given, 0.95))

    assert work(40) < 2 * work(4)


def test_the_work_does_not_grow_with_the_quotes_beyond_half_of_the_text() -> None:
    pieces = [str(n) for n in range(20_000)]
    assert calls(lambda: found(pieces)) < 6 * len(pieces)
    slices = [{"paper_id": "c0", "start": 0, "end": end} for end in range(1, 60)]
    assert found([GOLD, *slices]) == frozenset()
