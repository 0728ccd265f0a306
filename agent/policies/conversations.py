"""Token ids of the frames in play, whether turns are sampled or known as text.

A conversation only grows. Sampled ids are kept and never encoded again from text. Neighbours:
`chat_template.py` (ids of messages), `hf_policy.py` (samples turns).
"""

from dataclasses import dataclass, field
from typing import Any

from agent.models.chat_template import ChatFormat
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.settings import GenerationSettings


@dataclass(frozen=True)
class TurnPrompt:
    """New ids of a frame, before its next turn."""

    ids: list[int]
    limit: int
    """Most tokens of the turn; 0: the frame is full, and its conversation lacks the ids."""


@dataclass
class _Conversation:
    """Conversation of a frame."""

    ids: list[int] = field(default_factory=list)
    """All ids read and written so far."""
    full: bool = False
    """Whether the frame has no room for another turn."""


class Conversations:
    """Conversations of open frames.

    Args:
        model: the model that is sampled from; only its configuration is read.
        tokenizer: its tokenizer, with a chat template.
        settings: limits of turns and frames.

    Raises:
        PolicyError: the chat template is unusable.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        self.chat = ChatFormat(tokenizer)
        self.stop_ids = self.chat.stop_ids | _stop_ids(model)
        """Ids of the tokens that end a turn."""
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.frame_tokens = min(settings.max_frame_tokens, positions or settings.max_frame_tokens)
        """Most tokens of a conversation."""
        self._settings = settings
        self._open: dict[FrameKey, _Conversation] = {}

    def read(self, request: TurnRequest) -> TurnPrompt:
        """Add the ids of a request's messages to its frame, if it has room for a turn then."""
        if request.first:
            frame = self._open[request.key] = _Conversation()
            prompt = self.chat.first(request.messages)
        else:
            frame = self._open[request.key]
            ended = bool(frame.ids) and frame.ids[-1] == self.chat.end_of_turn
            prompt = self.chat.follow(request.messages, ended)
        room = self.frame_tokens - len(frame.ids) - len(prompt)
        frame.full = frame.full or room < 1
        if frame.full:
            return TurnPrompt(prompt, 0)
        frame.ids += prompt
        return TurnPrompt(prompt, min(room, self._settings.max_turn_tokens))

    def ids(self, key: FrameKey) -> list[int]:
        """All ids of a frame's conversation so far."""
        return self._open[key].ids

    def reply(
        self, request: TurnRequest, prompt: TurnPrompt, sampled: list[int], logprobs: list[float]
    ) -> TurnReply:
        """Add the sampled ids to the frame; returns the turn."""
        self._open[request.key].ids += sampled
        return TurnReply(
            text=self.chat.text(sampled),
            finish="stop" if sampled[-1] in self.stop_ids else "length",
            prompt_ids=prompt.ids,
            sampled_ids=sampled,
            logprobs=logprobs,
        )

    def release(self, key: FrameKey) -> None:
        """Forget a frame, if it is known."""
        self._open.pop(key, None)


def _stop_ids(model: Any) -> frozenset[int]:
    """Stop ids of the model's own generation config."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset([eos] if isinstance(eos, int) else eos or [])
