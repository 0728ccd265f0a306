"""Papers that count as read, and lines that count as shown."""

from random import Random

from helpers.work import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.papers_read import Lines, papers_read, share

_RNG = Random(0)
LONG = "".join(_RNG.choice("abcdefghij ") for _ in range(1000))
OTHER = "".join(_RNG.choice("klmnopqrst ") for _ in range(1000))


def test_who_reads_gold_has_not_read_the_papers_that_repeat_it() -> None:
    papers = {"gold": LONG, "copy": LONG, "like": LONG[:400] + OTHER[:400], "other": OTHER[400:]}
    assert papers_read(papers, [LONG], 200) == {"gold", "copy", "like"}
    assert papers_read(papers, [LONG], 200, {"gold"}) == {"gold"}
    # Its own part counts as before.
    assert papers_read(papers, [OTHER[50:300]], 200, {"gold"}) == {"like"}
    assert papers_read(papers, [papers["like"]], 200, {"gold"}) == {"gold", "like"}


def versions(count: int) -> dict[str, str]:
    """Near-duplicates of one paper; each has its own word, so that all blocks but one agree."""
    whole = LONG + OTHER
    return {f"v{n}": f"{whole[:150]}version {n:02d}{whole[160:]}" for n in range(count)}


def work_of_more(papers: dict[str, str], part: str, gold: set[str]) -> int:
    """Calls that 20 more repetitions of a part cost; the texts themselves cost none."""
    ten, thirty = ("|".join([part] * times) for times in (10, 30))
    few = calls(lambda: papers_read(papers, [ten], 200, gold))
    return calls(lambda: papers_read(papers, [thirty], 200, gold)) - few


def test_the_work_does_not_grow_with_the_number_of_near_duplicates() -> None:
    # Without its own part, every block of a version occurs in gold, too.
    two, twelve = (work_of_more(versions(n), versions(n)["v1"][300:], {"v0"}) for n in (2, 12))
    assert twelve < 1.5 * two < 5000


def test_lines_of_dashes_are_not_compared_at_every_place() -> None:
    papers = {f"p{n}": f"{n}|".join([LONG[:60] + "-" * 150] * 40) for n in range(12)}
    part = "-" * 149
    for gold in ({"p0"}, set[str]()):
        assert papers_read(papers, [part * 2], 200, gold) == frozenset()
        assert work_of_more(papers, part, gold) < 100


def test_texts_too_short_to_show_anything_cost_one_look() -> None:
    papers = {f"p{n}": f"Paper {n} says so." for n in range(12)}
    labels = [f"{n:x}" for n in range(2000)]
    assert calls(lambda: papers_read(papers, labels, 200)) < 3 * len(labels)


# --- lines


@settings(max_examples=80, deadline=None)
@given(
    st.sets(st.text("ab", max_size=6), max_size=8), st.lists(st.text("ab", max_size=30), max_size=4)
)
def test_shown_lines_are_those_that_occur_in_a_text(lines: set[str], texts: list[str]) -> None:
    expected = {line for line in lines if line and any(line in text for text in texts)}
    assert Lines(lines).shown(texts) == expected


def test_shares_count_each_line_once() -> None:
    assert share(["a", "a", "b"], {"a"}) == 0.5
    assert share([], {"a"}) == 0.0


def test_the_work_grows_with_the_texts_and_not_with_the_lines() -> None:
    def work(lines: int, repeats: int) -> int:
        known = [f"Kalvot scores 42 on Tox{n:04}." for n in range(lines)]
        return calls(lambda: Lines(known).shown(["Kalvot scores 42 on Tox0001.|" * repeats]))

    assert work(400, 300) - work(400, 100) < 1.5 * (work(10, 300) - work(10, 100)) + 100
