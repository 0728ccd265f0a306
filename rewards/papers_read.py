"""The papers and lines that frames were shown, as process quality counts them."""

from collections.abc import Collection, Iterable, Mapping

Context = tuple[str, str]
"""Characters before a block, reversed, and characters after it."""


def papers_read(
    papers: Mapping[str, str], texts: Iterable[str], read_chars: int, gold: Collection[str] = ()
) -> frozenset[str]:
    """Ids of the papers of which a text contains a contiguous stretch.

    Papers share sentences, and some are near-duplicates: reading a gold paper must not count as
    reading every paper that repeats it. So a stretch of another paper counts only if it contains
    a block of that paper's own. Blocks of `read_chars` / 2 tile the paper; its own blocks occur
    in no gold paper.

    The policy writes the texts, and no clock limits this function. So its work grows with the
    characters of papers and texts, not with the number of near-duplicates or repetitions.

    Args:
        papers: text of each paper.
        texts: everything printed to a frame, and every prompt and context text sent to one.
        read_chars: contiguous characters that count; a shorter paper counts as a whole.
        gold: ids of the papers with evidence.
    """
    gold_texts = [papers[paper_id] for paper_id in gold]
    least = min((len(whole) for whole in papers.values()), default=0)
    seen = [text for text in dict.fromkeys(texts) if len(text) >= min(least, read_chars)]
    # Any stretch of `read_chars` contains one of the blocks that tile the paper.
    block = (read_chars + 1) // 2
    reach = read_chars - block
    read: set[str] = set()
    # Papers by a block and what surrounds it: near-duplicates have one entry in common.
    tiles: dict[str, dict[Context, set[str]]] = {}
    # Papers by whole stretches around blocks that overlap themselves, such as a line of dashes.
    # A text can contain such a block at every character, other blocks only at every half block.
    stretches: dict[str, set[str]] = {}
    for paper_id, whole in papers.items():
        if len(whole) <= read_chars:
            if (paper_id in gold or not _occurs(whole, gold_texts)) and _occurs(whole, seen):
                read.add(paper_id)
            continue
        for start in range(0, len(whole) - block + 1, block):
            end = start + block
            tile = whole[start:end]
            if not _overlaps_itself(tile):
                around = whole[max(0, start - reach) : start][::-1], whole[end : end + reach]
                tiles.setdefault(tile, {}).setdefault(around, set()).add(paper_id)
            elif paper_id in gold or not _occurs(tile, gold_texts):
                for at in range(max(0, start - reach), min(start, len(whole) - read_chars) + 1):
                    stretches.setdefault(whole[at : at + read_chars], set()).add(paper_id)
    for text in seen:
        starts = range(len(text) - block + 1) if tiles else ()
        for at in [at for at in starts if text[at : at + block] in tiles]:
            tile = text[at : at + block]
            contexts = [around for around in tiles[tile] if _agree(text, at, block, around, reach)]
            for around in contexts:
                ids = tiles[tile].pop(around)
                read |= ids & set(gold) if _occurs(tile, gold_texts) else ids
        starts = range(len(text) - read_chars + 1) if stretches else ()
        for at in [at for at in starts if text[at : at + read_chars] in stretches]:
            read |= stretches[text[at : at + read_chars]]
    return frozenset(read)


class Lines:
    """Lines that are looked for in texts; they are indexed once.

    The policy writes the texts, and no clock limits this search. So its work grows with their
    characters and with the number of different lengths of lines, not with the number of lines.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = set(lines) - {""}
        self._head = min(map(len, self._lines), default=0)
        self._lengths: dict[str, set[int]] = {}
        for line in self._lines:
            self._lengths.setdefault(line[: self._head], set()).add(len(line))

    def shown(self, texts: Iterable[str]) -> set[str]:
        """The lines that occur in a text."""
        shown: set[str] = set()
        head, lengths = self._head, self._lengths
        for text in dict.fromkeys(texts) if lengths else ():
            starts = range(len(text) - head + 1)
            for at in [at for at in starts if text[at : at + head] in lengths]:
                parts = (text[at : at + length] for length in lengths[text[at : at + head]])
                shown.update(part for part in parts if part in self._lines)
        return shown


def share(part: Collection[str], shown: Collection[str]) -> float:
    """Share of a part's lines that were shown; 0 if it has none."""
    return len(set(part).intersection(shown)) / len(set(part)) if part else 0.0


def _occurs(part: str, texts: Iterable[str]) -> bool:
    return any(part in text for text in texts)


def _overlaps_itself(tile: str) -> bool:
    """Whether a text may contain the tile twice, less than half of its length apart."""
    return tile.find(tile[: len(tile) - len(tile) // 2], 1) >= 0


def _agree(text: str, at: int, block: int, around: Context, reach: int) -> bool:
    """Whether the block at `text[at]` and what surrounds it agree by `reach` more characters."""
    before, after = around
    end = at + block
    return (
        _common(text[max(0, at - reach) : at][::-1], before)
        + _common(text[end : end + reach], after)
        >= reach
    )


def _common(one: str, other: str) -> int:
    """Length of the common prefix, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
