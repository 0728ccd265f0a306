"""The keyed plan: rank passages, number them for readers, and answer with those that they name.

A reader replies with a few numbers, where a child that searches and quotes writes a hundred tokens.
A reader of a single passage says yes or no. That's the form that a small model learns to read in
first: it needs no list to keep apart, and its reply is one decision.

Pure functions of a problem with its gold; `demonstrator.py` plays the plan. Everything that a
reader is asked and replies is worded here; the words that ask for a verdict are those by which
`rewards.numbered` knows such a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.demonstrations.cells import text_literal
from env.embedding import order_of
from env.problems.schema import Problem
from env.prompts import defuse
from env.ranking import rank
from env.settings import PROMPT_CHARS, EnvSettings, PromptStyle
from rewards.numbered import ASKS, holds_gold
from rewards.settings import RewardSettings

TASK = "Reply with the numbers of the passages that help to answer, or none: {question}"
"""First line of a reader's prompt; the numbered passages follow, one after the other."""
VERDICTS: dict[PromptStyle, str] = {
    "full": f"Does this passage help to answer the question? Reply {ASKS}: {{question}}",
    "compact": f"{{question}} {ASKS.capitalize()}?",
}
"""Last line of the prompt of a reader that gets a single passage, which comes before it.

A model that meets the question's words after the passage can tell whether they were to be expected
there, and orders passages of a page somewhat better. One that is told how high its passage was
ranked follows that and reads less, so the root's code uses the ranks instead."""
YES: dict[PromptStyle, str] = {
    "full": 'reply.lower().startswith("yes")',
    "compact": 'reply == "yes"',
}
"""Expression that says whether the `reply` of such a reader keeps its passage."""
NUMBERS: dict[PromptStyle, str] = {
    "full": 're.findall("[0-9]+", reply)',
    "compact": "reply.split()",
}
"""Expression of the numbers in `reply`; models with a `full` prompt may not have been taught."""
NONE = "none"
"""Reply of a reader without a passage that answers."""
YES_OR_NO = ("no", "yes")
"""Replies of a reader of a single passage: whether it answers."""
NOTHING = (NONE, YES_OR_NO[0])
"""Replies of readers that find nothing."""

Passage = tuple[str, str]
"""(paper_id, text)."""


@dataclass(frozen=True)
class Keyed:
    """Sizes of the plan."""

    ranked: int = 24
    """Passages that the root ranks."""
    shown: int = 8
    """Passages of each reader."""
    near_chars: int | None = None
    """Most characters between one passage of an answer and the next, if readers get one each; None
    if they may stand anywhere."""

    @property
    def readers(self) -> int:
        """Readers of one episode, at most."""
        return -(-self.ranked // self.shown)


def code(question: str, keyed: Keyed, style: PromptStyle, most: int) -> str:
    """Code of the root's only turn.

    Args:
        question: the question, for the ranking and for the readers.
        keyed: sizes of the plan.
        style: prompt style.
        most: sub-calls of one call; with more readers, the code makes several calls.
    """
    head = f"question = {text_literal(question)}\nfound = rank(context, question, {keyed.ranked})\n"
    item = '{"paper_id": d, "text": t}'
    if keyed.shown == 1:
        prompts = f'[f"{{t}}\\n{VERDICTS[style]}" for d, t in found]'
        asked = f"{head}{_ask(prompts, keyed, most)}\n"
        pairs = f"(d, t), reply in zip(found, replies) if {YES[style]}"
        if keyed.near_chars is None:
            return f"{asked}FINAL([{item} for {pairs}])"
        quoted = f"FINAL([{item} for d, t in near(context, kept, {keyed.near_chars})])"
        return f"{asked}kept = [(d, t) for {pairs}] or found\n{quoted}"
    size = keyed.shown
    imports = "import re\n" if NUMBERS[style].startswith("re.") else ""
    prompts = (
        f'[f"{TASK}" + "".join(f"\\n{{n}} {{t}}" for n, (d, t) in '
        "enumerate(part, 1)) for part in parts]"
    )
    return (
        f"{imports}{head}"
        f"parts = [found[k:k + {size}] for k in range(0, len(found), {size})]\n"
        f"{_ask(prompts, keyed, most)}\n"
        f"FINAL([{item} for part, reply in zip(parts, replies) "
        f"for n, (d, t) in enumerate(part, 1) if str(n) in {NUMBERS[style]}])"
    )


def _ask(prompts: str, keyed: Keyed, most: int) -> str:
    """Code that gives each of these prompts to a reader."""
    if keyed.readers <= most:
        return f"replies = llm_query_batched({prompts})"
    return (
        f"asked = {prompts}\n"
        "replies = []\n"
        f"for k in range(0, len(asked), {most}):\n"
        f"    replies += llm_query_batched(asked[k:k + {most}])"
    )


def replies(
    problem: Problem, keyed: Keyed, env: EnvSettings, rewards: RewardSettings
) -> dict[str, str]:
    """What each reader of the plan should reply, by its prompt as the reader sees it."""
    reply_by_prompt: dict[str, str] = {}
    for prompt, part in readers(problem, keyed, env, rewards):
        seen = defuse(prompt)
        gold = [n for n, passage in enumerate(part, 1) if _is_gold(problem, passage, rewards)]
        reply = " ".join(map(str, gold)) or NONE
        if keyed.shown == 1:  # yes, if the same passage stands in another paper as evidence
            reply = max(YES_OR_NO[bool(gold)], reply_by_prompt.get(seen, ""))
        reply_by_prompt[seen] = reply
    return reply_by_prompt


def readers(
    problem: Problem, keyed: Keyed, env: EnvSettings, rewards: RewardSettings
) -> Iterator[tuple[str, Sequence[Passage]]]:
    """Prompt and passages of each reader, as `code` makes them."""
    passages = ranked(problem, keyed.ranked, env, rewards)
    task = VERDICTS[env.prompt_style] if keyed.shown == 1 else TASK
    task = task.format(question=problem.question)
    for k in range(0, len(passages), keyed.shown):
        part = passages[k : k + keyed.shown]
        lines = [f"{number} {text}" for number, (_, text) in enumerate(part, 1)]
        yield "\n".join([part[0][1], task] if keyed.shown == 1 else [task, *lines]), part


def ranked(problem: Problem, most: int, env: EnvSettings, rewards: RewardSettings) -> list[Passage]:
    """The passages that `rank` finds for the question, in the REPL of this environment."""
    sizes = {"chars": env.passage_chars, "least": rewards.min_span_chars}
    return rank(problem.texts, problem.question, most, **sizes, order=order_of(env.rank))


def fault(problem: Problem, keyed: Keyed, env: EnvSettings, rewards: RewardSettings) -> str | None:
    """Reason why the plan finds nothing of a problem; None if it finds a part at least."""
    longest = max((len(p) for p, _ in readers(problem, keyed, env, rewards)), default=0)
    if longest > PROMPT_CHARS:
        return f"a reader's prompt is longer than {PROMPT_CHARS} characters"
    found = ranked(problem, keyed.ranked, env, rewards)
    if not any(_is_gold(problem, passage, rewards) for passage in found):
        return f"no evidence is among the first {keyed.ranked} passages for its question"
    return None


def _is_gold(problem: Problem, passage: Passage, rewards: RewardSettings) -> bool:
    """Whether a passage lies inside an alternative of a fact, or is nearly the same."""
    paper_id, text = passage
    return any(
        holds_gold(text, problem.texts[paper_id], span.start, span.end, rewards.min_cover)
        for fact in problem.evidence
        for span in fact.spans
        if span.paper_id == paper_id
    )
