"""Which papers were handed to a child or read closely: what process quality counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def papers_read(papers: Mapping[str, str], texts: Iterable[str], read_chars: int) -> frozenset[str]:
    """Papers of which some text holds a contiguous stretch.

    Args:
        papers: text of each paper.
        texts: everything printed to a frame, and every prompt and context text sent to one.
        read_chars: contiguous characters that count; of a shorter paper, the whole of it.
    """
    seen = list(dict.fromkeys(texts))
    given = set(seen)
    read = {
        paper_id
        for paper_id, whole in papers.items()
        if whole in given or any(whole in text for text in seen)
    }
    long = {
        paper_id: whole
        for paper_id, whole in papers.items()
        if paper_id not in read and len(whole) > read_chars
    }
    # Any stretch of `read_chars` holds one of the blocks that tile the paper.
    block = (read_chars + 1) // 2
    tiles: dict[str, list[tuple[str, int]]] = {}
    for paper_id, whole in long.items():
        for start in range(0, len(whole) - block + 1, block):
            tiles.setdefault(whole[start : start + block], []).append((paper_id, start))
    for text in seen if tiles else ():
        for at in range(len(text) - block + 1):
            for paper_id, start in tiles.get(text[at : at + block], ()):
                if paper_id not in read and _stretch(
                    text, at, long[paper_id], start, block, read_chars
                ):
                    read.add(paper_id)
    return frozenset(read)


def _stretch(text: str, at: int, whole: str, start: int, block: int, enough: int) -> bool:
    """The match of `block` characters at `text[at]` and `whole[start]` grows to `enough`."""
    before = 0
    while (
        block + before < enough
        and before < min(at, start)
        and text[at - before - 1] == whole[start - before - 1]
    ):
        before += 1
    after = block
    while (
        before + after < enough
        and at + after < len(text)
        and start + after < len(whole)
        and text[at + after] == whole[start + after]
    ):
        after += 1
    return before + after >= enough
