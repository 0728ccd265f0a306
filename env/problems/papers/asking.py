"""Questions of each kind: what is planned as gold, what is planned to look like it.

A kind is planned for an exact number of gold papers. Near misses are written after all questions
of a group are planned, so that none becomes evidence of another question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from env.problems.papers import data_facts, scores
from env.problems.papers.aspects import ASPECTS
from env.problems.papers.field import Method
from env.problems.papers.plan import Cell, Draft, Key, Line, Plan, Section
from env.problems.papers.traits import CAUSES, TRAITS, WEAKNESSES

ASPECT_SECTIONS: Sequence[Section] = ("setup", "results", "ablation", "limits")
TRAIT_SECTIONS: Mapping[str, Section] = {
    "weakness": "limits",
    "cause": "results",
    "updates": "setup",
    "size": "method",
}

NearMiss = Callable[[Plan], "tuple[Section, Line] | None"]
"""A statement that looks like gold, for a paper; None where that paper cannot make it."""


@dataclass
class Asked:
    """A planned question."""

    kind: str
    text: str
    keys: tuple[Key, ...]
    """The facts asked for."""
    papers: list[Plan]
    """The gold papers."""
    near: Sequence[NearMiss]
    near_in_gold: bool = True
    """Gold papers may hold the near misses as well."""
    missed: list[tuple[Plan, str]] = field(default_factory=list)
    """The near misses that were written, by paper."""


def listing(items: Sequence[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def add_near_misses(draft: Draft, asked: Asked) -> None:
    """Write `distractors` near misses, each kind in turn, spread over the papers."""
    others = draft.others(asked.papers)
    gold = list(asked.papers) if asked.near_in_gold else []
    # Beside gold first, then in it: a paper that matters is not told by its words.
    papers = cycle(others[: len(others) // 2 + 1] + gold + others[len(others) // 2 + 1 :])
    left = draft.level.distractors
    tries = range(12 * left)
    for _, miss in zip(tries, cycle(asked.near), strict=False):
        if left <= 0:
            return
        plan = next(papers)
        made = miss(plan)
        if made is not None:
            plan.add(made[0], made[1])
            asked.missed.append((plan, made[1].text))
            left -= 1


# --- results


def _free_target(draft: Draft) -> tuple[str, str] | None:
    """A (benchmark, metric) that no question is about."""
    known = {(cell.bench, cell.metric) for cell in draft.asked_cells} | draft.boards
    free = [
        (bench, metric.short)
        for bench in draft.field.benchmarks
        for metric in draft.field.metrics
        if (bench, metric.short) not in known
    ]
    return draft.rng.choice(free) if free else None


def _other_release(bench: str) -> str:
    return bench.removesuffix("-v2") if bench.endswith("-v2") else f"{bench}-v2"


def _explicit_score(draft: Draft, plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
    """A score said in plain words, with full names."""
    if not draft.may_show(plan, cell) or cell in plan.cells:
        return None
    method = draft.field.method(cell.abbr)
    line = draft.line(
        scores.OWN if plan.own is method else scores.RERUN,
        ("score", str(plan.number), *cell),
        who=method.full,
        value=draft.field.score(plan.number, *cell),
        metric=draft.metric(cell.metric, indirect=False),
        where=draft.where(cell.bench, cell.split, indirect=False),
    )
    return "results", line


def _absent(draft: Draft, plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
    """An experiment that was not made."""
    line = draft.line(
        scores.ABSENT,
        who=draft.field.method(cell.abbr).full,
        where=draft.where(cell.bench, cell.split, indirect=False),
        metric=draft.metric(cell.metric, indirect=False),
    )
    return "setup", line


def _variant(draft: Draft, plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
    """The score of a method without one of its parts."""
    method = draft.field.method(cell.abbr)
    part = draft.rng.choice(method.parts[1:])
    key = ("variant", str(plan.number), part, *cell)
    value = draft.field.score(plan.number, cell.abbr, cell.bench, cell.metric, f"no {part}")
    line = draft.line(
        scores.VARIANT,
        key,
        who=method.full,
        part=part,
        value=value,
        metric=draft.metric(cell.metric, indirect=False),
        where=draft.where(cell.bench, cell.split, indirect=False),
    )
    return "ablation", line


def _score_near_misses(draft: Draft, cell: Cell, gold: Sequence[Plan]) -> list[NearMiss]:
    field, rng = draft.field, draft.rng
    numbers = [plan.number for plan in gold]
    metrics = [metric.short for metric in field.metrics if metric.short != cell.metric]

    def another_method(plan: Plan) -> tuple[Section, Line] | None:
        abbr = rng.choice([m.abbr for m in field.methods if m.abbr != cell.abbr])
        return _explicit_score(draft, plan, cell._replace(abbr=abbr))

    def absent(plan: Plan) -> tuple[Section, Line] | None:
        return None if plan.number in numbers else _absent(draft, plan, cell)

    return [
        lambda plan: _explicit_score(draft, plan, cell._replace(split="dev")),
        absent,
        lambda plan: _explicit_score(draft, plan, cell._replace(bench=_other_release(cell.bench))),
        lambda plan: _variant(draft, plan, cell),
        lambda plan: _explicit_score(draft, plan, cell._replace(metric=rng.choice(metrics))),
        another_method,
    ]


def ask_score(draft: Draft, gold: int) -> Asked | None:
    """What papers report for one method on one benchmark; they may contradict each other."""
    methods, target = draft.free_methods(), _free_target(draft)
    if not methods or target is None:
        return None
    method = methods[0]
    draft.taken.add(method.abbr)
    cell = Cell(method.abbr, *target, "test")
    draft.asked_cells.add(cell)
    own = draft.paper_of(method)
    papers = draft.gold_papers(gold, [own])
    cited = gold >= 3 and draft.rng.random() < 0.5
    keys: dict[Key, None] = {}
    for plan in papers:
        cites = own if cited and plan is papers[-1] else None
        keys[draft.tell_score(plan, cell, cites)] = None
    indirect = draft.indirect()
    text = draft.pen.write(
        scores.ASK_ONE_OBLIQUE if indirect else scores.ASK_ONE_PLAIN,
        asked=draft.asked_name(method, indirect),
        where=scores.question_where(cell.bench, indirect),
        metric=draft.field.metric(cell.metric).full,
    )
    return Asked("score", text, tuple(keys), papers, _score_near_misses(draft, cell, papers))


def ask_board(draft: Draft, gold: int) -> Asked | None:
    """What papers report for their own methods on one benchmark."""
    target = _free_target(draft)
    makers = [plan for plan in draft.plans if plan.own and not plan.canary]
    if target is None or len(makers) < gold:
        return None
    draft.boards.add(target)
    papers = draft.rng.sample(makers, gold)
    keys = []
    for plan in papers:
        assert plan.own is not None
        keys.append(draft.tell_score(plan, Cell(plan.own.abbr, *target, "test")))
    bench, metric = target
    others = [other.short for other in draft.field.metrics if other.short != metric]

    def cell_of(plan: Plan) -> Cell:
        own = plan.own or draft.rng.choice(draft.field.methods)
        return Cell(own.abbr, bench, metric, "test")

    def absent(plan: Plan) -> tuple[Section, Line] | None:
        return _absent(draft, plan, cell_of(plan)) if plan.own and plan not in papers else None

    indirect = draft.indirect()
    text = draft.pen.write(
        scores.ASK_BOARD_OBLIQUE if indirect else scores.ASK_BOARD_PLAIN,
        where=scores.question_where(bench, indirect),
        metric=draft.field.metric(metric).full,
    )
    near: list[NearMiss] = [
        lambda plan: _explicit_score(draft, plan, cell_of(plan)._replace(split="dev")),
        absent,
        lambda plan: _explicit_score(
            draft, plan, cell_of(plan)._replace(bench=_other_release(bench))
        ),
        lambda plan: _variant(draft, plan, cell_of(plan)),
        lambda plan: _explicit_score(
            draft, plan, cell_of(plan)._replace(metric=draft.rng.choice(others))
        ),
    ]
    return Asked("board", text, tuple(keys), papers, near)


# --- ablations


def ask_ablation(draft: Draft, gold: int) -> Asked | None:
    """What is lost without one part of a method."""
    methods = draft.free_methods()
    if not methods:
        return None
    method = methods[0]
    draft.taken.add(method.abbr)
    part = method.parts[0]
    papers = draft.gold_papers(gold, [draft.paper_of(method)])
    keys = []
    for plan in papers:
        key = ("ablation", str(plan.number), method.abbr, part)
        keys.append(key)
        indirect = draft.indirect()
        slots = {
            "who": draft.who(plan, method, indirect),
            "part": part,
            "value": draft.pen.fill("{points}"),
            **_random_place(draft, indirect),
        }
        if indirect:
            lead = Line(draft.pen.write(scores.ABLATION_PAIR, part=part))
            plan.add("ablation", lead, draft.line(scores.ABLATION_OBLIQUE, key, **slots))
        else:
            plan.add("ablation", draft.line(scores.ABLATION_PLAIN, key, **slots))

    def near(plan: Plan) -> tuple[Section, Line]:
        slots = _random_place(draft, indirect=False)
        decoy = _random_place(draft, indirect=False)["where"]
        line = draft.line(
            scores.ABLATION_NEAR,
            who=method.full,
            part=part,
            other_part=draft.rng.choice(method.parts[1:]),
            value=draft.pen.fill("{points}"),
            decoy_where=decoy,
            **slots,
        )
        return "ablation", line

    indirect = draft.indirect()
    text = draft.pen.write(
        scores.ASK_ABLATION_OBLIQUE if indirect else scores.ASK_ABLATION_PLAIN,
        asked=draft.asked_name(method, indirect),
        part=part,
    )
    return Asked("ablation", text, tuple(keys), papers, [near])


def _random_place(draft: Draft, indirect: bool) -> dict[str, str]:
    return {
        "where": draft.where(draft.rng.choice(draft.field.benchmarks), "test", indirect),
        "metric": draft.metric(draft.rng.choice(draft.field.metrics).short, indirect),
    }


# --- traits of a method


def trait_value(draft: Draft, trait: str) -> str:
    """A value that a trait may have."""
    if trait == "updates":
        return draft.pen.fill("{thousands}")
    if trait == "size":
        return draft.pen.fill("{hundreds}")
    bank = WEAKNESSES if trait == "weakness" else CAUSES
    return draft.rng.choice(bank).format(unit=draft.field.unit, units=draft.field.units)


def tell_trait(draft: Draft, plan: Plan, trait: str, method: Method, value: str) -> Key:
    """Let a paper state a trait, perhaps a second time in its conclusion."""
    key = (trait, str(plan.number), method.abbr)
    topic = TRAITS[trait]
    slots = {**draft.pen.numbers(), **_subject(draft)}
    sections: list[Section] = [TRAIT_SECTIONS[trait]]
    if draft.rng.random() < 0.35:
        sections.append("conclusion")
    for section in sections:
        indirect = draft.indirect()
        line = draft.line(
            topic.oblique if indirect else topic.plain,
            key,
            who=draft.who(plan, method, indirect),
            value=value,
            **slots,
        )
        plan.add(section, line)
    return key


def _ask_trait(trait: str) -> Kind:
    def ask(draft: Draft, gold: int) -> Asked | None:
        methods = draft.free_methods()
        if not methods:
            return None
        method = methods[0]
        draft.taken.add(method.abbr)
        papers = draft.gold_papers(gold, [draft.paper_of(method)])
        values = [trait_value(draft, trait)]
        keys = []
        for plan in papers:
            value = draft.rng.choice((values[0], trait_value(draft, trait)))
            values.append(value)
            keys.append(tell_trait(draft, plan, trait, method, value))

        def near(plan: Plan) -> tuple[Section, Line]:
            decoy = trait_value(draft, trait)
            while decoy in values:
                decoy = trait_value(draft, trait)
            others = [other.full for other in draft.field.methods if other is not method]
            line = draft.line(
                TRAITS[trait].near,
                who=method.full,
                other=draft.rng.choice(others),
                decoy=decoy,
                units=draft.field.units,
            )
            return TRAIT_SECTIONS[trait], line

        indirect = draft.indirect()
        text = draft.pen.write(
            TRAITS[trait].ask_oblique if indirect else TRAITS[trait].ask_plain,
            asked=draft.asked_name(method, indirect),
        )
        return Asked(trait, text, tuple(keys), papers, [near])

    return ask


# --- facts that lie in two papers


def tell_size(draft: Draft, plan: Plan, corpus: str) -> Key:
    """Let a paper say how large a corpus is, perhaps twice."""
    key = ("size of corpus", corpus)
    value = draft.field.size(corpus)
    sections: list[Section] = ["method" if plan.role == "data" else "setup"]
    if draft.rng.random() < 0.3:
        sections.append("introduction")
    for section in sections:
        ways = data_facts.SIZE_OBLIQUE if draft.indirect() else data_facts.SIZE_PLAIN
        slots = {"corpus": corpus, "units": draft.field.units, "unit": draft.field.unit}
        plan.add(section, draft.line(ways, key, value=value, **slots))
    return key


_SPLITS = {2: (1, 1), 3: (2, 1), 4: (2, 2), 5: (3, 2), 6: (3, 3)}
"""Gold papers: those that propose a method, and those that know a corpus."""


def ask_training(draft: Draft, gold: int) -> Asked | None:
    """How large the corpora are on which methods were trained."""
    methods = draft.free_methods()
    count, sources = _SPLITS.get(gold, (99, 0))
    if len(methods) < count or draft.level.indirect == 0:
        return None
    methods = methods[:count]
    draft.taken.update(method.abbr for method in methods)
    papers = [draft.paper_of(method) for method in methods]
    others = [plan for plan in draft.others(papers) if not plan.canary]
    others.sort(key=lambda plan: plan.role != "data")
    papers += others[:sources]
    keys: list[Key] = []
    for i, method in enumerate(methods):
        keys += [
            ("trained", method.abbr),
            tell_size(draft, papers[count + i % sources], method.corpus),
        ]

    def near_size(plan: Plan) -> tuple[Section, Line]:
        corpus = draft.rng.choice(methods).corpus
        line = draft.line(
            data_facts.SIZE_NEAR,
            corpus=corpus,
            short=corpus.removeprefix("the "),
            value=draft.pen.fill("{thousands}"),
            units=draft.field.units,
        )
        return "introduction", line

    def near_trained(plan: Plan) -> tuple[Section, Line]:
        method = draft.rng.choice(methods)
        corpora = [corpus for corpus in draft.field.corpora if corpus != method.corpus]
        corpus = draft.rng.choice(corpora)
        return "related", draft.line(data_facts.TRAINED_NEAR, who=method.full, corpus=corpus)

    indirect = draft.indirect()
    one = data_facts.ASK_OBLIQUE if indirect else data_facts.ASK_PLAIN
    text = draft.pen.write(
        one if count == 1 else data_facts.ASK_MANY,
        asked=listing([draft.asked_name(method, indirect) for method in methods]),
        units=draft.field.units,
    )
    return Asked("training", text, tuple(keys), papers, [near_size, near_trained])


# --- what any paper may say


def tell_aspect(draft: Draft, plan: Plan, aspect: str) -> Key:
    """Let a paper make a statement on an aspect, perhaps twice, with the same numbers."""
    plan.touched.add(aspect)
    key = ("aspect", aspect, str(plan.number))
    topic = ASPECTS[aspect]
    texts: list[str] = []
    while not texts:
        # What another paper has said with these numbers is not said again.
        slots = {**draft.pen.numbers(), **_subject(draft)}
        for _ in range(1 + (draft.rng.random() < 0.3)):
            ways = topic.oblique if draft.indirect() else topic.plain
            text = draft.pen.once(ways, **slots)
            texts += [text] if text else []
    for text in texts:
        plan.add(draft.rng.choice(ASPECT_SECTIONS), Line(text, (key,)))
    return key


def miss_aspect(draft: Draft, plan: Plan, aspect: str) -> tuple[Section, Line] | None:
    """A near miss of an aspect, for a paper that has said nothing of it."""
    if aspect in plan.touched:
        return None
    plan.touched.add(aspect)
    return draft.rng.choice(ASPECT_SECTIONS), draft.line(ASPECTS[aspect].near, **_subject(draft))


def _subject(draft: Draft) -> dict[str, str]:
    field = draft.field
    return {"units": field.units, "unit": field.unit, "task": field.task}


def ask_aspect(draft: Draft, gold: int) -> Asked | None:
    """Which papers say a thing of their own work."""
    aspect = draft.rng.choice([aspect for aspect in ASPECTS if aspect not in draft.asked])
    draft.asked.add(aspect)
    papers = draft.rng.sample([plan for plan in draft.plans if not plan.canary], gold)
    keys = tuple(tell_aspect(draft, plan, aspect) for plan in papers)
    topic = ASPECTS[aspect]
    text = draft.pen.write(
        topic.ask_oblique if draft.indirect() else topic.ask_plain, units=draft.field.units
    )
    near: list[NearMiss] = [lambda plan: miss_aspect(draft, plan, aspect)]
    return Asked("aspect", text, keys, papers, near, near_in_gold=False)


Kind = Callable[[Draft, int], "Asked | None"]
"""Plans a question with exactly so many gold papers; None where the group has no room for it."""

KINDS: Mapping[str, tuple[Kind, int, int]] = {
    "score": (ask_score, 1, 99),
    "board": (ask_board, 2, 99),
    "ablation": (ask_ablation, 1, 2),
    "weakness": (_ask_trait("weakness"), 1, 3),
    "cause": (_ask_trait("cause"), 1, 3),
    "updates": (_ask_trait("updates"), 1, 2),
    "size": (_ask_trait("size"), 1, 2),
    "training": (ask_training, 2, 6),
    "aspect": (ask_aspect, 1, 99),
}
"""Each kind with the fewest and the most gold papers it is asked with."""
