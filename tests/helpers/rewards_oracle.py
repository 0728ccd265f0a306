"""The reward by brute force: sets of (paper, index), written from the text of docs/rewards.md.

Slow and plain on purpose, so that a reader can hold each function against its sentence there.
Nothing of `rewards/` is used but the settings.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from rewards.settings import RewardSettings

Char = tuple[str, int]
Alternative = tuple[str, int, int]
Facts = Sequence[Sequence[Alternative]]
Papers = Mapping[str, str]


def chars(alternative: Alternative) -> set[Char]:
    paper_id, start, end = alternative
    return {(paper_id, index) for index in range(start, end)}


def leaves(answer: Any) -> list[Any]:
    if isinstance(answer, list | tuple):
        return [leaf for item in answer for leaf in leaves(item)]
    return [answer]


def numbers(answer: Any) -> list[float]:
    """Floats among the items and among the values of items that are dicts."""
    found = []
    for leaf in leaves(answer):
        values = leaf.values() if isinstance(leaf, dict) else [leaf]
        found += [value for value in values if isinstance(value, float)]
    return found


def standing(text: str, papers: Papers) -> list[Alternative]:
    return [
        (paper_id, start, start + len(text))
        for paper_id, paper in papers.items()
        for start in range(len(paper) - len(text) + 1)
        if paper[start : start + len(text)] == text
    ]


def fits(item: Any) -> bool:
    """An item of a shape that says something."""
    if isinstance(item, str):
        return True
    keys = ("paper_id", "text", "start", "end")
    return isinstance(item, dict) and all(type(item.get(n)) in (str, int, type(None)) for n in keys)


def same(item: Any) -> Any:
    """Equal for items that are repeats of each other."""
    if isinstance(item, str):
        return item
    return tuple(item.get(name) for name in ("paper_id", "text", "start", "end"))


def locate(
    answer: Any, papers: Papers, settings: RewardSettings
) -> tuple[list[set[Char]], set[Char], int, int]:
    """Retrieved by each item at each place, by all together; invented characters; misses."""
    if not all(isfinite(number) for number in numbers(answer)):
        return [], set(), 0, 0
    items = {same(leaf): leaf for leaf in leaves(answer) if fits(leaf)}
    if len(items) > settings.max_items:
        return [], set(), 0, 0
    places: list[Alternative] = []
    misses = set()
    for item in items.values():
        if isinstance(item, str):
            text, found = item, standing(item, papers)
        elif isinstance(item.get("text"), str):
            text = item["text"]
            found = [place for place in standing(text, papers) if place[0] == item.get("paper_id")]
        else:
            paper_id, start, end = (item.get(name) for name in ("paper_id", "start", "end"))
            if (
                item.get("text") is None
                and paper_id in papers
                and isinstance(start, int)
                and isinstance(end, int)
                and start >= 0
                and start + settings.min_span_chars <= end <= len(papers[paper_id])
            ):
                places.append((paper_id, start, end))
            continue
        if len(text) >= settings.min_span_chars:
            places += found
            if not found:
                misses.add(text)
    if len(places) > 5 * settings.max_items:
        return [], set(), 0, 0
    lengths = sorted(map(len, misses))
    charged = lengths[: max(0, len(lengths) - settings.free_misses)]
    pieces = [chars(place) for place in places]
    return pieces, set().union(*pieces), sum(charged), len(misses)


def longest(fact: Sequence[Alternative]) -> int:
    return max(len(chars(alternative)) for alternative in fact)


def f1(precision: float, recall: float) -> float:
    return 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)


def span_f1(retrieved: set[Char], facts: Facts) -> tuple[float, float, float]:
    single = [fact for fact in facts if len(fact) == 1]
    several = [fact for fact in facts if len(fact) > 1]
    gold = {char for fact in single for char in chars(fact[0])}
    found: float = len(retrieved & gold)
    for fact in several:
        found += max(len(retrieved & chars(a)) / len(chars(a)) for a in fact) * longest(fact)
    recall = found / (len(gold) + sum(map(longest, several)))
    right = retrieved & {char for fact in facts for a in fact for char in chars(a)}
    precision = len(right) / len(retrieved) if retrieved else 0.0
    return precision, recall, f1(precision, recall)


def primary_objective(
    pieces: Sequence[set[Char]],
    retrieved: set[Char],
    invented: int,
    facts: Facts,
    settings: RewardSettings,
) -> float:
    gold = sum(map(longest, facts))
    found = 0.0
    right: set[Char] = set()
    for fact in facts:
        accepted = [
            chars(a)
            for a in fact
            if any(
                len(piece & chars(a)) >= settings.min_cover * len(chars(a)) - 1e-9
                for piece in pieces
            )
        ]
        if accepted:
            found += longest(fact) * max(len(retrieved & a) / len(a) for a in accepted)
            right |= retrieved & set().union(*accepted)
    wrong = len(retrieved) - len(right) + invented
    precision = len(right) / (len(right) + wrong) if right or wrong else 0.0
    dilution = 1.25 - settings.overshoot_slope * wrong / gold
    return f1(precision, found / gold) * min(1.0, max(0.0, dilution))


def sources(facts: Facts) -> set[frozenset[str]]:
    return {frozenset(paper_id for paper_id, _, _ in fact) for fact in facts}


def process_quality(
    papers: Papers, facts: Facts, read: set[str], turns: int, errors: int, gate: float
) -> float:
    if turns < 1:
        return 0.0
    wanted = sources(facts)
    others = set(papers) - set().union(*wanted)
    value = len([source for source in wanted if source & read]) / len(wanted)
    if others:
        value -= len(others & read) / len(others)
        scale = 0.4 + 0.6 * gate
    else:
        scale = gate
    return max(0.0, value) * (1 - min(errors, turns) / turns) * scale


def papers_read(papers: Papers, texts: Sequence[str], read_chars: int, gold: set[str]) -> set[str]:
    read = set()
    for paper_id, paper in papers.items():
        enough = min(read_chars, len(paper))
        block = (read_chars + 1) // 2 if len(paper) > read_chars else len(paper)
        for i in range(len(paper) - enough + 1):
            own = any(
                i <= start and start + block <= i + enough
                for start in range(0, len(paper) - block + 1, block)
                if paper_id in gold
                or not any(paper[start : start + block] in papers[other] for other in gold)
            )
            if own and any(paper[i : i + enough] in text for text in texts):
                read.add(paper_id)
    return read


def exact_match(retrieved: set[Char], misses: int, facts: Facts) -> bool:
    whole = [[chars(a) for a in fact if chars(a) <= retrieved] for fact in facts]
    gold = {char for fact in whole for a in fact for char in a}
    return all(whole) and retrieved == gold and misses == 0


def paper_f1(retrieved: set[Char], facts: Facts) -> float:
    quoted = {paper_id for paper_id, _ in retrieved}
    wanted = sources(facts)
    hits = len([source for source in wanted if source & quoted])
    wrong = len(quoted - set().union(*wanted))
    return f1(hits / (hits + wrong) if hits + wrong else 0.0, hits / len(wanted))
