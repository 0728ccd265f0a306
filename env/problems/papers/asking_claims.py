"""Questions about what papers claim: traits of a method, its training data, their own work.

A kind is planned for an exact number of gold papers. Also tells such claims that are not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from env.problems.papers import data_facts
from env.problems.papers.asked import Asked, Kind, NearMiss
from env.problems.papers.aspects import ASPECTS
from env.problems.papers.field import Method
from env.problems.papers.plan import Draft, Key, Line, Plan, Section
from env.problems.papers.traits import CAUSES, TRAITS, WEAKNESSES

ASPECT_SECTIONS: Sequence[Section] = ("setup", "results", "ablation", "limits")
TRAIT_SECTIONS: Mapping[str, Section] = {
    "weakness": "limits",
    "cause": "results",
    "updates": "setup",
    "size": "method",
}


def listing(items: Sequence[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


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


def ask_trait(trait: str) -> Kind:
    """The kind of question that asks for one trait of one method; papers may disagree."""

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
    asked = draft.pen.write(
        topic.ask_oblique if draft.indirect() else topic.ask_plain, units=draft.field.units
    )
    # By its name the question is not that of another field.
    text = f"In work around {draft.field.benchmarks[0]}, {asked[0].lower()}{asked[1:]}"
    near: list[NearMiss] = [lambda plan: miss_aspect(draft, plan, aspect)]
    return Asked("aspect", text, keys, papers, near, near_in_gold=False)
