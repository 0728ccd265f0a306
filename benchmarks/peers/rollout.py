"""Peers in `benchmarks.rollout`: transformers' `generate`, and TRL's loop.

Both play the real environment with the same model, temperature and limit of tokens per turn.

The root-only form of a problem is the same problem on a server with `env.limits.max_depth: 0`,
which refuses every sub-call at once. TRL's `environment_factory` has no recursion, so both sides
can play this form. In TRL's loop a turn with a block is a call of the only tool, `repl`. A turn
with FINAL, or without a whole block, ends the conversation and is played when the rewards are
computed.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from agent.models.chat_template import ChatFormat
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.rollouts.specs import EpisodeSpec
from agent.settings import GenerationSettings
from env.client import Sessions
from env.models import Finish, RLMAction, RLMObservation

_CALL = re.compile(r"```repl\n(?!.*FINAL).*\n```", re.DOTALL)
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' }}"
    "{{ message['content'] }}{{ (message['tool_calls'] | tojson) if message['tool_calls'] }}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The nano template with tools: a tool's output takes the place of the environment's message."""


class GeneratePolicy:
    """Plays frames with `generate`, one batch per turn; it reads the whole conversation again."""

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        self.model, self.settings = model, settings
        self.chat = ChatFormat(tokenizer)
        self.pad = tokenizer.pad_token_id
        self.ids: dict[FrameKey, list[int]] = {}

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """One turn for each request."""
        replies: list[TurnReply] = []
        for start in range(0, len(requests), self.settings.batch_frames):
            replies += self._batch(requests[start : start + self.settings.batch_frames])
        return replies

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Forget frames that ended."""
        for key in keys:
            self.ids.pop(key, None)

    def _batch(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        for request in requests:
            ids = self.ids.setdefault(request.key, [])
            if request.first:
                ids += self.chat.first(request.messages)
            else:
                ids += self.chat.follow(request.messages, ids[-1] == self.chat.end_of_turn)
        sampled = generate(
            self.model, [self.ids[request.key] for request in requests], self.settings, self.pad
        )
        replies = []
        for request, row in zip(requests, sampled, strict=True):
            self.ids[request.key] += row
            finish: Finish = "stop" if row[-1] in self.chat.stop_ids else "length"
            replies.append(TurnReply(text=self.chat.text(row), finish=finish, sampled_ids=row))
        return replies


def generate(
    model: Any, prompts: Sequence[list[int]], settings: GenerationSettings, pad: int
) -> list[list[int]]:
    """Token ids of one sampled turn after each prompt, without padding."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=settings.temperature,
            top_k=0,
            max_new_tokens=settings.max_turn_tokens,
            pad_token_id=pad,
        )
    rows = out[:, longest:].tolist()
    return [list(itertools.takewhile(lambda token: token != pad, row)) for row in rows]


def trl_loop(
    model: Any,
    tokenizer: Any,
    sessions: Sessions,
    specs: Sequence[EpisodeSpec],
    settings: GenerationSettings,
    folder: str,
) -> Callable[[], int]:
    """TRL's rollout of the specs in the root-only form; a call plays it and returns the tokens."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    slots = itertools.count()
    first = sessions.reset(0, problem_id=specs[0].problem_id).result()
    system = first.frames[0].messages[0].content

    class RootOnly:
        """An episode as TRL wants it: `reset`, and every other method is a tool."""

        def __init__(self) -> None:
            self._slot = next(slots)

        def reset(self, problem_id: str, **_: Any) -> str:
            return _words(sessions.reset(self._slot, problem_id=problem_id).result())

        def repl(self, text: str) -> str:
            """Run the turn's block.

            Args:
                text: the turn.
            """
            return _words(sessions.step(self._slot, RLMAction(text=text)).result())

        def _end(self, text: str) -> Any:
            return sessions.step(self._slot, RLMAction(text=text or "."))

    def reward(environments: list[Any], completions: list[Any], **_: Any) -> list[float]:
        ends = [e._end(c[-1]["content"]) for e, c in zip(environments, completions, strict=True)]
        return [end.result().reward or 0.0 for end in ends]

    prompt = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    rows = [{"prompt": prompt, "problem_id": spec.problem_id} for spec in specs]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[cast(Any, reward)],
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=len(specs),
            num_generations=8,
            max_completion_length=settings.max_frame_tokens,
            temperature=settings.temperature,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=_with_tool(tokenizer),
        environment_factory=cast(Any, RootOnly),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.generation_config.max_new_tokens = settings.max_turn_tokens  # a turn, not all turns

    def play() -> int:
        model.train()
        out = trainer._generate_and_score_completions([dict(row) for row in rows])
        return int((out["completion_mask"] * out.get("tool_mask", 1)).sum())

    return play


def _words(observation: RLMObservation) -> str:
    """Next message to the root; empty without one."""
    return observation.frames[0].messages[-1].content if observation.frames[0].messages else ""


def _with_tool(tokenizer: Any) -> Any:
    """The tokenizer that TRL's loop needs: tools in its template, and a parser of their calls."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = _TEMPLATE

    def parse(ids: list[int], prefix: Any = None) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        message = {"role": "assistant", "content": text}
        if _CALL.search(text):
            call = {"name": "repl", "arguments": {"text": text}}
            message["tool_calls"] = [{"type": "function", "function": call}]
        return message

    tokenizer.response_template = {"defaults": {"role": "assistant"}}  # so that TRL adds none
    tokenizer.parse_response = parse
    return tokenizer
