"""The papers that were handed to a child or read closely, as process quality counts them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from operator import eq


def papers_read(
    papers: Mapping[str, str],
    texts: Iterable[str],
    read_chars: int,
    gold: Collection[str] = (),
) -> frozenset[str]:
    """Ids of the papers of which a text contains a contiguous stretch.

    Papers share sentences, and some are near-duplicates: reading a gold paper must not count as
    reading every paper that repeats it. So a stretch of another paper counts only if it contains
    a block of that paper's own. Blocks of `read_chars` / 2 tile the paper; its own blocks occur
    in no gold paper.

    Args:
        papers: text of each paper.
        texts: everything printed to a frame, and every prompt and context text sent to one.
        read_chars: contiguous characters that count; a shorter paper counts as a whole.
        gold: ids of the papers with evidence.
    """
    seen = list(dict.fromkeys(texts))
    known = [papers[paper_id] for paper_id in gold]
    # Any stretch of `read_chars` contains one of the blocks that tile the paper.
    block = (read_chars + 1) // 2
    read: set[str] = set()
    tiles: dict[str, list[tuple[str, int]]] = {}
    for paper_id, whole in papers.items():
        if len(whole) <= read_chars:
            own = paper_id in gold or not _occurs(whole, known)
            if own and _occurs(whole, seen):
                read.add(paper_id)
            continue
        for start in range(0, len(whole) - block + 1, block):
            tiles.setdefault(whole[start : start + block], []).append((paper_id, start))
    for text in seen if tiles else ():
        for at in range(len(text) - block + 1):
            for paper_id, start in tiles.get(text[at : at + block], ()):
                if paper_id in read:
                    continue
                whole = papers[paper_id]
                if _is_stretch(text, at, whole, start, block, read_chars) and (
                    paper_id in gold or not _occurs(whole[start : start + block], known)
                ):
                    read.add(paper_id)
    return frozenset(read)


def _occurs(part: str, texts: Iterable[str]) -> bool:
    return any(part in text for text in texts)


def _is_stretch(text: str, at: int, whole: str, start: int, block: int, enough: int) -> bool:
    """Whether the common block at `text[at]` and `whole[start]` extends to `enough` characters."""
    reach = enough - block
    before = _agreeing(
        text[max(0, at - reach) : at][::-1], whole[max(0, start - reach) : start][::-1]
    )
    after = _agreeing(text[at + block : at + enough], whole[start + block : start + enough])
    return before + block + after >= enough


def _agreeing(one: str, other: str) -> int:
    """Length of the common prefix."""
    return sum(takewhile(bool, map(eq, one, other)))
