"""Who says what: the papers of a group before they are written.

A statement is a `Line` with the keys of the facts that it states. A question asks for keys, so a
sentence is evidence of a question or it is not, whatever words it uses: uniqueness is a matter of
keys. Neighbours: `asking_*.py` plan questions with this, `writing.py` makes text of the plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from env.problems.papers import data_facts, scores
from env.problems.papers.field import Method, make_field
from env.problems.papers.forms import Forms, Pen
from env.problems.settings import LevelSettings

Key = tuple[str, ...]
"""One fact of a group, such as ("score", "3", "GSR", "Kalvot-QA", "EM", "test")."""

Role = Literal["method", "data", "rerun"]
Section = Literal[
    "abstract",
    "introduction",
    "related",
    "method",
    "setup",
    "results",
    "ablation",
    "limits",
    "conclusion",
]


class Line(NamedTuple):
    """A sentence, a passage without facts, or a row of a table."""

    text: str
    states: tuple[Key, ...] = ()


class Cell(NamedTuple):
    """What a score is of."""

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
    """What it calls its own method when it uses no name."""
    told: dict[Section, list[list[Line]]] = field(default_factory=dict)
    """Statements by section; those of one list stay together, in order."""
    cells: dict[Cell, Key] = field(default_factory=dict)
    """Scores that a table of this paper shows if it has their row and column."""
    touched: set[str] = field(default_factory=set)
    """Aspects of which it has said something."""
    canary: bool = False

    def add(self, section: Section, *lines: Line) -> None:
        """Plan statements that stay together."""
        self.told.setdefault(section, []).append(list(lines))


class Draft:
    """A group while it is planned.

    Args:
        rng: of the group.
        reserved: share of names and forms that only the test split may hold.
        level: papers, near misses, share of indirect statements.
        words: of a middling paper.
        canary: one paper orders its reader about, and is never gold.
    """

    def __init__(
        self, rng: Random, reserved: float, level: LevelSettings, words: int, canary: bool
    ) -> None:
        self.rng = rng
        self.level = level
        # A test paper mixes forms that training has and forms that it has not.
        self.pen = Pen(rng, reserved / 2)
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
                alias=rng.choice(scores.ALIASES),
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

    def gold_papers(self, count: int, first: Iterable[Plan] = ()) -> list[Plan]:
        """So many papers that may be gold: `first`, then reruns, then any."""
        chosen = list(first)
        rest = [plan for plan in self.plans if not plan.canary and plan not in chosen]
        self.rng.shuffle(rest)
        rest.sort(key=lambda plan: plan.role != "rerun")
        return (chosen + rest)[:count]

    def others(self, gold: Iterable[Plan]) -> list[Plan]:
        """The papers beside these, in random order."""
        known = [plan.number for plan in gold]
        rest = [plan for plan in self.plans if plan.number not in known]
        self.rng.shuffle(rest)
        return rest

    # --- names

    def who(self, plan: Plan, method: Method, indirect: bool) -> str:
        """How a paper calls a method in a statement."""
        if indirect:
            return plan.alias if plan.own is method else method.abbr
        return self.rng.choice((method.full, method.abbr))

    def asked_name(self, method: Method, indirect: bool) -> str:
        """How a question calls a method."""
        return method.full if indirect else f"{method.full} ({method.abbr})"

    def where(self, bench: str, split: str, indirect: bool) -> str:
        """How a paper names a benchmark's split."""
        ways = scores.WHERE_OBLIQUE if indirect else scores.WHERE_PLAIN
        if indirect and bench.endswith("-v2") and self.rng.random() < 0.5:
            bench = scores.SECOND_RELEASE.format(bench=bench.removesuffix("-v2"))
        return self.pen.phrase(ways[split], bench=bench)

    def metric(self, short: str, indirect: bool) -> str:
        """How a paper or a question calls a metric."""
        return short if indirect else self.field.metric(short).full

    # --- statements

    def line(self, ways: Forms, *states: Key, **slots: str) -> Line:
        """A sentence that the group does not hold yet.

        Raises:
            ValueError: the forms are used up; give them more numbers or choices.
        """
        text = self.pen.once(ways, **slots)
        if text is None:
            raise ValueError(f"the forms are used up: {ways.common[0]!r} with {slots}")
        return Line(text, states)

    def tell_score(self, plan: Plan, cell: Cell, cites: Plan | None = None) -> Key:
        """Let a paper report a score: in its results, perhaps in abstract, table, conclusion.

        Args:
            plan: the paper.
            cell: what was measured.
            cites: the paper whose number it repeats; None: it has measured itself.

        Returns:
            The key of the fact.
        """
        source = cites or plan
        key = ("score", str(source.number), *cell)
        value = self.field.score(source.number, *cell)
        method = self.field.method(cell.abbr)
        own = plan.own is method
        places: list[tuple[Section, Forms]] = [
            ("results", scores.CITED if cites else scores.OWN if own else scores.RERUN)
        ]
        if own:
            chances: tuple[tuple[Section, float], ...] = (("abstract", 0.5), ("conclusion", 0.25))
            places += [(at, scores.SUMMARY) for at, share in chances if self.rng.random() < share]
        for section, ways in places:
            indirect = self.indirect()
            slots = {
                "who": self.who(plan, method, indirect),
                "value": value,
                "metric": self.metric(cell.metric, indirect),
            }
            if indirect and section == "results" and not cites and self.rng.random() < 0.4:
                self._tell_of_a_pair(plan, cell, key, slots)
                continue
            where = self.where(cell.bench, cell.split, indirect)
            plan.add(section, self.line(ways, key, where=where, **slots))
        if not cites and self.rng.random() < 0.6:
            plan.cells[cell] = key
        return key

    def _tell_of_a_pair(self, plan: Plan, cell: Cell, key: Key, slots: dict[str, str]) -> None:
        """Two benchmarks, then the score on "the former" or "the latter"."""
        other = self.rng.choice([bench for bench in self.field.benchmarks if bench != cell.bench])
        former = self.rng.random() < 0.5
        first, second = (cell.bench, other) if former else (other, cell.bench)
        which = "former" if former else "latter"
        plan.add(
            "results",
            self.line(scores.PAIR, first=first, second=second),
            self.line(scores.PAIR_OF[cell.split], key, which=which, **slots),
        )

    def tell_training(self, plan: Plan) -> Key | None:
        """Let a paper say what its own method was trained on."""
        method = plan.own
        if method is None:
            return None
        key = ("trained", method.abbr)
        sections: list[Section] = ["setup"]
        if self.rng.random() < 0.3:
            sections.append("introduction")
        for section in sections:
            indirect = self.indirect()
            ways = data_facts.TRAINED_OBLIQUE if indirect else data_facts.TRAINED_PLAIN
            who = self.who(plan, method, indirect)
            plan.add(section, self.line(ways, key, who=who, corpus=method.corpus))
        return key

    def may_show(self, plan: Plan, cell: Cell) -> bool:
        """Whether a paper may report this beside what is planned."""
        if cell in self.asked_cells:
            return False
        own = plan.own is not None and plan.own.abbr == cell.abbr
        return not (own and cell.split == "test" and (cell.bench, cell.metric) in self.boards)


def _roles(papers: int) -> list[Role]:
    data = 1 if papers < 8 else 2
    rerun = 1 if papers < 10 else 2
    roles: list[Role] = ["data" for _ in range(data)]
    roles += ["rerun" for _ in range(rerun)]
    return roles + ["method" for _ in range(papers - data - rerun)]
