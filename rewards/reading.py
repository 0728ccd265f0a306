"""Which papers were handed to a child or read closely: what process quality counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def papers_read(
    papers: Mapping[str, str],
    texts: Iterable[str],
    read_chars: int,
    gold: Collection[str] = (),
) -> frozenset[str]:
    """Papers of which some text holds a contiguous stretch.

    Papers share sentences, and some are near-duplicates: who reads a gold paper has not read all
    that repeat it. So a stretch of another paper counts only with a block of its own in it: of
    the blocks of `read_chars` / 2 that tile that paper, one that stands in no gold paper.

    Args:
        papers: text of each paper.
        texts: everything printed to a frame, and every prompt and context text sent to one.
        read_chars: contiguous characters that count; of a shorter paper, the whole of it.
        gold: ids of the papers with evidence.
    """
    seen = list(dict.fromkeys(texts))
    known = [papers[paper_id] for paper_id in gold]
    # Any stretch of `read_chars` holds one of the blocks that tile the paper.
    block = (read_chars + 1) // 2
    read: set[str] = set()
    tiles: dict[str, list[tuple[str, int]]] = {}
    for paper_id, whole in papers.items():
        if len(whole) <= read_chars:
            own = paper_id in gold or not _stands(whole, known)
            if own and _stands(whole, seen):
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
                if _stretch(text, at, whole, start, block, read_chars) and (
                    paper_id in gold or not _stands(whole[start : start + block], known)
                ):
                    read.add(paper_id)
    return frozenset(read)


def _stands(part: str, texts: Iterable[str]) -> bool:
    return any(part in text for text in texts)


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
