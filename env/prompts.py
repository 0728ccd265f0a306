"""The texts that the policy reads: first messages of a frame, and observations.

Two styles: `full` explains the tools; `compact` is for models that were taught to use them. The
environment owns these texts, so that every model plays in one harness. Nothing here decides
anything. Neighbours: `env/server/tree/tree.py` fills them in and words the refusals of sub-calls.
The warm start of nano renders the same texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from env.chat_tokens import split_chat_tokens
from env.models import JSONValue, Message
from env.settings import EnvSettings, LimitSettings, PromptStyle

_ROOT = {
    "compact": "Find every sentence that answers. Write one repl block.",
    "full": """\
Answer a question about a collection of papers. The answer is a list of passages, copied verbatim \
from the papers, that together contain all the evidence. The papers are not in this prompt. They \
are in a Python REPL, in the variable `context`, a dict {{paper_id: text}}. It is far too long to \
read in full. The question is in the variable `question`.

In each turn, write exactly one block of Python between a line ```repl and a line ```. The block \
runs in your REPL, and its variables are kept for your later turns. You then receive what it \
printed, cut at {observation_chars} characters, so print little. These functions are available:
- search(text_or_dict, keyword, window={window}) returns the sentences around each occurrence of \
the keyword, as verbatim strings. It returns a list for a text, and a dict {{paper_id: list}} of \
the matching papers for a dict. It looks for an exact match first, then ignores case, then allows \
misspellings.
- rank(text_or_dict, question, most=24) returns the passages that fit a question best, best \
first, as a list of (paper_id, passage). near(text_or_dict, passages, chars) returns the \
first of them and those around it, without a gap of more than so many characters.
- list_papers(context) returns the paper ids.
- extract(text, start_phrase, end_phrase) returns the verbatim slice that starts with the first \
phrase and ends with the second.
- rlm_query(prompt, context=None) starts a child: a copy of you with its own REPL, which sees only \
this prompt and this context. It returns the value that the child passes to FINAL.
- rlm_query_batched(prompts, contexts=None) starts several children at once and returns a list of \
their values.
- llm_query(prompt) and llm_query_batched(prompts) return completions as text, without a REPL.
- SHOW_VARS() lists your variables.
- FINAL(value) or FINAL_VAR("name") gives the answer and ends your work.
You can import the modules of the standard library that use no files, processes or network.

A good strategy: search for the rarest words of the question, and print how many papers match. \
Give each promising paper to a child, with a prompt that the child understands without having \
seen the question. Merge what the children return, and finish.

Example for the question "How accurate is Kalvot on Mirbex?" The first turn:
```repl
hits = search(context, "Kalvot")
print({{paper_id: len(snippets) for paper_id, snippets in hits.items()}})
```
After its output, the second turn:
```repl
papers = [paper_id for paper_id in hits if "Mirbex" in context[paper_id]][:{max_children}]
prompt = "Quote every sentence that says how accurate Kalvot is on Mirbex."
found = rlm_query_batched([prompt] * len(papers), [context[paper_id] for paper_id in papers])
FINAL(found)
```

Where words alone can't tell which passage answers, or papers are long, rank passages, number \
them, and let readers reply with numbers. That takes one turn:
```repl
import re
question = "How accurate is Kalvot on Mirbex?"
found = rank(context, question, 24)
parts = [found[k:k + 8] for k in range(0, len(found), 8)]
task = f"Reply with the numbers of the passages that help to answer, or none: {{question}}"
asked = [task + "".join(f"\\n{{n}} {{t}}" for n, (d, t) in enumerate(part, 1)) for part in parts]
replies = llm_query_batched(asked)
FINAL([{{"paper_id": d, "text": t}} for part, reply in zip(parts, replies) \
for n, (d, t) in enumerate(part, 1) if str(n) in re.findall("[0-9]+", reply)])
```

Each item of the answer is a string that occurs verbatim in a paper, or {{"paper_id": ..., \
"text": ...}}, or {{"paper_id": ..., "start": ..., "end": ...}}, or a pair (paper_id, passage) as \
`rank` returns it. Nested lists are flattened. A \
wrong passage costs as much as a missing one. Limits: {max_turns} turns for each agent, \
{max_children} children for each call, {max_frames} agents in total, depth {max_depth}, \
{cell_cpu_s:g} seconds of CPU time for each block.""",
}

_CHILD = {
    "compact": "Find the sentences in your part. Write one repl block.",
    "full": """\
You are one of several agents that work on a larger task, and you are responsible for one part of \
it. Your documents are in a Python REPL, in the variable `context`: a string, or a dict \
{{paper_id: text}}. Your task is in the variable `question`.

