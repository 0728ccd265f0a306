"""What the replies of children are worth to the answer of their root.

A score is the value of the whole answer with what a child returned less that without it, so it
says what the answer would lose. `train.inheritance: own` makes a child's advantage of it. The
policy writes prompts, replies and the answer, and no clock limits this module: each kind of work
has a limit, beyond which a child has no score, or 0 if it returned too many quotes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, islice
from typing import Any

from rewards.numbered import choices
from rewards.primary import primary_objective
from rewards.settings import RewardSettings
from rewards.spans import Alternative, Evidence, Located, locate, occurrences, span_f1, stretches

_SEARCHED_CHARS = 100_000_000
"""Limit of passages times characters of the papers in which they are looked for, and of quotes
times characters, of all children of an episode: below 3 s in the worst case measured."""
_SEARCHED_CHARS_OF_CHILD = 20_000_000
_CHARS_OF_PIECE, _CHARS_OF_ALTERNATIVE, _CHARS_OF_PAIR = 200, 1000, 40
"""Searched characters that take as long as a piece of the answer in two values, as an alternative,
and as a pair of them."""
_PLACES = 50
"""Places of a passage that are looked at."""


def child_scores(
    readers: Mapping[int, tuple[str, Any]],
    agents: Mapping[int, Any],
    papers: Mapping[str, str],
    located: Located,
    evidence: Evidence,
    settings: RewardSettings,
) -> dict[int, float]:
    """Score of each child by frame; -1 to 1.

    | child | what it does | score |
    |---|---|---|
    | agent | returns spans | their worth, as if the root had quoted them whole |
    | agent | returns nothing, or invented quotes | 0 |
    | reader | names a passage | the passage's worth |
    | reader | names others, or says no | less the worth, which the opposite would have added |
    | reader | replies neither | less the size of the worth: it is wrong about each |
    | reader | is shown several passages | the sum, over that of the sizes if it is above 1 |
    | reader | is shown what no paper has word for word | none: "no" may be right or wrong |

    A passage counts once. "Neither" needs numbered passages, or a line that asks for "yes or no".
    Passages that readers kept and the root dropped count as quoted: if it takes what stands near
    the first one, a wrong first one would otherwise be free.

    Args:
        readers: prompt and reply of each `llm` child.
        agents: value that each `rlm` child returned.
        papers, evidence: of the problem.
        located: answer of the root.
        settings: of the reward.
    """
    worth_of = _Worth(located, evidence, settings)
    work = sum(map(len, papers.values())) + worth_of.work
    most = _SEARCHED_CHARS // max(1, len(readers) * work)

    @cache
    def places_of(passage: str) -> Sequence[Alternative]:
        """Places of a passage, one in gold first."""
        return sorted(_places(passage, papers), key=lambda place: not worth_of.in_gold(place))

    read = {
        frame: choice
        for frame, reader in readers.items()
        if (choice := _choice(*reader, places_of, most))
    }
    kept = {places_of(text)[0] for _, named in read.values() for text in named or ()}
    retrieved, least = located.retrieved, settings.min_span_chars
    dropped = {p for p in kept if p[2] - p[1] >= least and not stretches(retrieved, p)}
    asked = len({text for shown, _ in read.values() for text in shown})
    if asked * (work + len(dropped) * worth_of.work_of_piece) <= _SEARCHED_CHARS:
        worth_of = _Worth(_joined(located, dropped), evidence, settings)

    @cache
    def worth(passage: str) -> float:
        (_, start, end), *_ = places = places_of(passage)
        return worth_of(places, places[:1]) if end - start >= least else 0.0

    scores = {}
    for frame, (shown, named) in read.items():
        values = {text: worth(text) for text in sorted(shown)}
        total = sum(
            -abs(v) if named is None else v if text in named else -v for text, v in values.items()
        )
        scores[frame] = total / max(1.0, sum(map(abs, values.values())))
    limit = min(_SEARCHED_CHARS_OF_CHILD, _SEARCHED_CHARS // max(1, len(agents)))
    for frame, answer in agents.items():
        pieces = locate(answer, papers, settings, limit).pieces
        found = [(paper_id, *piece) for paper_id, some in pieces.items() for piece in some]
        if (len(found) * worth_of.work_of_piece + work) * len(agents) <= _SEARCHED_CHARS:
            scores[frame] = worth_of(found, found, whole=True)
    return scores


def _choice(
    prompt: str, reply: Any, places_of: Callable[[str], Sequence[Alternative]], most: int
) -> tuple[set[str], set[str] | None] | None:
    """Passages that a reader was shown, and those it named; None if one is in no paper.

    Args:
        prompt: its prompt.
        reply: its reply; it named nothing, not even an empty list, if that is None.
        places_of: places of a passage in the papers.
        most: passages at most.
    """
    for passages, numbers in choices(prompt, reply):
        if len(passages) > most:
            break
        if all(map(places_of, passages.values())):
            named = {passages[number] for number in numbers or () if number in passages}
            return set(passages.values()), None if numbers is None else named
    return None


class _Worth:
    """Value of an answer with some places of the papers, less that without them.

    The value is the mean of the primary objective, which is what earns, and of plain F1, which
    still tells right from wrong in an answer so diluted that it earns nothing.
    """

    def __init__(self, located: Located, evidence: Evidence, settings: RewardSettings) -> None:
        self._located, self._evidence, self._settings = located, evidence, settings
        self._gold = [place for fact in evidence for place in fact]
        pieces = sum(map(len, located.pieces.values()))
        self.work_of_piece = _CHARS_OF_PIECE + _CHARS_OF_PAIR * len(self._gold)
        self.work = self.work_of_piece * pieces + _CHARS_OF_ALTERNATIVE * len(self._gold)

    def in_gold(self, place: Alternative) -> bool:
        """Whether a place shares a character with gold."""
        paper_id, start, end = place
        return any(p == paper_id and a < end and start < b for p, a, b in self._gold)

    def __call__(
        self, places: Iterable[Alternative], added: Iterable[Alternative], whole: bool = False
    ) -> float:
        """Items of the answer within one of the places are theirs; those that stick out aren't.

        If there are none, `added` would have been; with `whole` it counts in their place.
        """
        before = self._located.pieces
        without = dict(before)
        for paper_id, intervals in _by_paper(places).items():
            starts = [start for start, _ in intervals]
            ends = list(accumulate((end for _, end in intervals), max))
            without[paper_id] = {
                (a, b)
                for a, b in before.get(paper_id, ())
                if not (k := bisect_right(starts, a)) or b > ends[k - 1]
            }
        less = replace(self._located, pieces={p: some for p, some in without.items() if some})
        none = sum(map(len, without.values())) == sum(map(len, before.values()))
        more = _joined(less, added) if none or whole else self._located
        return self._value(more) - self._value(less)

    def _value(self, located: Located) -> float:
        primary = primary_objective(located, self._evidence, self._settings)
        return (primary + span_f1(located.retrieved, self._evidence).f1) / 2


def _joined(located: Located, places: Iterable[Alternative]) -> Located:
    """An answer, and these places beside it."""
    pieces, more = located.pieces, _by_paper(places)
    return replace(located, pieces=pieces | {p: {*pieces.get(p, ()), *more[p]} for p in more})


def _by_paper(places: Iterable[Alternative]) -> dict[str, list[tuple[int, int]]]:
    intervals: dict[str, list[tuple[int, int]]] = {}
    for paper_id, start, end in sorted(places):
        intervals.setdefault(paper_id, []).append((start, end))
    return intervals


def _places(passage: str, papers: Mapping[str, str]) -> Sequence[Alternative]:
    """Places of a passage in the papers, or without its last line, which may be the question."""
    for part in (passage, passage.rpartition("\n")[0]):
        everywhere = (
            (paper_id, *place)
            for paper_id, text in papers.items()
            for place in islice(occurrences(text, part), _PLACES)
        )
        if part and (found := list(islice(everywhere, _PLACES))):
            return found
    return []
