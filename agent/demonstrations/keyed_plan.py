"""The keyed plan: rank passages, give each to a reader, and answer with those that get a yes.

A reader replies with one word, where a child that searches and quotes writes a hundred tokens. Its
reply is one decision, which a small model learns first.

Pure functions of a problem with its gold; `demonstrator.py` plays the plan. Everything that a
reader is asked and replies is worded here; the words that ask for a verdict are those by which
`rewards.numbered` knows such a prompt.
"""

from collections.abc import Iterator

from agent.demonstrations.cells import text_literal
from env.embedding import order_of
from env.problems.schema import Problem
from env.prompts import defuse
from env.ranking import rank
from env.settings import PROMPT_CHARS, EnvSettings, PromptStyle
from rewards.numbered import ASKS, holds_gold
from rewards.settings import RewardSettings

VERDICTS: dict[PromptStyle, str] = {
    "full": f"Does this passage help to answer the question? Reply {ASKS}: {{question}}",
    "compact": f"{{question}} {ASKS.capitalize()}?",
}
"""Last line of a reader's prompt, after the passage.

A model that meets the question's words after the passage can tell whether they were to be expected
there, and orders passages of a page somewhat better. One that is told how high its passage was
ranked follows that and reads less, so the root's code uses the ranks instead."""
YES = {"full": 'reply.lower().startswith("yes")', "compact": 'reply == "yes"'}
"""Expression that says whether a reader's `reply` keeps its passage."""
YES_OR_NO = ("no", "yes")
"""Replies of a reader: whether its passage answers."""
RANKED = 12
"""Passages that the root ranks, one for each reader."""

Passage = tuple[str, str]
"""(paper_id, text)."""


def code(question: str, near_chars: int | None, style: PromptStyle, most: int) -> str:
    """Code of the root's only turn.

    Args:
        question: the question, for the ranking and for the readers.
        near_chars: most characters between one passage of an answer and the next; None: any.
        style: prompt style.
        most: sub-calls of one call; with more readers, the code makes several calls.
    """
    prompts = f'[f"{{t}}\\n{VERDICTS[style]}" for d, t in found]'
    asked = f"replies = llm_query_batched({prompts})"
    if most < RANKED:
        asked = (
            f"asked = {prompts}\n"
            "replies = []\n"
            f"for k in range(0, len(asked), {most}):\n"
            f"    replies += llm_query_batched(asked[k:k + {most}])"
        )
    head = (
        f"question = {text_literal(question)}\nfound = rank(context, question, {RANKED})\n{asked}\n"
    )
    item = '{"paper_id": d, "text": t}'
    pairs = f"(d, t), reply in zip(found, replies) if {YES[style]}"
    if near_chars is None:
        return f"{head}FINAL([{item} for {pairs}])"
    quoted = f"FINAL([{item} for d, t in near(context, kept, {near_chars})])"
    return f"{head}kept = [(d, t) for {pairs}] or found\n{quoted}"


def replies(problem: Problem, env: EnvSettings, rewards: RewardSettings) -> dict[str, str]:
    """What each reader of the plan should reply, by its prompt as the reader sees it."""
    reply_by_prompt: dict[str, str] = {}
    for prompt, passage in readers(problem, env, rewards):
        seen, reply = defuse(prompt), YES_OR_NO[_is_gold(problem, passage, rewards)]
        # Yes, if the same passage stands in another paper as evidence.
        reply_by_prompt[seen] = max(reply, reply_by_prompt.get(seen, ""))
    return reply_by_prompt


def readers(
    problem: Problem, env: EnvSettings, rewards: RewardSettings
) -> Iterator[tuple[str, Passage]]:
    """Prompt and passage of each reader, as `code` makes them."""
    task = VERDICTS[env.prompt_style].format(question=problem.question)
    for passage in ranked(problem, RANKED, env, rewards):
        yield f"{passage[1]}\n{task}", passage


def ranked(problem: Problem, most: int, env: EnvSettings, rewards: RewardSettings) -> list[Passage]:
    """The passages that `rank` finds for the question, in the REPL of this environment."""
    sizes = {"chars": env.passage_chars, "least": rewards.min_span_chars}
    return rank(problem.texts, problem.question, most, **sizes, order=order_of(env.rank))


def demonstration_fault(problem: Problem, env: EnvSettings, rewards: RewardSettings) -> str | None:
    """Reason why the plan finds nothing of a problem; None if it finds a part at least."""
    if max((len(p) for p, _ in readers(problem, env, rewards)), default=0) > PROMPT_CHARS:
        return f"a reader's prompt is longer than {PROMPT_CHARS} characters"
    found = ranked(problem, RANKED, env, rewards)
    if not any(_is_gold(problem, passage, rewards) for passage in found):
        return f"no evidence is among the first {RANKED} passages for its question"
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
