"""Plans of a collection's papers before they are written: the statements of each.

A statement is a `Line` with the keys of the facts that it states. A question asks for keys, so a
sentence is evidence of a question or it is not, whatever words it uses: uniqueness is a matter of
keys. Neighbours: `asking_*.py` plan questions with this, `writing.py` makes text of the plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from env.problems.papers.field import Method, make_field
from env.problems.papers.forms import Forms, Pen
from env.problems.papers.reader import Role, Section, Ways, templates
from env.problems.settings import LevelSettings

Key = tuple[str, ...]
"""One fact of a collection, such as ("score", "3", "GSR", "Kalvot-QA", "EM", "test")."""

Place = Section | Literal["abstract"]


class Line(NamedTuple):
    """A sentence, a passage without facts, or a row of a table."""

    text: str
    states: tuple[Key, ...] = ()


class Cell(NamedTuple):
    """Method, benchmark, metric and split of a score."""

    abbr: str
    bench: str
    metric: str
    split: str


@dataclass
class Plan:
    """One paper before it is written."""

    number: int
    role: Role
    own: Method | None
    """The method that it proposes."""
    words: int
    alias: str
    """Words for its own method when it uses no name."""
    told: dict[Place, list[list[Line]]] = field(default_factory=dict)
    """Statements by section; those of one list stay together, in order."""
    cells: dict[Cell, Key] = field(default_factory=dict)
    """Scores that a table of this paper shows if it has their row and column."""
    touched: set[str] = field(default_factory=set)
    """Aspects of which it has said something."""
    canary: bool = False

    def add(self, section: Place, *lines: Line) -> None:
        """Plan statements that stay together."""
        self.told.setdefault(section, []).append(list(lines))


class Draft:
    """A collection while it is planned.

    Args:
        rng: of the collection.
        reserved: whether it has names and forms that only the test split may hold.
        level: papers, near misses, share of indirect statements.
        words: of a middling paper.
        canary: one paper orders its reader about, and is never gold.
    """

    def __init__(
        self, rng: Random, reserved: bool, level: LevelSettings, words: int, canary: bool
    ) -> None:
        self.rng = rng
        self.level = level
        # A test paper mixes forms that training has and forms that it has not.
        self.pen = Pen(rng, 0.5 if reserved else 0.0)
        roles = _roles(level.papers)
        self.field = make_field(rng, roles.count("method"), reserved)
        rng.shuffle(roles)
        methods = iter(self.field.methods)
        self.plans = [
            Plan(
                number=i,
                role=role,
                own=next(methods) if role == "method" else None,
                words=round(words * rng.uniform(0.4, 2.2)),
                alias=rng.choice(templates().results.aliases),
            )
            for i, role in enumerate(roles)
        ]
        if canary:
            rng.choice([plan for plan in self.plans if plan.own]).canary = True
        self.asked_cells: set[Cell] = set()
        """Only papers planned as gold may report these."""
        self.boards: set[tuple[str, str]] = set()
        """(benchmark, metric): here only papers planned as gold report their own method."""
        self.taken: set[str] = set()
        """Methods that a question asks for."""
        self.asked: set[str] = set()
        """Aspects that a question asks for."""

    def indirect(self) -> bool:
        """Whether the next gold statement or question is in other words."""
        return self.rng.random() < self.level.indirect

    def paper_of(self, method: Method) -> Plan:
        """The paper that proposes a method."""
        return next(plan for plan in self.plans if plan.own is method)

    def free_methods(self) -> list[Method]:
        """Methods that no question has asked for, in random order."""
        methods = [
            plan.own
            for plan in self.plans
            if plan.own and not plan.canary and plan.own.abbr not in self.taken
        ]
        self.rng.shuffle(methods)
        return methods

    def take_method(self) -> Method | None:
        """A method that no question has asked for, for the next question; None: all are taken."""
        methods = self.free_methods()
        self.taken.update(method.abbr for method in methods[:1])
        return methods[0] if methods else None

    def gold_papers(self, count: int, first: Iterable[Plan] = ()) -> list[Plan]:
        """So many papers that may be gold: `first`, then reruns, then any."""
        chosen = list(first)
        rest = [plan for plan in self.plans if not plan.canary and plan not in chosen]
        self.rng.shuffle(rest)
        rest.sort(key=lambda plan: plan.role != "rerun")
        return (chosen + rest)[:count]

    def others(self, gold: Iterable[Plan]) -> list[Plan]:
        """The papers beside these, in random order."""
        numbers = [plan.number for plan in gold]
        rest = [plan for plan in self.plans if plan.number not in numbers]
        self.rng.shuffle(rest)
        return rest

    # --- names

    def who(self, plan: Plan, method: Method, indirect: bool) -> str:
        """How a paper calls a method in a statement."""
        if indirect:
            return plan.alias if plan.own is method else method.abbr
        return self.rng.choice((method.full, method.abbr))

    def where(self, bench: str, split: str, indirect: bool) -> str:
        """How a paper names a benchmark's split."""
        results = templates().results
        if indirect and bench.endswith("-v2") and self.rng.random() < 0.5:
            bench = results.second_release.format(bench=bench.removesuffix("-v2"))
        return self.pen.phrase(results.where[split].of(indirect), bench=bench)

    def metric(self, short: str, indirect: bool) -> str:
        """How a paper or a question calls a metric."""
        return short if indirect else self.field.metrics[short]

    def subject(self) -> dict[str, str]:
        """Placeholders that name the documents and the task."""
        return {"units": self.field.units, "unit": self.field.unit, "task": self.field.task}

    def question(self, ask: Ways | Forms, *methods: Method, bench: str = "", **slots: str) -> str:
        """A question for methods or a benchmark's test split, perhaps in other words."""
        indirect = self.indirect()
        names = [m.full if indirect else f"{m.full} ({m.abbr})" for m in methods]
        where = templates().results.where["test"].of(indirect).common[0].format(bench=bench)
        slots |= {"asked": listing(names), "where": where, "units": self.field.units}
        return self.pen.write(ask.of(indirect) if isinstance(ask, Ways) else ask, **slots)

    # --- statements

    def line(self, ways: Forms, *states: Key, **slots: str) -> Line:
        """A sentence that the collection does not hold yet.

        Raises:
            ValueError: the forms are used up; give them more numbers or choices.
        """
        text = self.pen.once(ways, **slots)
        if text is None:
            raise ValueError(f"the forms are used up: {ways.common[0]!r} with {slots}")
        return Line(text, states)

    def tell(
        self,
        plan: Plan,
        key: Key,
        ways: Ways,
        sections: tuple[Section, Section],
        repeat_chance: float,
        method: Method | None,
        slots: dict[str, str],
    ) -> Key:
        """Let a paper state a fact in one section, and with `repeat_chance` in another one.

        Args:
            plan: the paper.
            key: the fact.
            ways: its statements.
            sections: the first one, and the one that may repeat it.
            repeat_chance: that of the second statement.
            method: that the statement names, if it names one.
            slots: what else the statement holds.

        Returns:
            The key of the fact.
        """
        for section in sections[: 1 + (self.rng.random() < repeat_chance)]:
            indirect = self.indirect()
            who = {"who": self.who(plan, method, indirect)} if method else {}
            plan.add(section, self.line(ways.of(indirect), key, **who, **slots))
        return key

    def tell_score(self, plan: Plan, cell: Cell, cites: Plan | None = None) -> Key:
        """Let a paper report a score: in its results, perhaps in abstract, table, conclusion.

        Args:
            plan: the paper.
            cell: what was measured.
            cites: the paper whose number it repeats; None: it has measured itself.

        Returns:
            The key of the fact.
        """
        source, texts = cites or plan, templates().results
        key = ("score", str(source.number), *cell)
        value = self.field.score(source.number, *cell)
        method = self.field.method(cell.abbr)
        own = plan.own is method
        ways = texts.cited if cites else texts.own if own else texts.rerun
        places: list[tuple[Place, Forms]] = [("results", ways)]
        if own:
            chances: tuple[tuple[Place, float], ...] = (("abstract", 0.5), ("conclusion", 0.25))
            places += [(at, texts.summary) for at, share in chances if self.rng.random() < share]
        for section, ways in places:
            indirect = self.indirect()
            who, metric = self.who(plan, method, indirect), self.metric(cell.metric, indirect)
            slots = {"who": who, "value": value, "metric": metric}
            if indirect and section == "results" and not cites and self.rng.random() < 0.4:
                plan.add(section, *self._pair(cell, key, slots))
            else:
                where = self.where(cell.bench, cell.split, indirect)
                plan.add(section, self.line(ways, key, where=where, **slots))
        if not cites and self.rng.random() < 0.6:
            plan.cells[cell] = key
        return key

    def _pair(self, cell: Cell, key: Key, slots: dict[str, str]) -> tuple[Line, Line]:
        """Two benchmarks, then the score on "the former" or "the latter"."""
        texts = templates().results
        other = self.rng.choice([bench for bench in self.field.benchmarks if bench != cell.bench])
        former = self.rng.random() < 0.5
        first, second = (cell.bench, other) if former else (other, cell.bench)
        which = "former" if former else "latter"
        lead = self.line(texts.pair, first=first, second=second)
        return lead, self.line(texts.pair_of, key, which=which, **slots)

    def may_show(self, plan: Plan, cell: Cell) -> bool:
        """Whether a paper may report this beside what is planned."""
        if cell in self.asked_cells:
            return False
        own = plan.own is not None and plan.own.abbr == cell.abbr
        return not (own and cell.split == "test" and (cell.bench, cell.metric) in self.boards)


def listing(items: Sequence[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _roles(papers: int) -> list[Role]:
    counts: dict[Role, int] = {"data": 1 + (papers >= 8), "rerun": 1 + (papers >= 10)}
    counts["method"] = papers - sum(counts.values())
    return [role for role, count in counts.items() for _ in range(count)]
