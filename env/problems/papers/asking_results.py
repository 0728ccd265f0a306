"""Questions about results: scores of a method, of many methods, and ablations.

A kind is planned for an exact number of gold papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from env.problems.papers.asked import Asked, NearMiss
from env.problems.papers.plan import Cell, Draft, Key, Line, Plan
from env.problems.papers.reader import Section, templates


def _free_target(draft: Draft) -> tuple[str, str]:
    """A (benchmark, metric) that no question is about."""
    asked_targets = {(cell.bench, cell.metric) for cell in draft.asked_cells} | draft.boards
    field = draft.field
    targets = [(bench, metric) for bench in field.benchmarks for metric in field.metrics]
    return draft.rng.choice([target for target in targets if target not in asked_targets])


def _named(draft: Draft, cell: Cell) -> dict[str, str]:
    """Method, split and metric with full names."""
    return {
        "who": draft.field.method(cell.abbr).full,
        "where": draft.where(cell.bench, cell.split, indirect=False),
        "metric": draft.metric(cell.metric, indirect=False),
    }


def _explicit_score(draft: Draft, plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
    """A score said in plain words, with full names."""
    if not draft.may_show(plan, cell) or cell in plan.cells:
        return None
    texts, key = templates().results, ("score", str(plan.number), *cell)
    ways = texts.own if plan.own is draft.field.method(cell.abbr) else texts.rerun
    value = draft.field.score(plan.number, *cell)
    return "results", draft.line(ways, key, value=value, **_named(draft, cell))


def _variant(draft: Draft, plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
    """The score of a method without one of its parts."""
    part = draft.rng.choice(draft.field.method(cell.abbr).parts[1:])
    key = ("variant", str(plan.number), part, *cell)
    value = draft.field.score(plan.number, cell.abbr, cell.bench, cell.metric, f"no {part}")
    slots = {"part": part, "value": value, **_named(draft, cell)}
    return "ablation", draft.line(templates().results.variant, key, **slots)


def _near_misses(
    draft: Draft,
    cell_of: Callable[[Plan], Cell],
    target: tuple[str, str],
    silent: Sequence[Plan],
) -> list[NearMiss]:
    """Scores that look like those of a cell, and experiments that were not made.

    Args:
        draft: the collection.
        cell_of: the cell that a paper's near miss resembles.
        target: benchmark and metric of every cell.
        silent: papers that mention no experiment that was not made.
    """
    bench, metric = target
    release = bench.removesuffix("-v2") if bench.endswith("-v2") else f"{bench}-v2"
    metrics = [other for other in draft.field.metrics if other != metric]

    def absent(plan: Plan) -> tuple[Section, Line] | None:
        if plan in silent:
            return None
        return "setup", draft.line(templates().results.absent, **_named(draft, cell_of(plan)))

    def score(plan: Plan, cell: Cell) -> tuple[Section, Line] | None:
        return _explicit_score(draft, plan, cell)

    return [
        lambda plan: score(plan, cell_of(plan)._replace(split="dev")),
        absent,
        lambda plan: score(plan, cell_of(plan)._replace(bench=release)),
        lambda plan: _variant(draft, plan, cell_of(plan)),
        lambda plan: score(plan, cell_of(plan)._replace(metric=draft.rng.choice(metrics))),
    ]


def ask_score(draft: Draft, gold: int) -> Asked | None:
    """Ask for the reports on one method on one benchmark; they may contradict each other."""
    method, target = draft.take_method(), _free_target(draft)
    if method is None:
        return None
    cell = Cell(method.abbr, *target, "test")
    draft.asked_cells.add(cell)
    own = draft.paper_of(method)
    papers = draft.gold_papers(gold, [own])
    cited = gold >= 3 and draft.rng.random() < 0.5
    keys: dict[Key, None] = {}
    for plan in papers:
        cites = own if cited and plan is papers[-1] else None
        keys[draft.tell_score(plan, cell, cites)] = None
    others = [other.abbr for other in draft.field.methods if other is not method]

    def another_method(plan: Plan) -> tuple[Section, Line] | None:
        return _explicit_score(draft, plan, cell._replace(abbr=draft.rng.choice(others)))

    bench, metric = target[0], draft.field.metrics[target[1]]
    text = draft.question(templates().results.ask_score, method, bench=bench, metric=metric)
    near = [*_near_misses(draft, lambda _: cell, target, papers), another_method]
    return Asked("score", text, tuple(keys), papers, near)


def ask_board(draft: Draft, gold: int) -> Asked | None:
    """Ask for the reports of papers on their own methods on one benchmark."""
    target = _free_target(draft)
    makers = [plan for plan in draft.plans if plan.own and not plan.canary]
    if len(makers) < gold:
        return None
    draft.boards.add(target)
    papers = draft.rng.sample(makers, gold)

    def cell_of(plan: Plan) -> Cell:
        own = plan.own or draft.rng.choice(draft.field.methods)
        return Cell(own.abbr, *target, "test")

    keys = [draft.tell_score(plan, cell_of(plan)) for plan in papers]
    bench, metric = target[0], draft.field.metrics[target[1]]
    text = draft.question(templates().results.ask_board, bench=bench, metric=metric)
    silent = [plan for plan in draft.plans if plan.own is None or plan in papers]
    near = _near_misses(draft, cell_of, target, silent)
    return Asked("board", text, tuple(keys), papers, near)


# --- ablations


def ask_ablation(draft: Draft, gold: int) -> Asked | None:
    """Ask for the loss without one part of a method."""
    method, texts = draft.take_method(), templates().results.ablation
    if method is None:
        return None
    part = method.parts[0]
    papers = draft.gold_papers(gold, [draft.paper_of(method)])
    keys = [("ablation", str(plan.number), method.abbr, part) for plan in papers]
    for plan, key in zip(papers, keys, strict=True):
        indirect = draft.indirect()
        slots = {
            "who": draft.who(plan, method, indirect),
            "part": part,
            "value": draft.pen.fill("{points}"),
            **_random_place(draft, indirect),
        }
        lead = [Line(draft.pen.write(texts.lead, part=part))] if indirect else []
        plan.add("ablation", *lead, draft.line(texts.of(indirect), key, **slots))

    def near(_: Plan) -> tuple[Section, Line]:
        slots = _random_place(draft, indirect=False)
        slots["decoy_where"] = _random_place(draft, indirect=False)["where"]
        slots["other_part"] = draft.rng.choice(method.parts[1:])
        slots["value"] = draft.pen.fill("{points}")
        return "ablation", draft.line(texts.near, who=method.full, part=part, **slots)

    text = draft.question(texts.ask, method, part=part)
    return Asked("ablation", text, tuple(keys), papers, [near])


def _random_place(draft: Draft, indirect: bool) -> dict[str, str]:
    return {
        "where": draft.where(draft.rng.choice(draft.field.benchmarks), "test", indirect),
        "metric": draft.metric(draft.rng.choice(list(draft.field.metrics)), indirect),
    }
