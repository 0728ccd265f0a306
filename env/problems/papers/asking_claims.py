"""Questions about what papers claim: traits of a method, its training data, their own work.

A kind is planned for an exact number of gold papers. Also tells such claims that are not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from env.problems.papers.asked import Asked, Kind, NearMiss
from env.problems.papers.field import Method
from env.problems.papers.plan import Draft, Key, Line, Plan
from env.problems.papers.reader import Section, templates

ASPECT_SECTIONS: Sequence[Section] = ("setup", "results", "ablation", "limits")


# --- traits of a method


def trait_value(draft: Draft, trait: str) -> str:
    """A value that a trait may have."""
    values = templates().traits[trait].values.common
    form = draft.rng.choice(values) if len(values) > 1 else values[0]
    return draft.pen.fill(form, **draft.subject())


def tell_trait(draft: Draft, plan: Plan, trait: str, method: Method, value: str) -> Key:
    """Let a paper state a trait, perhaps a second time in its conclusion."""
    topic = templates().traits[trait]
    key = (trait, str(plan.number), method.abbr)
    slots = {**draft.pen.numbers(), **draft.subject(), "value": value}
    return draft.tell(plan, key, topic, (topic.section, "conclusion"), 0.35, method, slots)


def ask_trait(trait: str) -> Kind:
    """The kind of question that asks for one trait of one method; papers may disagree."""

    def ask(draft: Draft, gold: int) -> Asked | None:
        method, topic = draft.take_method(), templates().traits[trait]
        if method is None:
            return None
        papers = draft.gold_papers(gold, [draft.paper_of(method)])
        values = [trait_value(draft, trait)]
        keys = []
        for plan in papers:
            value = draft.rng.choice((values[0], trait_value(draft, trait)))
            values.append(value)
            keys.append(tell_trait(draft, plan, trait, method, value))

        def near(_: Plan) -> tuple[Section, Line]:
            decoy = trait_value(draft, trait)
            while decoy in values:
                decoy = trait_value(draft, trait)
            others = [other.full for other in draft.field.methods if other is not method]
            slots = {"other": draft.rng.choice(others), "decoy": decoy, **draft.subject()}
            return topic.section, draft.line(topic.near, who=method.full, **slots)

        return Asked(trait, draft.question(topic.ask, method), tuple(keys), papers, [near])

    return ask


# --- facts that lie in two papers


def tell_training(draft: Draft, plan: Plan) -> None:
    """Let a paper say what its own method was trained on."""
    if method := plan.own:
        key, ways = ("trained", method.abbr), templates().corpora.trained
        slots = {"corpus": method.corpus}
        draft.tell(plan, key, ways, ("setup", "introduction"), 0.3, method, slots)


def tell_size(draft: Draft, plan: Plan, corpus: str) -> Key:
    """Let a paper say how large a corpus is, perhaps twice."""
    slots = {"corpus": corpus, "value": draft.field.size(corpus), **draft.subject()}
    first: Section = "method" if plan.role == "data" else "setup"
    key, ways = ("size of corpus", corpus), templates().corpora.size
    return draft.tell(plan, key, ways, (first, "introduction"), 0.3, None, slots)


_SPLITS = {2: (1, 1), 3: (2, 1), 4: (2, 2), 5: (3, 2), 6: (3, 3)}
"""Gold papers: those that propose a method, and those that know a corpus."""


def ask_training(draft: Draft, gold: int) -> Asked | None:
    """How large the corpora are on which methods were trained."""
    methods, texts = draft.free_methods(), templates().corpora
    count, sources = _SPLITS[gold]
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
        size = tell_size(draft, papers[count + i % sources], method.corpus)
        keys += [("trained", method.abbr), size]

    def near_size(_: Plan) -> tuple[Section, Line]:
        corpus = draft.rng.choice(methods).corpus
        slots = {"corpus": corpus, "short": corpus.removeprefix("the "), **draft.subject()}
        value = draft.pen.fill("{thousands}")
        return "introduction", draft.line(texts.size.near, value=value, **slots)

    def near_trained(_: Plan) -> tuple[Section, Line]:
        method = draft.rng.choice(methods)
        corpora = [corpus for corpus in draft.field.corpora if corpus != method.corpus]
        corpus = draft.rng.choice(corpora)
        return "related", draft.line(texts.trained.near, who=method.full, corpus=corpus)

    text = draft.question(texts.ask if count == 1 else texts.ask_many, *methods)
    return Asked("training", text, tuple(keys), papers, [near_size, near_trained])


# --- what any paper may say


def tell_aspect(draft: Draft, plan: Plan, aspect: str) -> Key:
    """Let a paper make a statement on an aspect, perhaps twice, with the same numbers."""
    plan.touched.add(aspect)
    key = ("aspect", aspect, str(plan.number))
    texts: list[str] = []
    while not texts:
        # Do not repeat a statement of another paper with the same numbers.
        slots = {**draft.pen.numbers(), **draft.subject()}
        for _ in range(1 + (draft.rng.random() < 0.3)):
            text = draft.pen.once(templates().aspects[aspect].of(draft.indirect()), **slots)
            texts += [text] if text else []
    for text in texts:
        plan.add(draft.rng.choice(ASPECT_SECTIONS), Line(text, (key,)))
    return key


def miss_aspect(draft: Draft, plan: Plan, aspect: str) -> tuple[Section, Line] | None:
    """A near miss of an aspect, for a paper that has said nothing of it."""
    if aspect in plan.touched:
        return None
    plan.touched.add(aspect)
    near = templates().aspects[aspect].near
    return draft.rng.choice(ASPECT_SECTIONS), draft.line(near, **draft.subject())


def ask_aspect(draft: Draft, gold: int) -> Asked | None:
    """Which papers say a thing of their own work."""
    aspects = templates().aspects
    aspect = draft.rng.choice([aspect for aspect in aspects if aspect not in draft.asked])
    draft.asked.add(aspect)
    papers = draft.rng.sample([plan for plan in draft.plans if not plan.canary], gold)
    keys = tuple(tell_aspect(draft, plan, aspect) for plan in papers)
    asked = draft.question(aspects[aspect].ask)
    # By its name the question is not that of another field.
    text = f"In work around {draft.field.benchmarks[0]}, {asked[0].lower()}{asked[1:]}"
    near: list[NearMiss] = [lambda plan: miss_aspect(draft, plan, aspect)]
    return Asked("aspect", text, keys, papers, near, near_in_gold=False)
