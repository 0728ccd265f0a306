"""From plans to papers: sections, running text around the planned statements, tables, offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from random import Random

from env.problems.papers.forms import Forms, sentence
from env.problems.papers.plan import Cell, Draft, Key, Line, Plan, listing
from env.problems.papers.reader import Section, templates
from env.problems.schema import Paper, Span


class Writer:
    """Writes one paper.

    Args:
        draft: its collection.
        plan: its plan.
    """

    def __init__(self, draft: Draft, plan: Plan) -> None:
        self._draft, self._plan = draft, plan
        self._pen, self._field = draft.pen, draft.field
        self._layout, self._passages = templates().layout, templates().passages
        self._parts: list[str] = []
        self._chars = 0
        self.spans: list[tuple[Span, tuple[Key, ...]]] = []
        """Every statement of the text with the facts that it states."""

    def paper(self) -> Paper:
        """The paper; `spans` is complete afterwards."""
        plan = self._plan
        self._id = f"p{plan.number + 1}"
        title = self._title()
        self._write(f"{title}\n\nAbstract\n")
        start = self._chars
        self._paragraph(self._abstract())
        abstract = "".join(self._parts)[start:].strip()
        for number, section in enumerate(self._layout.shares, 1):
            self._write(f"\n{number} {self._layout.headings[plan.role][section]}\n")
            self._section(section)
        self._appendix()
        return Paper(
            paper_id=self._id,
            title=title,
            abstract=abstract,
            text="".join(self._parts).rstrip("\n"),
            canary=plan.canary,
        )

    # --- text with offsets

    def _write(self, text: str) -> None:
        self._parts.append(text)
        self._chars += len(text)

    def _state(self, line: Line) -> None:
        if line.states:
            span = Span(
                paper_id=self._id,
                start=self._chars,
                end=self._chars + len(line.text),
                text=line.text,
            )
            self.spans.append((span, line.states))
        self._write(line.text)

    def _paragraph(self, lines: Sequence[Line]) -> None:
        for i, line in enumerate(lines):
            if i:
                self._write(" ")
            self._state(line)
        self._write("\n")

    # --- parts of a paper

    def _slots(self) -> dict[str, str]:
        """Names that running text may use; those of other methods are abbreviations."""
        field, rng = self._field, self._draft.rng
        own = self._plan.own
        others = [method for method in field.methods if method is not own]
        other, other2 = rng.sample(others, 2)
        method = own or other
        part, part2 = rng.sample(method.parts, 2)
        return {
            **self._draft.subject(),
            "other": other.abbr,
            "other2": other2.abbr,
            "full": method.full,
            "abbr": method.abbr,
            "part": part,
            "part2": part2,
            "bench": rng.choice(field.benchmarks),
            "corpus": rng.choice(field.corpora),
            "metric": field.metrics[rng.choice(list(field.metrics))],
        }

    def _title(self) -> str:
        title = self._pen.write(self._layout.titles[self._plan.role], **self._slots())
        words = [w if w in self._layout.small_words else sentence(w) for w in title.split()]
        return sentence(" ".join(words))

    def _abstract(self) -> list[Line]:
        slots = self._slots()
        statements = [line for lines in self._plan.told.get("abstract", []) for line in lines]
        first = Line(self._pen.write(self._layout.openings[self._plan.role], **slots))
        middle = Line(self._sentences(self._pen.order(self._passages.abstract)[0]))
        last = Line(self._pen.write(self._layout.closings, **slots))
        return [first, middle, *statements, last]

    def _section(self, section: Section) -> None:
        """Passages and planned statements, mixed and cut into paragraphs."""
        rng, plan = self._draft.rng, self._plan
        ways = getattr(self._passages, section)
        ways = ways if isinstance(ways, Forms) else ways[plan.role]
        words = self._layout.shares[section] * plan.words
        blocks = [[Line(text)] for text in self._running(ways, words)]
        planned = list(plan.told.get(section, []))
        rng.shuffle(planned)
        for lines in planned:
            blocks.insert(rng.randint(0, len(blocks)), lines)
        if section == "related" and (mentions := self._mentions()):
            blocks.append([Line(text) for text in mentions])
        if section == "setup":
            blocks.append([Line(self._measures())])
        if plan.canary and section == "method":
            bait = self._parts[0].partition("\n")[0]
            text = self._pen.write(self._passages.canaries, bait=bait, unit=self._field.unit)
            blocks.insert(rng.randint(0, len(blocks)), [Line(text)])
        while blocks:
            count = rng.randint(2, 4)
            self._paragraph([line for lines in blocks[:count] for line in lines])
            del blocks[:count]
        if section == "results":
            self._tables()

    def _running(self, ways: Forms, words: float) -> list[str]:
        """Running text of about so many words; each form comes once at most."""
        texts: list[str] = []
        for form in self._pen.order(ways):
            if words < 18:
                break
            texts.append(self._sentences(form))
            words -= len(texts[-1].split())
        return texts

    def _sentences(self, form: str) -> str:
        """A passage in the words of this paper; it may do without its last sentence."""
        rng = self._draft.rng
        *most, last = vary(form, rng).split(". ")
        if len(most) < 2 or rng.random() < 0.6:
            most.append(last)
        # Names are filled in last: they are not to be exchanged. A task may begin a sentence.
        filled = self._pen.fill(". ".join(most), **self._slots())
        text = ". ".join(part[:1].upper() + part[1:] for part in filled.split(". "))
        return text if text.endswith((".", "?")) else f"{text}."

    def _mentions(self) -> list[str]:
        """The methods that this paper reports on; in plain papers with their full names."""
        own = self._plan.own
        abbrs = list(dict.fromkeys(cell.abbr for cell in self._plan.cells))
        texts = []
        for abbr in abbrs:
            method = self._field.method(abbr)
            if method is not own:
                name = abbr if self._draft.indirect() else f"{method.full} ({abbr})"
                part, part2 = self._draft.rng.sample(method.parts, 2)
                slots = {"name": name, "part": part, "part2": part2}
                texts.append(self._pen.write(self._layout.mention, **slots))
        return texts

    def _measures(self) -> str:
        named = [f"{full} ({short})" for short, full in self._field.metrics.items()]
        return self._pen.write(self._layout.measures, metrics=listing(named))

    def _appendix(self) -> None:
        """Write the rest of the paper's words."""
        left = self._plan.words - sum(len(part.split()) for part in self._parts)
        if left > 60:
            self._write("\nA Details for Repetition\n")
            for text in self._running(self._passages.appendix, left):
                self._paragraph([Line(text)])

    # --- tables

    def _tables(self) -> None:
        rng, field = self._draft.rng, self._field
        metrics = list(field.metrics)
        wanted = [(cell.metric, cell.split) for cell in self._plan.cells]
        wanted = wanted or [(rng.choice(metrics), "test")]
        if self._plan.words > 900:
            wanted.append((rng.choice(metrics), rng.choice(("dev", "dev", "test"))))
        for number, (metric, split) in enumerate(dict.fromkeys(wanted), 1):
            self._table(number, metric, split)

    def _table(self, number: int, metric: str, split: str) -> None:
        """Methods by benchmarks, one metric, one split; a bar between cells, a row a line."""
        draft, rng, field, plan = self._draft, self._draft.rng, self._field, self._plan
        planned = [c for c in plan.cells if (c.metric, c.split) == (metric, split)]
        benches = list(dict.fromkeys(cell.bench for cell in planned))
        rest = [bench for bench in field.benchmarks if bench not in benches]
        benches = (benches + rng.sample(rest, min(len(rest), 2)))[:4]
        benches += rng.sample([b for b in rest if b not in benches], max(0, 3 - len(benches)))
        benches.sort()
        abbrs = list(dict.fromkeys(cell.abbr for cell in planned))
        rest = [method.abbr for method in field.methods if method.abbr not in abbrs]
        abbrs += rng.sample(rest, min(len(rest), rng.randint(1, 3)))
        own = plan.own.abbr if plan.own else None
        abbrs = sorted(abbr for abbr in abbrs if abbr != own) + ([own] if own else [])
        shown = draft.metric(metric, draft.indirect())
        caption = self._pen.write(self._layout.captions[split], metric=shown)
        self._write(f"\nTable {number}: {caption}.\n")
        self._write(f"| System | {' | '.join(benches)} |\n")
        for abbr in abbrs:
            cells = [Cell(abbr, bench, metric, split) for bench in benches]
            self._state(self._row(cells, abbr == own))
            self._write("\n")
        if own and split == "test":
            self._variant_row(own, benches, metric)

    def _row(self, cells: Sequence[Cell], own: bool) -> Line:
        plan, draft = self._plan, self._draft
        values, keys = [], []
        for cell in cells:
            key = plan.cells.get(cell)
            if key is None and draft.may_show(plan, cell) and draft.rng.random() < 0.85:
                key = ("score", str(plan.number), *cell)
            values.append("not run" if key is None else draft.field.score(plan.number, *cell))
            keys += [key] if key else []
        name = cells[0].abbr
        if own:
            name = f"{'Full model' if draft.indirect() else name} (ours)"
        return Line(f"| {name} | {' | '.join(values)} |", tuple(keys))

    def _variant_row(self, own: str, benches: Sequence[str], metric: str) -> None:
        part = self._draft.rng.choice(self._field.method(own).parts)
        number = self._plan.number
        values = [self._field.score(number, own, b, metric, f"no {part}") for b in benches]
        name = "Full model" if self._draft.indirect() else own
        self._write(f"| {name} without the {part} | {' | '.join(values)} |\n")


@cache
def _exchangeable() -> tuple[dict[str, tuple[str, ...]], re.Pattern[str]]:
    """Words with what may replace them, and a pattern that finds such a word."""
    words = {same[0]: same for same in templates().passages.synonyms}
    longest_first = sorted(words, key=len, reverse=True)
    return words, re.compile(rf"(?<!an )(?<!more )\b({'|'.join(map(re.escape, longest_first))})\b")


def vary(text: str, rng: Random) -> str:
    """The text with each exchangeable word drawn again."""
    words, pattern = _exchangeable()
    return pattern.sub(lambda match: rng.choice(words[match[1]]), text)
