"""Sub-calls of a frame: the limits that refuse one, and the first messages of a child.

Plain functions: `tree.py` opens the children.
"""

from __future__ import annotations

from env import prompts
from env.models import JSONValue, Message
from env.server.sandbox import SubCall
from env.server.tree.frame import context_chars
from env.settings import CHILD_CONTEXT_CHARS, PROMPT_CHARS, EnvSettings, LimitSettings


def limit_on(
    limits: LimitSettings, call: SubCall, slot: int, depth: int, frames: int
) -> str | None:
    """Reason why a sub-call is refused; None if it is allowed.

    Args:
        limits: limits of the tree.
        call: the sub-calls of one cell.
        slot: index of the sub-call in it.
        depth: depth of the frame that calls.
        frames: frames of the episode so far.
    """
    given = call.contexts[slot] if call.contexts else None
    if call.fn.startswith("rlm") and depth >= limits.max_depth:
        return f"no sub-calls below depth {limits.max_depth}; answer from this part yourself"
    if slot >= limits.max_children:
        return f"at most {limits.max_children} sub-calls at once"
    if frames >= limits.max_frames:
        return f"the {limits.max_frames} frames of this episode are used up"
    if len(call.prompts[slot]) > PROMPT_CHARS:
        return f"the prompt is longer than {PROMPT_CHARS} characters; hand text as context"
    if context_chars(given) > CHILD_CONTEXT_CHARS:
        return f"the context is longer than {CHILD_CONTEXT_CHARS} characters"
    return None


def first_messages(
    settings: EnvSettings, call: SubCall, slot: int, context: JSONValue, budget: bool
) -> list[Message]:
    """First messages of the child of a sub-call.

    Args:
        settings: prompt style and limits.
        call: the sub-calls of one cell.
        slot: index of the sub-call in it.
        context: value that the child is given.
        budget: whether the tree has a budget in tokens.
    """
    prompt = call.prompts[slot]
    if call.fn.startswith("llm"):
        return prompts.llm_messages(settings.prompt_style, prompt)
    return prompts.child_messages(
        settings.prompt_style, settings.limits, settings.search_window, prompt, context, budget
    )
