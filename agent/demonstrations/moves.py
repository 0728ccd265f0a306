"""Demonstrations of moves: code that searches in a way drawn at random, for GRPO to choose from.

The keyed plan (`keyed_plan.py`) shows one way to search. These demonstrations show many, all of
them, whatever they earn: which parts of the question make the query, which further words, how many
passages are quoted, whether one paper is chosen first, and who reads. So a model that imitates them
knows how to write each, and not which one is good. `decisions` reads them back from sampled code.

Code takes the parts of the question by name. So a small model needn't copy them, which it does
badly. A root that asks readers writes, for example (each line follows from decisions):

    import re
    drug, symptom = re.split("Does | help against |\\?", question)[1:3]
    papers = {p: context[p] for p, t in rank(context, question, 1)}
    query = f"{symptom} significant"
    found = rank(papers, query, 8)
    replies = llm_query_batched([f"{question}\\n{t}\\nYes or no?" for p, t in found])
    found = [f for f, r in zip(found, replies) if r == "yes"] or found
    FINAL(found[:2])
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from agent.demonstrations.cells import text_literal
from agent.rollouts.trajectory import Trajectory
from agent.settings import MovesSettings, Reads
from env.ranking import MOST
from rewards.numbered import ASKS

NEAR_CHARS = 400
"""Widest gap between passages that stand near each other: about three sentences."""
_ASKED = f"{ASKS.capitalize()}?"

_QUERY = re.compile(r'^query = f"(.*)"$', re.MULTILINE)
_RANKED = re.compile(r"rank\(\w+, query(?:, (\d+))?\)")
_QUOTED = re.compile(r"FINAL\(found\[:(\d+)\]\)")
_PART = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Move:
    """The decisions of one frame that searches."""

    parts: tuple[str, ...]
    """Names of the parts of the question that are in the query."""
    words: tuple[str, ...]
    """Further words of the query."""
    quoted: int
    """Passages of the answer, at most."""
    paper_first: bool
    """Whether only the paper that fits the whole question best is searched."""
    near: bool
    """Whether passages far from the best one are dropped."""
    reads: Reads
    shown: int
    """Passages that readers see, or papers that children get; 0 if nobody reads."""


def draw(rng: Random, settings: MovesSettings, depth: int = 0) -> Move:
    """Decisions drawn independently of each other, and of the problem.

    Args:
        rng: source of chance.
        settings: what is drawn from.
        depth: of the frame; a child has one paper, and no children.
    """
    reads = rng.choices(list(settings.reads), list(settings.reads.values()))[0]
    if depth and reads == "children":
        reads = "nobody"
    words = rng.sample(settings.words, rng.choice(settings.word_counts))
    return Move(
        parts=tuple(rng.choice(settings.parts)),
        words=tuple(words),
        quoted=rng.choice(settings.quoted),
        paper_first=not depth and reads != "children" and rng.random() < settings.paper_first,
        near=reads != "children" and rng.random() < settings.near,
        reads=reads,
        shown={
            "nobody": 0,
            "readers": rng.choice(settings.readers),
            "children": rng.choice(settings.children),
        }[reads],
    )


def code(move: Move, form: str) -> str:
    """Code of a frame's only turn.

    Args:
        move: what it decides.
        form: of its question, or of a child's task, which is the same; parts are in braces.
    """
    lines, papers = ["import re", _split(form)], "context"
    if move.paper_first:
        papers = "papers"
        lines.append("papers = {p: context[p] for p, t in rank(context, question, 1)}")
    written = query_of(move, {name: f"{{{name}}}" for name in move.parts})
    lines.append(f'query = f"{written}"')
    lines.append(f"found = rank({papers}, query, {move.shown or move.quoted})")
    if move.reads == "children":
        lines += [
            "papers = {p: 0 for p, t in found}",
            "parts = [{p: context[p]} for p in papers]",
            "found = rlm_query_batched([question] * len(parts), parts)",
            "FINAL(found)",
        ]
        return "\n".join(lines)
    if move.near:
        lines.append(f"found = near(context, found, {NEAR_CHARS})")
    if move.reads == "nobody":
        return "\n".join([*lines, "FINAL(found)"])
    return "\n".join(
        [
            *lines,
            f'replies = llm_query_batched([f"{{question}}\\n{{t}}\\n{_ASKED}" for p, t in found])',
            'found = [f for f, r in zip(found, replies) if r == "yes"] or found',
            f"FINAL(found[:{move.quoted}])",
        ]
    )


def _split(form: str) -> str:
    """The line that takes a question of this form apart."""
    pieces = _PART.split(form)
    fixed = [re.escape(piece).replace("\\ ", " ") for piece in pieces[::2]]
    first = int(bool(fixed[0]))
    names = pieces[1::2]
    pattern = text_literal("|".join(filter(None, fixed)))
    return f"{', '.join(names)} = re.split({pattern}, question)[{first}:{first + len(names)}]"


def query_of(move: Move, parts: Mapping[str, str]) -> str:
    """The words that a move searches for."""
    return " ".join([*(parts[name] for name in move.parts), *move.words])


def reader_prompt(question: str, passage: str) -> str:
    """Prompt of a reader, as `code` writes it; readers of one question begin alike."""
    return f"{question}\n{passage}\n{_ASKED}"


def passage_of(prompt: str, question: str) -> str:
    """Passage of a reader's prompt."""
    return prompt.removeprefix(f"{question}\n").removesuffix(f"\n{_ASKED}")


