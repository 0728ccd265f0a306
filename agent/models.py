"""A transformers model as a policy: frames in, sampled turns and their log-probs out.

The policy keeps each frame's tokens and cache from its first turn to its release; text is made
from sampled tokens for the environment to read and never turned back into tokens. Neighbours:
`agent/chat.py` (template), `agent/decoding.py` (the sampling loop).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.chat import ChatFormat
from agent.errors import PolicyError
from agent.policy import FrameKey, TurnReply, TurnRequest
from agent.settings import GenerationSettings

if TYPE_CHECKING:
    from torch import Tensor

    from agent.decoding import CacheShape, Row


def load_model(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str | None = None,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Model and tokenizer from a folder (or a hub name), ready for inference.

    Args:
        path: a saved model with its tokenizer; a string may name one of the hub.
        adapter: a saved PEFT adapter to lay onto it, not merged.
        device: cuda if there is one, else cpu, unless said.
        dtype: fp32 on cpu, as saved elsewhere, unless said.

    Raises:
        PolicyError: there is no model at `path`.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in (path, adapter):
        if isinstance(folder, Path) and not folder.is_dir():
            raise PolicyError(f"{folder}: no such folder; run the stage that writes it")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        dtype = torch.float32 if device == "cpu" else "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path))
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"{path}: no model can be loaded from there ({error}); write it again, or name another"
        ) from error
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter))
    model.to(device)
    model.eval()
    return model, tokenizer


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """LoRA weights added to those they adapt, for as long as the block; then all as before.

    An adapter costs a small model up to a third of each decoding step. Only where every weight
    is fp32: a shorter one would round a small update away.
    """
    import torch

    config = getattr(model, "active_peft_config", None)
    exact = all(p.dtype == torch.float32 for p in model.parameters())
    if config is None or config.peft_type != "LORA" or not exact:
        yield
        return
    kept = [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        with torch.no_grad():
            # Subtracting what was added leaves the last digits changed.
            for weight, value in kept:
                weight.copy_(value)


@dataclass
class _Frame:
    """One conversation."""

    ids: list[int] = field(default_factory=list)
    """Everything read and written so far."""
    past: Tensor | None = None
    """Keys and values of the first `cached` ids."""
    cached: int = 0
    full: bool = False
    """No room for another turn."""


class TransformersPolicy:
    """Plays frames with a causal language model.

    The model may be trained between calls (it is switched to evaluation for the duration of one),
    but not while frames are open: their caches would be those of the old weights.

    Args:
        model: any causal language model of transformers or PEFT whose cache is a `DynamicCache`.
        tokenizer: its tokenizer, with a chat template.
        settings: sampling.
        template_kwargs: passed to the chat template.
        cache_tokens: most tokens whose keys and values are kept between turns; frames beyond it
            read their conversation again.

    Raises:
        PolicyError: the chat template or the cache cannot be used.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: GenerationSettings,
        *,
        template_kwargs: dict[str, Any] | None = None,
        cache_tokens: int = 262_144,
    ) -> None:
        self.model = model
        self.settings = settings
        self.chat = ChatFormat(tokenizer, template_kwargs)
        self._cache_tokens = cache_tokens
        self._frames: dict[FrameKey, _Frame] = {}
        self._shape: CacheShape | None = None
        self._stop_ids = self.chat.stop_ids | _stop_ids(model)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._frame_tokens = min(settings.max_frame_tokens, positions or settings.max_frame_tokens)

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """One turn for each request, decoded in batches of `batch_frames`.

        A turn ends with `stop` at the end-of-turn token and with `length` at `max_turn_tokens`;
        a frame whose conversation would exceed `max_frame_tokens` gets an empty `length` turn.
        """
        replies = dict(self.stream(requests))
        return [replies[place] for place in range(len(requests))]

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """The same, each reply with its place among the requests as soon as it is written."""
        from agent.decoding import CacheShape, sample

        prompts, rows = [], []
        for place, request in enumerate(requests):
            frame, prompt = self._read(request)
            prompts.append(prompt)
            row = self._row(place, request, frame, prompt)
            if row is None:
                yield place, TurnReply(text="", finish="length")
            else:
                rows.append(row)
        rows.sort(key=lambda row: (row.cached, len(row.tokens)))
        size, temperature = self.settings.batch_frames, self.settings.temperature
        training = self.model.training
        self.model.eval()
        try:
            with folded(self.model):
                self._shape = self._shape or CacheShape.of(self.model)
                for start in range(0, len(rows), size):
                    part = rows[start : start + size]
                    for row in sample(self.model, self._shape, part, self._stop_ids, temperature):
                        key = requests[row.place].key
                        yield row.place, self._reply(key, prompts[row.place], row)
        finally:
            self.model.train(training)
        self._bound_caches()

    def _row(
        self, place: int, request: TurnRequest, frame: _Frame, prompt: list[int]
    ) -> Row | None:
        """What is to be decoded; None when the frame has no room for another turn."""
        from agent.decoding import Row

        room = self._frame_tokens - len(frame.ids) - len(prompt)
        frame.full = frame.full or room < 1
        if frame.full:
            return None
        frame.ids += prompt
        return Row(
            place=place,
            tokens=frame.ids[frame.cached :],
            cached=frame.cached,
            past=frame.past,
            limit=min(room, self.settings.max_turn_tokens),
            seed=request.seed,
        )

    def _reply(self, key: FrameKey, prompt: list[int], row: Row) -> TurnReply:
        """What a row has sampled, kept in its frame and told."""
        frame = self._frames[key]
        frame.ids += row.sampled
        frame.past, frame.cached = row.past, row.cached
        return TurnReply(
            text=self.chat.text(row.sampled),
            finish="stop" if row.sampled[-1] in self._stop_ids else "length",
            prompt_ids=prompt,
            sampled_ids=row.sampled,
            logprobs=row.logprobs,
        )

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Forget frames that ended."""
        for key in keys:
            self._frames.pop(key, None)

    def _read(self, request: TurnRequest) -> tuple[_Frame, list[int]]:
        """The request's frame, and the ids it has to read before it writes."""
        if request.first:
            frame = self._frames[request.key] = _Frame()
            return frame, self.chat.first(request.messages)
        if request.key not in self._frames:
            raise PolicyError(f"frame {request.key}: its first turn was never played here")
        frame = self._frames[request.key]
        ended = bool(frame.ids) and frame.ids[-1] == self.chat.end_of_turn
        return frame, self.chat.follow(request.messages, ended)

    def _bound_caches(self) -> None:
        kept = sum(frame.cached for frame in self._frames.values())
        for frame in self._frames.values():  # the oldest first
            if kept <= self._cache_tokens:
                return
            kept -= frame.cached
            frame.past, frame.cached = None, 0


def _stop_ids(model: Any) -> frozenset[int]:
    """The ids that the model's own generation settings stop at."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset([eos] if isinstance(eos, int) else eos or [])
