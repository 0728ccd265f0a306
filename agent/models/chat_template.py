"""Conversion of messages to token ids and back; completions are never encoded again.

Only the first prompt is rendered with the tokenizer's chat template. The text between two
completions is the end of turn, the next user message and the opening of the next turn. It is
derived from the template once and appended as ids. So a conversation only grows, and the loss sees
exactly the ids of the rollout. Neighbour: `hf_policy.py` plays with these ids.

`bake` fixes a base model's template, with its arguments, in the tokenizer. So every later reader
renders the same prompts without arguments: the stages, a server, a user of the merged model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.errors import PolicyError
from agent.settings import ModelSettings
from env.models import Message

_USER, _REPLY, _NEXT, _REPLY_2, _LAST, _DATE = (f"mark{letter}mark" for letter in "QWXYZD")
_OPEN, _CLOSED = "<think>", "</think>"
_MARKER = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


class ChatFormat:
    """Prompts and fixed suffixes of one tokenizer's chat template.

    A space splits this tokenizer's special tokens in the text of a message; the environment splits
    those of common templates (`env/chat_tokens.py`). So no document can open a turn.

    Args:
        tokenizer: a transformers tokenizer with a chat template, as `bake` fixes it.

    Raises:
        PolicyError: the template is missing, fails, rewrites earlier turns, lets the model think,
            contains the date or does not end a turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._name = str(getattr(tokenizer, "name_or_path", "") or "tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise PolicyError(f"{self._name}: no chat template. Use an instruction-tuned model.")
        added = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        specials = sorted({*tokenizer.all_special_tokens, *added.values()}, key=len, reverse=True)
        self._special_pattern = re.compile(
            "|".join(re.escape(token) for token in specials if len(token) > 1) or "$^"
        )
        self._system_role = True
        self._before, self._after = self._derive_suffix()
        self.end_of_turn = next(iter(self._encode(self._before)), -1)
        """Id of the token that ends a turn of the policy."""
        if self.end_of_turn not in {*tokenizer.all_special_ids, *added}:
            raise PolicyError(
                f"{self._name}: its chat template does not end a turn with a special token (found "
                f"{self._before[:20]!r}), so the policy could never stop. Use another template."
            )
        self.stop_ids = frozenset({self.end_of_turn, tokenizer.eos_token_id} - {None})
        """Ids of the tokens that end a completion."""

    def first(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a frame's first prompt, up to the first token of the policy."""
        plain = [{"role": item.role, "content": self._disarm(item.content)} for item in messages]
        return self._encode(self._render(plain))

    def follow(self, messages: Sequence[Message], ended: bool) -> list[int]:
        """Ids between a completion and the next one.

        Args:
            messages: the new messages; an empty line joins them.
            ended: whether the completion's last token was `end_of_turn`; otherwise it is added.
        """
        content = "\n\n".join(self._disarm(item.content) for item in messages)
        ids = self._encode(self._before + content + self._after)
        return ids[1:] if ended else ids

    def completion(self, text: str) -> list[int]:
        """Ids of a turn that is known as text, with the end of turn."""
        return [*self._encode(self._disarm(text)), self.end_of_turn]

    def text(self, ids: Sequence[int]) -> str:
        """Text of a completion, without special tokens."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _disarm(self, text: str) -> str:
        return self._special_pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _render(self, messages: list[dict[str, str]], **variables: Any) -> str:
        if not self._system_role:
            messages = _fold_system(messages)
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **variables
            )
        )

    def _derive_suffix(self) -> tuple[str, str]:
        """The text between a completion and the next user content, and the text after it.

        Templates without a system role, or that move it to the last message, get its text in the
        first user message.
        """
        fault = ""
        for self._system_role in (True, False):
            try:
                prompt = self._render(_talk(), strftime_now=lambda _: _DATE)
                suffix = self._suffix()
            except Exception as error:  # a template can raise anything: jinja errors, TypeError
                fault = fault or f"the chat template fails ({error}). Use another model."
                continue
            self._check_prompt(prompt)
            if suffix is not None:
                self._check_thoughts(prompt)
                return suffix
            fault = (
                "its chat template rewrites earlier turns (a prompt is not a prefix of the next "
                f"one). {self._remedy()}"
            )
        raise PolicyError(f"{self._name}: {fault}")

    def _suffix(self) -> tuple[str, str] | None:
        """The texts of `_derive_suffix`; None if the template rewrites earlier turns."""
        first = self._render(_talk())
        second = self._render(_talk(_REPLY, _NEXT))
        between = (_continuation(first, _REPLY, second) or "").split(_NEXT)
        third = self._render(_talk(_REPLY, _NEXT, _REPLY_2, _LAST))
        if len(between) != 2 or _continuation(second, _REPLY_2, third) != _LAST.join(between):
            return None
        return between[0], between[1]

    def _check_prompt(self, prompt: str) -> None:
        """Refuse a prompt that contains the date or opens a thought."""
        if _DATE in prompt:
            raise PolicyError(
                f"{self._name}: its chat template inserts today's date, so prompts change daily. "
                "Set model.template_kwargs, such as {date_string: 26 Jul 2024}, or set "
                "model.template to a file without the date."
            )
        if prompt.rfind(_OPEN) > prompt.rfind(_CLOSED):
            raise PolicyError(f"{self._name}: its prompts open a thought. {self._remedy()}")

    def _check_thoughts(self, prompt: str) -> None:
        """Refuse a template that rewrites thoughts, unless its prompts end with an empty one.

        Its model thinks before it replies, which would use up `max_turn_tokens`.
        """
        thought = f"{_OPEN}\n{_REPLY}\n{_CLOSED}\n\n{_REPLY_2}"
        rewritten = _continuation(prompt, thought, self._render(_talk(thought, _NEXT))) is None
        if rewritten and _CLOSED not in prompt:
            raise PolicyError(
                f"{self._name}: its chat template removes the thoughts of earlier turns, so the "
                f"model thinks. {self._remedy()}"
            )

    def _remedy(self) -> str:
        """Settings that end thinking, where the template has an argument for it."""
        other = "use a model that does not think, such as an Instruct version."
        if "enable_thinking is" in str(self.tokenizer.chat_template):
            return (
                "Set model.template_kwargs: {enable_thinking: false} and model.template: "
                f"training; if both are set, {other}"
            )
        return f"Set model.template to the file of another template, or {other}"


def _talk(*turns: str) -> list[dict[str, str]]:
    """A conversation of system and user, with turns of assistant and user in alternation."""
    roles = ("assistant", "user")
    first = [{"role": "system", "content": "System."}, {"role": "user", "content": _USER}]
    return first + [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]


def _continuation(prompt: str, reply: str, whole: str) -> str | None:
    """The text of a conversation after prompt and reply; None if it begins otherwise.

    Models of some templates write the space before the reply themselves.
    """
    rest = whole.removeprefix(prompt).lstrip(" ")
    return rest.removeprefix(reply) if whole.startswith(prompt) and rest.startswith(reply) else None


def _fold_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Move the system text to the first user message, for templates without a system role."""
    system = [item["content"] for item in messages if item["role"] == "system"]
    rest = [dict(item) for item in messages if item["role"] != "system"]
    if system and rest:
        rest[0]["content"] = "\n\n".join([*system, rest[0]["content"]])
    return rest or [{"role": "user", "content": "\n\n".join(system)}]


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
