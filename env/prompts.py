"""Every word the policy reads: first messages of a frame, observations, and refusals.

Two styles: `compact` for nano (a 600-entry vocabulary, contexts of 512 tokens) and `full` for
real models. The environment owns these words, so that every model plays in one harness; nothing
here decides anything. Neighbours: `env/server/tree.py` fills them in, the warm start of nano
renders the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from env.models import JSONValue, Message
from env.settings import LimitSettings, PromptStyle

_ROOT = {
    "compact": "Find every sentence that answers. Write one repl block.",
    "full": """\
You answer a question about a collection of papers by collecting evidence: every passage, copied \
verbatim, that answers the question. You cannot see the papers. They are in the variable \
`context` of a Python REPL, a dict {{paper_id: text}}, far too long to read whole.

Each turn, write exactly one block of Python between a line ```repl and a line ```. It runs in \
your REPL, variables stay between turns, and you get back what it printed, cut at \
{observation_chars} characters: print little. Available:
- search(text_or_dict, keyword, window={window}): the sentences around each hit of a keyword, a \
list of verbatim slices; of a dict, {{paper_id: list}} with only the papers that hit. Exact, then \
without case, then fuzzy.
- list_papers(context), get_abstract(context, paper_id)
- extract(text, start_phrase, end_phrase): the verbatim slice from one phrase to another.
- rlm_query(prompt, context=None): a copy of you answers `prompt` on a part of the context, with \
a REPL of its own, and its FINAL value is returned as a Python value.
- rlm_query_batched(prompts, contexts=None): several of them at once; a list of values.
- llm_query(prompt), llm_query_batched(prompts): one completion as text, without a REPL.
- SHOW_VARS(): your variables.
- FINAL(value), FINAL_VAR("name"): end with this answer.
Standard library modules that touch no file, process or network can be imported.

Strategy: search for the rarest words of the question, print how many papers hit, hand each \
promising paper to a child with a self-contained prompt, merge what the children return, and \
finish. Do not print whole papers.

The answer is a list. An item is a string that stands verbatim in a paper, or \
{{"paper_id": ..., "text": ...}}, or {{"paper_id": ..., "start": ..., "end": ...}}. Nested lists \
are flattened. Wrong passages cost as missing ones do. Limits: {max_turns} turns for each agent, \
{max_children} children a call, {max_frames} agents in all, depth {max_depth}, {cell_cpu_s:g} \
seconds of CPU for a block.""",
}

_CHILD = {
    "compact": "Find the sentences in your part. Write one repl block.",
    "full": """\
You are one of several copies working on a larger task; you get one part of it. Your part of the \
documents is in the variable `context` of a Python REPL: a string, or a dict {{paper_id: text}}.

Each turn, write exactly one block of Python between a line ```repl and a line ```. You get back \
what it printed, cut at {observation_chars} characters. Available: search(context, keyword, \
window={window}), extract(text, start_phrase, end_phrase), rlm_query(prompt, context=None), \
rlm_query_batched(prompts, contexts=None), llm_query(prompt), llm_query_batched(prompts), \
SHOW_VARS(), FINAL(value), FINAL_VAR("name").

Finish with FINAL(list of verbatim passages), FINAL([]) when your part holds nothing. At most \
{max_turns} turns.""",
}

_LLM = {"compact": "Answer.", "full": "Answer the request directly and briefly."}

NO_BLOCK = "error: no repl block; write ```repl, then code, then ``` on a line of its own"
EMPTY_OUTPUT = "(no output)"
LOST = "error: all variables are gone"


def _system(table: dict[str, str], style: PromptStyle, limits: LimitSettings, window: int) -> str:
    text = table[style]
    if style == "compact":
        return text
    return text.format(window=window, **limits.model_dump())


def root_messages(
    style: PromptStyle, limits: LimitSettings, window: int, question: str, papers: int, hint: bool
) -> list[Message]:
    """First messages of the root."""
    lines = [defuse(question), f"context: {papers} papers"]
    if hint:
        lines.append("hint: use both names")
    return [
        Message(role="system", content=_system(_ROOT, style, limits, window)),
        Message(role="user", content="\n".join(lines)),
    ]


def child_messages(
    style: PromptStyle, limits: LimitSettings, window: int, prompt: str, context: JSONValue
) -> list[Message]:
    """First messages of a child frame with a REPL; `context` is what it was handed."""
    if isinstance(context, dict):
        kind = f"{len(context)} papers"
    else:
        kind = "none" if context is None else "str"
    return [
        Message(role="system", content=_system(_CHILD, style, limits, window)),
        Message(role="user", content=f"{defuse(prompt)}\ncontext: {kind}"),
    ]


def llm_messages(style: PromptStyle, prompt: str) -> list[Message]:
    """Messages of a completion without a REPL."""
    return [
        Message(role="system", content=_LLM[style]),
        Message(role="user", content=defuse(prompt)),
    ]


def blocks_message(blocks: int) -> str:
    """What a turn without exactly one block reads."""
    return NO_BLOCK if blocks == 0 else f"error: {blocks} repl blocks; write exactly one"


def syntax_message(traceback: str) -> str:
    """What a turn whose block is no Python reads."""
    lines = traceback.strip().splitlines()
    return f"error: {lines[-1] if lines else 'invalid syntax'}; write valid Python"


def stopped_message(error: str, limits: LimitSettings, variables_lost: bool) -> str:
    """What a turn reads whose cell was stopped, by a limit or because it left the REPL."""
    sentence = {
        "cpu": f"stopped after {limits.cell_cpu_s:g} s of CPU time",
        "wall": f"stopped after {limits.cell_wall_s:g} s",
        "memory": f"stopped at {limits.memory_mb} MB of memory",
        "exit": "the code ended its own process",
    }.get(error, "the code was stopped: it did what the REPL does not allow")
    return f"error: {sentence}" + (f"\n{LOST}" if variables_lost else "")


def cell_message(
    stdout: str, cut_chars: int, new_names: Sequence[str], problem: str, limits: LimitSettings
) -> str:
    """Observation of a cell: its output, its new variables, then what went wrong.

    Args:
        stdout: what was printed, already cut.
        cut_chars: how many characters were cut.
        new_names: variables that the cell made.
        problem: traceback or sentence; empty when nothing went wrong.
        limits: `observation_chars`.
    """
    parts = []
    if cut_chars:
        parts.append(f"{stdout}\n[{cut_chars} characters cut]")
    elif stdout:
        parts.append(stdout.removesuffix("\n"))
    if new_names:
        parts.append(cut(f"new: {', '.join(new_names)}", limits.observation_chars))
    if problem:
        parts.append(cut(problem, limits.observation_chars))
    return defuse("\n".join(parts)) or EMPTY_OUTPUT


def cut(text: str, chars: int) -> str:
    """The first `chars` characters, with a note of how much was cut."""
    if len(text) <= chars:
        return text
    return f"{text[:chars]}\n[{len(text) - chars} characters cut]"


# Tokens of the common chat templates. Text that holds one could end the user's message early.
_TEMPLATE = re.compile(
    r"<(?=\||/?s>|/?(?:start|end)_of_turn>|/?think>|begin_of_text)|\[(?=/?INST\])"
)


def defuse(text: str) -> str:
    """Text in which no chat-template token and no lone surrogate is left."""
    text = _TEMPLATE.sub(lambda match: match.group() + " ", text)
    return text.encode("utf-8", "replace").decode("utf-8")
