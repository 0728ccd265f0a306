"""Questions about results: scores of a method, of many methods, and ablations.

A kind is planned for an exact number of gold papers.
"""

from __future__ import annotations

from collections.abc import Sequence

from env.problems.papers import scores
from env.problems.papers.asked import Asked, NearMiss
from env.problems.papers.plan import Cell, Draft, Key, Line, Plan, Section


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
