"""From messages to token ids and back, without ever encoding a completion again.

The chat template of the tokenizer is rendered for the first prompt only. What stands between a
completion and the next one (end of turn, next user message, opening of the next turn) is derived
from the template once and appended as ids, so a conversation grows token by token and the ids of
the rollout are the ids of the loss. Neighbours: `agent/models.py` plays with these ids, the nano
demonstrations are written with them.
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

    Special tokens that stand in a message as text (a paper or a printed line may hold
    `<|im_end|>`) are broken by a space, so that no document can open a turn.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        template_kwargs: passed to the template, such as `{"enable_thinking": False}`.

    Raises:
        PolicyError: no template, or one that rewrites earlier turns.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs or {})
        self._name = str(getattr(tokenizer, "name_or_path", "") or "tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise PolicyError(f"{self._name}: no chat template; use an instruction-tuned model")
        specials = {token for token in tokenizer.all_special_tokens if len(token) > 1}
        specials |= {
            added.content
            for added in tokenizer.added_tokens_decoder.values()
            if added.special and len(added.content) > 1
        }
        self._special_pattern = re.compile(
            "|".join(re.escape(token) for token in sorted(specials, key=len, reverse=True)) or "$^"
        )
        self._system_role = True
        self._before, self._after = self._derive_suffix()
        self._before_ids = self._encode(self._before)
        self.end_of_turn = self._before_ids[0]
        """The id that ends a turn of the policy."""
        self.stop_ids: frozenset[int] = frozenset(
            {self.end_of_turn} | ({tokenizer.eos_token_id} - {None})
        )
        """Ids that end a completion."""
        self._check_end_of_turn()

    def first(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a frame's first prompt, up to where the policy begins to write."""
        plain = [{"role": item.role, "content": self._disarm(item.content)} for item in messages]
        return self._encode(self._render(plain))

    def follow(self, messages: Sequence[Message], ended: bool) -> list[int]:
        """Ids between a completion and the next one.

        Args:
            messages: the new messages; several are joined by an empty line.
            ended: the completion's last token was `end_of_turn`; otherwise it is put in here.
        """
        content = "\n\n".join(self._disarm(item.content) for item in messages)
        ids = self._encode(self._before + content + self._after)
        return ids[1:] if ended else ids

    def text(self, ids: Sequence[int]) -> str:
        """What a completion says; special tokens leave no trace."""
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
        except Exception:  # templates raise what they like: jinja errors, ValueError, TypeError
            self._system_role = False
            try:
                first = self._render(talk)
            except Exception as error:
                raise PolicyError(f"{self._name}: its chat template fails: {error}") from error
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
                f"{self._name}: its chat template rewrites earlier turns (a prompt is no prefix "
                "of the next one), so tokens cannot be kept; set template_kwargs, for instance "
                "enable_thinking, or use a template without such rules"
            )
        return between[0], between[1]

    def _check_end_of_turn(self) -> None:
        special = set(self.tokenizer.all_special_ids) | {
            index for index, added in self.tokenizer.added_tokens_decoder.items() if added.special
        }
        if not self._before_ids or self.end_of_turn not in special:
            raise PolicyError(
                f"{self._name}: its chat template does not end a turn with a special token "
                f"(found {self._before[:20]!r}); the policy could never stop"
            )


def _fold_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """For templates without a system role: its text opens the first user message."""
    system = [item["content"] for item in messages if item["role"] == "system"]
    rest = [dict(item) for item in messages if item["role"] != "system"]
    if system and rest:
        rest[0]["content"] = "\n\n".join([*system, rest[0]["content"]])
    return rest or [{"role": "user", "content": "\n\n".join(system)}]