In each turn, write exactly one block of Python between a line ```repl and a line ```. You then \
receive what it printed, cut at {observation_chars} characters. These functions are available: \
search(context, keyword, window={window}), rank(context, question, most=24), \
extract(text, start_phrase, end_phrase), rlm_query(prompt, context=None), \
rlm_query_batched(prompts, contexts=None), llm_query(prompt), llm_query_batched(prompts), \
SHOW_VARS(), FINAL(value), FINAL_VAR("name").

For example:
```repl
snippets = search(context, "Kalvot")
FINAL([snippet for snippet in snippets if "Mirbex" in snippet])
```

Finish with FINAL(list_of_verbatim_passages), or with FINAL([]) if your part contains no answer. \
You have at most {max_turns} turns.""",
}

_LLM = {"compact": "Answer.", "full": "Answer the request directly and briefly."}

_BUDGET = """

All agents together have one budget of tokens for everything that they read and write: prompts, \
printed output and replies. Beyond it, the work ends without an answer. budget_left() returns the \
number of tokens that are left. A sub-call that needs more costs nothing and returns a text that \
starts with "error: "."""
"""Addition to the `full` prompts of a tree with a budget."""

NO_BLOCK = "error: no repl block; write ```repl, then code, then ``` on a line of its own"
EMPTY_OUTPUT = "(no output)"
LOST = "error: all variables are gone"


def block(code: str) -> str:
    """A turn with this code."""
    return f"```repl\n{code}\n```"


def _system(table: dict[str, str], settings: EnvSettings) -> Message:
    style, limits = settings.prompt_style, settings.limits
    text = table[style].format(window=settings.search_window, **limits.model_dump())
    if limits.tree_tokens is not None and style == "full":
        text += _BUDGET
    return Message(role="system", content=text)


def root_messages(settings: EnvSettings, question: str, papers: int) -> list[Message]:
    """First messages of the root."""
    lines = [defuse(question), f"context: {papers} papers"]
    if settings.limits.tree_tokens is not None:
        lines.append(f"budget: {settings.limits.tree_tokens} tokens")
    return [_system(_ROOT, settings), Message(role="user", content="\n".join(lines))]


def child_messages(settings: EnvSettings, prompt: str, context: JSONValue) -> list[Message]:
    """First messages of a child frame with a REPL.

    Args:
        settings: prompt style, window of `search`, and limits.
        prompt: words of the parent.
        context: the value it was given.
    """
    kind = "none" if context is None else "str"
    if isinstance(context, dict):
        kind = f"{len(context)} papers"
    user = Message(role="user", content=f"{defuse(prompt)}\ncontext: {kind}")
    return [_system(_CHILD, settings), user]


def llm_messages(style: PromptStyle, prompt: str) -> list[Message]:
    """Messages of a completion without a REPL."""
    return [
        Message(role="system", content=_LLM[style]),
        Message(role="user", content=defuse(prompt)),
    ]


def blocks_message(blocks: int) -> str:
    """Observation of a turn without exactly one whole block, of so many that it opened."""
    if blocks == 1:
        return "error: the repl block has no end; close it with a line of ```"
    return NO_BLOCK if blocks == 0 else f"error: {blocks} repl blocks; write exactly one"


def syntax_message(traceback: str) -> str:
    """Observation of a turn whose block is not valid Python."""
    lines = traceback.strip().splitlines()
    return f"error: {lines[-1] if lines else 'invalid syntax'}; write valid Python"


def stopped_message(error: str, limits: LimitSettings, variables_lost: bool) -> str:
    """Observation of a cell that was stopped, by a limit or because it left the REPL."""
    sentence = {
        "calls": f"stopped because the {limits.sub_calls:,} sub-calls of this episode are used up",
        "cpu": f"stopped after {limits.cell_cpu_s:g} s of CPU time",
        "wall": f"stopped after {limits.cell_wall_s:g} s",
        "memory": f"stopped at {limits.memory_mb} MB of memory",
        "evicted": "stopped because the server ran short of room, and this episode held the most",
        "exit": "the code ended its own process",
    }.get(error, "the code was stopped: it crashed its process, or waited for what never comes")
    return f"error: {sentence}" + (f"\n{LOST}" if variables_lost else "")


def cell_message(
    stdout: str, cut_chars: int, new_names: Sequence[str], problem: str, limits: LimitSettings
) -> str:
    """Observation of a cell: its output, its new variables, then its error.

    Args:
        stdout: printed text, already cut.
        cut_chars: number of characters that were cut.
        new_names: variables that the cell created.
        problem: traceback or sentence; empty without an error.
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
    """The first `chars` characters, with a note of the number that was cut."""
    return text if len(text) <= chars else f"{text[:chars]}\n[{len(text) - chars} characters cut]"


def defuse(text: str) -> str:
    """The text without chat-template tokens and lone surrogates."""
    return split_chat_tokens(text).encode("utf-8", "replace").decode("utf-8")
