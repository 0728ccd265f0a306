"""Policy of a transformers model: frames in, sampled turns and their log-probabilities out.

The policy keeps each frame's tokens and cache from its first turn to its release. Text is decoded
for the environment only and never turned back into tokens. Neighbours: `conversations.py` (ids of
the frames), `sampling.py` (the sampling loop).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agent.decoding.drafts import DraftStore
from agent.decoding.folding import Folding
from agent.decoding.row_buffer import CacheShape, StaticSteps
from agent.decoding.sampling import SampledTurn, sample
from agent.errors import PolicyError
from agent.models import model_files
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.conversations import Conversations, TurnPrompt
from agent.settings import GenerationSettings


def load_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: Any = None
) -> tuple[Any, Any]:
    """Load a model, in 16 bit, float32 or NF4, and its tokenizer for inference.

    Args:
        path: folder of a saved model and its tokenizer; a string can be a name on the Hub.
        adapter: saved PEFT adapter, which is applied but not merged; default: the folder's own.
        dtype: default: as `model_files.saved_dtype` says.

    Raises:
        PolicyError: `path` or `adapter` does not exist, has no model in safetensors, or needs
            Python code of its own, which is never run. Or its weights are in another folder, or the
            adapter belongs to another base.
    """
    for folder in (path, adapter):
        if isinstance(folder, Path) and not folder.is_dir():
            raise PolicyError(f"{folder}: no such folder. Run the stage that writes it.")
    if adapter is None and (own := Path(path) / model_files.ADAPTER).is_dir():
        adapter = own
    device = model_files.this_device()
    with model_files.reading(path, "Run the stage that writes it again."):
        model_files.require_inside(Path(path), str(path))
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype or model_files.saved_dtype(config, device),
            # Weights go to the device one by one, and never all to the memory of the host.
            device_map={"": device},
            attn_implementation="sdpa",
            # Said here, because transformers asks on a terminal where it is not said.
            trust_remote_code=False,
            use_safetensors=True,
        )
    model_files.keep_unpacked(model)
    if adapter is not None:
        fix = f"It must be an adapter of {path}: run the stage that writes it again."
        if not (Path(adapter) / "adapter_model.safetensors").is_file():  # PEFT would unpickle .bin
            raise PolicyError(f"{adapter}: adapter_model.safetensors is missing. {fix}")
        try:
            with model_files.reading(adapter, fix):
                model = PeftModel.from_pretrained(model, str(adapter)).to(device)
                _require_all_read(model, Path(adapter), fix)
        except RuntimeError as error:
            if "size mismatch" not in str(error):
                raise
            raise PolicyError(f"{adapter}: its weights have other sizes. {fix}") from error
    model.eval()
    return model, tokenizer


def _require_all_read(model: Any, adapter: Path, fix: str) -> None:
    """Refuse an adapter for other layers, of which PEFT warns at most."""
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as file:
        saved = {name for name in file.keys() if ".lora_" in name}  # noqa: SIM118 - not a mapping
    wanted = get_peft_model_state_dict(model, save_embedding_layers=False)
    if other := saved ^ {name for name in wanted if ".lora_" in name}:
        raise PolicyError(
            f"{adapter}: its layers are not those of the model ({len(other)} differ, such as "
            f"{min(other)}). {fix}"
        )


@dataclass(frozen=True)
class SavedConfigs:
    """Configuration of a saved model, where its weights are not needed."""

    config: Any
    generation_config: Any


def load_configs(path: Path) -> tuple[SavedConfigs, Any]:
    """Load the configuration of a saved model and its tokenizer.

    Raises:
        PolicyError: the folder has no model.
    """
    with model_files.reading(path, "Run the stage that writes it again."):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        generation = GenerationConfig.from_pretrained(path)
    return SavedConfigs(config, generation), tokenizer


class TransformersPolicy:
    """Policy that plays frames with a causal language model.

    The model may be trained between calls, but not while frames are open, since their caches belong
    to the old weights. A call sets it to evaluation mode and restores the mode.

    Args:
        model: causal language model of transformers or PEFT whose cache is a `DynamicCache`.
        tokenizer: its tokenizer, with a chat template.
        settings: sampling. The oldest frames beyond `cache_tokens` read their conversation again.

    Raises:
        PolicyError: the chat template or the cache is unusable.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        self.model = model
        self.settings = settings
        self._conversations = Conversations(model, tokenizer, settings)
        self.chat = self._conversations.chat
        self._frames: dict[FrameKey, SampledTurn] = {}
        """Last turn of each frame, with the cache of its conversation."""
        self._shape: CacheShape | None = None
        self._steps: StaticSteps | None = None
        self._drafts = DraftStore()
        self._folding = Folding(model)

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request, decoded in batches of `batch_frames`.

        A turn finishes with `stop` at the end-of-turn token and with `length` at `max_turn_tokens`.
        A frame without room in `max_frame_tokens` gets an empty `length` turn.
        """
        replies = dict(self.stream(requests))
        return [replies[place] for place in range(len(requests))]

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """Yield (index of the request, reply) as soon as each turn is complete; see `act`.

        Raises:
            PolicyError: the GPU has no memory left.
        """
        prompts, rows = [], []
        for place, request in enumerate(requests):
            prompt, row = self._read(place, request)
            prompts.append(prompt)
            if row is None:
                yield place, TurnReply(text="", finish="length")
            else:
                rows.append(row)
        # Rows of a length fill a batch, and equal ones are neighbours.
        rows.sort(key=lambda row: (len(row.tokens), row.tokens))
        size, temperature = self.settings.batch_frames, self.settings.temperature
        stop_ids = self._conversations.stop_ids
        training = self.model.training
        self.model.eval()
        try:
            with self._folding.folded() as same:
                if self._shape is None or not same:  # graphs read the weights where they are
                    self._shape = self._steps = None  # the old ones end before there are others
                    self._shape = CacheShape.of(self.model)
                    self._steps = StaticSteps.on(self.model, self._shape)
                helpers: dict[str, Any] = {"drafts": self._drafts, "steps": self._steps}
                while rows:
                    part, rows = rows[:size], rows[size:]
                    turns = sample(self.model, self._shape, part, stop_ids, temperature, **helpers)
                    for row in turns:
                        request, prompt = requests[row.place], prompts[row.place]
                        self._frames[request.key] = row
                        yield (
                            row.place,
                            self._conversations.reply(request, prompt, row.sampled, row.logprobs),
                        )
                    del part, row  # they refer to caches
                    self._bound_caches({requests[row.place].key for row in rows})
        except torch.OutOfMemoryError as error:
            raise PolicyError(
                "the GPU has no memory left to play. Lower generation.batch_frames (now "
                f"{size}) or generation.cache_tokens (now {self.settings.cache_tokens})."
            ) from error
        finally:
            self.model.train(training)

    def _read(self, place: int, request: TurnRequest) -> tuple[TurnPrompt, SampledTurn | None]:
        """New ids of the frame, and the row to decode; None if the frame has no room for it."""
        prompt = self._conversations.read(request)
        if not prompt.limit:
            return prompt, None
        last = None if request.first else self._frames.get(request.key)
        row = SampledTurn(
            place=place,
            tokens=list(self._conversations.ids(request.key)),
            cached=last.cached if last else 0,
            past=last.past if last else None,
            limit=prompt.limit,
            seed=request.seed,
        )
        if request.first:  # in the order of the requests, whichever is complete first
            self._frames[request.key] = row
        return prompt, row

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for key in keys:
            self._frames.pop(key, None)
            self._conversations.release(key)
        if not self._frames:
            self._shape = self._steps = None
            self._folding.forget()

    def _bound_caches(self, waiting: Collection[FrameKey]) -> None:
        """Drop the oldest caches beyond `cache_tokens`, but none that a waiting turn will read."""
        tokens = sum(frame.cached for frame in self._frames.values())
        for key, frame in self._frames.items():  # oldest first
            if tokens <= self.settings.cache_tokens:
                return
            tokens -= frame.cached
            if key not in waiting:
                frame.past, frame.cached = None, 0