def decisions(text: str, settings: MovesSettings) -> dict[str, float]:
    """Decisions of a frame's turn by name, each 1 or 0, as `move/...`.

    A turn may say anything: what isn't there counts as not decided for.

    Args:
        text: the turn.
        settings: the parts and the further words.
    """
    match = _QUERY.search(text)
    query = match[1] if match else ""
    parts, words = set(_PART.findall(query)), set(_WORD.findall(_PART.sub("", query)))
    ranked = [int(n or MOST) for n in _RANKED.findall(text)[:1]]
    quoted = [int(n) for n in _QUOTED.findall(text)[:1]]
    shown: list[int] = []
    reads: Reads = "nobody"
    if "rlm_query" in text:
        reads = "children"
    elif "llm_query" in text:
        reads, shown = "readers", ranked
    else:
        quoted = quoted or ranked
    flags = {
        **{f"part/{name}": name in parts for name in _PART.findall(settings.question)},
        **{f"word/{word}": word in words for word in settings.words},
        "word/another": bool(words - set(settings.words)),
        **{f"quoted/{number}": number in quoted for number in settings.quoted},
        **{f"shown/{number}": number in shown for number in settings.readers},
        "shown/another": bool(set(shown) - set(settings.readers)),
        "paper_first": "rank(papers, query" in text,  # not if it chooses one and searches all
        "near": "near(" in text,
        **{f"reads/{who}": reads == who for who in settings.reads},
    }
    return {f"move/{name}": float(value) for name, value in flags.items()}


def parts_of(text: str, template: str) -> dict[str, str] | None:
    """Parts of the question in a line of a text, by name; None if no line has its form.

    For example, `parts_of("Is A like B?", "Is {one} like {other}?")` is `{"one": "A",
    "other": "B"}`.
    """
    pieces: Sequence[str] = _PART.split(template)
    pattern = "".join(
        f"(?P<{piece}>.+?)" if number % 2 else re.escape(piece)
        for number, piece in enumerate(pieces)
    )
    match = re.search(f"^{pattern}$", text, re.MULTILINE)
    return match.groupdict() if match else None


def shares(trajectories: Iterable[Trajectory], settings: MovesSettings) -> dict[str, float]:
    """Share of the roots that decided for each move, as `decisions` names them; voids are left out.

    Empty without a root.
    """
    roots = [t.root.turns[0] for t in trajectories if t.void is None and t.root.turns]
    taken = [decisions(turn.text, settings) for turn in roots]
    return {name: fmean(one[name] for one in taken) for name in (taken[0] if taken else ())}
