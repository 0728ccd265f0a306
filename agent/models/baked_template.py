"""The chat template of a base model, with its arguments, fixed in the tokenizer.

The saved tokenizer carries the template. So every later reader renders the same prompts without
arguments: the stages, an engine, a user of the merged model. Neighbour: `chat_template.py` decides
which templates can be played.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agent.errors import PolicyError
from agent.models.chat_template import ChatFormat
from agent.settings import ModelSettings

_MARKER = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


def bake(tokenizer: Any, settings: ModelSettings) -> Any:
    """Fix the template of the settings, with its arguments, in the tokenizer.

    Args:
        tokenizer: tokenizer of transformers; it is changed.
        settings: `template` and `template_kwargs`.

    Returns:
        The tokenizer.

    Raises:
        PolicyError: the template cannot be read, is unknown to TRL, or cannot be played.
    """
    template = _template(tokenizer, settings.template)
    prelude = "".join(
        # JSON's literals are Jinja's. The line break belongs to the tag and is not rendered.
        f"{{%- set {name} = {json.dumps(value, ensure_ascii=False)} %}}\n"
        for name, value in settings.template_kwargs.items()
    )
    if template is not None:
        tokenizer.chat_template = prelude + template
    ChatFormat(tokenizer)
    return tokenizer


def _template(tokenizer: Any, source: str) -> str | None:
    """Text of the template; None if the tokenizer has none."""
    own = tokenizer.chat_template
    if isinstance(own, dict):  # named variants
        own = own.get("default")
    if source == "own":
        return own
    if source == "training":
        from trl.chat_template_utils import get_training_chat_template

        try:
            own = own and (get_training_chat_template(tokenizer) or own)
        except ValueError:
            raise PolicyError(
                f"{tokenizer.name_or_path}: TRL has no training template for this chat template. "
                "Set model.template to own or to a file."
            ) from None
        # The markers of generated text are known to TRL and transformers only.
        return own and _MARKER.sub(lambda m: f"{m[1]}{'endif' if m[2] else 'if true'}{m[3]}", own)
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"model.template: {source} cannot be read ({error}). Set it to own, training or the "
            "path of a file."
        ) from None
