"""Conversion of messages to token ids and back; completions are never encoded again.

Only the first prompt is rendered with the tokenizer's chat template. The text between two
completions is the end of turn, the next user message and the opening of the next turn. It is
derived from the template once and appended as ids. So a conversation only grows, and the loss sees
exactly the ids of the rollout. Neighbour: `hf_policy.py` plays with these ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agent.errors import PolicyError
from env.models import Message

_USER, _REPLY, _NEXT, _REPLY_2, _LAST = (f"mark{letter}mark" for letter in "QWXYZ")


class ChatFormat:
    """Prompts and fixed suffixes of one tokenizer's chat template.

    A space splits special tokens in the text of a message, so that no document can open a turn. A
    paper or a printed line may contain `<|im_end|>`.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        template_kwargs: arguments of the template, such as `{"enable_thinking": False}`.

    Raises:
        PolicyError: the template is missing, fails, rewrites earlier turns or does not end a turn.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs or {})
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
        return self._special_pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _render(self, messages: list[dict[str, str]]) -> str:
        if not self._system_role:
            messages = _fold_system(messages)
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._template_kwargs
            )
        )

    def _derive_suffix(self) -> tuple[str, str]:
        """The text between a completion and the next user content, and the text after it."""
        talk = [{"role": "system", "content": "System."}, {"role": "user", "content": _USER}]
        try:
            first = self._render(talk)
        except Exception:  # a template can raise anything: jinja errors, ValueError, TypeError
            self._system_role = False
            try:
                first = self._render(talk)
            except Exception as error:
                raise PolicyError(
                    f"{self._name}: the chat template fails ({error}). Use another model."
                ) from error
        talk += [{"role": "assistant", "content": _REPLY}, {"role": "user", "content": _NEXT}]
        second = self._render(talk)
        talk += [{"role": "assistant", "content": _REPLY_2}, {"role": "user", "content": _LAST}]
        third = self._render(talk)
        between = second.removeprefix(first + _REPLY).split(_NEXT)
        if (
            not second.startswith(first + _REPLY)
            or len(between) != 2
            or third != second + _REPLY_2 + between[0] + _LAST + between[1]
        ):
            raise PolicyError(
                f"{self._name}: its chat template rewrites earlier turns (a prompt is not a prefix "
                "of the next one). Set template_kwargs, for example enable_thinking, or use "
                "another template."
            )
        return between[0], between[1]


def _fold_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Move the system text to the first user message, for templates without a system role."""
    system = [item["content"] for item in messages if item["role"] == "system"]
    rest = [dict(item) for item in messages if item["role"] != "system"]
    if system and rest:
        rest[0]["content"] = "\n\n".join([*system, rest[0]["content"]])
    return rest or [{"role": "user", "content": "\n\n".join(system)}]
