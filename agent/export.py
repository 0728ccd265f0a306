"""Merging an adapter into its base in 16 bit, and proving that the file behaves like the model.

`merge` writes the folder; `observe` records what the live model (32-bit base and adapter) does;
`python -m agent.export` loads the folder in a process of its own and measures it against that
record; `judge` decides. An adapter is never merged into 4-bit weights: the rounding would undo
training (measured: 6.6 % error of the logits, 0.015 % after dequantising first).
Neighbours: `tasks/export.py` drives it, `agent/models.py` loads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.errors import ExportError
from agent.settings import GenerationSettings

Logits = NDArray[np.float32]
"""[completion tokens, vocabulary]: row i predicts token i of the completion."""


@dataclass(frozen=True)
class Record:
    """What a model did on some prompts; the lists run over prompts."""

    prompts: list[list[int]]
    completions: list[list[int]]
    """Greedy, end-of-turn token included where it came."""
    logits: list[Logits]
    stop_ids: list[int]
    max_new_tokens: int

    def save(self, path: Path) -> None:
        """Write as one .npz file."""
        arrays: dict[str, Any] = {
            "stop_ids": np.array(self.stop_ids, dtype=np.int64),
            "max_new_tokens": np.array(self.max_new_tokens),
            "count": np.array(len(self.prompts)),
        }
        for i, prompt in enumerate(self.prompts):
            arrays[f"prompt_{i}"] = np.array(prompt, dtype=np.int64)
            arrays[f"completion_{i}"] = np.array(self.completions[i], dtype=np.int64)
            arrays[f"logits_{i}"] = self.logits[i]
        np.savez(path, **arrays)

    @staticmethod
    def load(path: Path) -> Record:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            indices = range(int(arrays["count"]))
            return Record(
                prompts=[arrays[f"prompt_{i}"].tolist() for i in indices],
                completions=[arrays[f"completion_{i}"].tolist() for i in indices],
                logits=[arrays[f"logits_{i}"] for i in indices],
                stop_ids=arrays["stop_ids"].tolist(),
                max_new_tokens=int(arrays["max_new_tokens"]),
            )


@dataclass(frozen=True)
class Measured:
    """How a model on disk differs from the record of the live one."""

    logit_error: float
    """Relative error of the logits: the largest over prompts."""
    logit_error_mean: float
    completions_equal: int
    ties: list[float] = field(default_factory=list)
    """For each completion that differs: how far apart the live model saw the two tokens at the
    first difference, over its largest logit there. Below the rounding it is no difference."""
    episode: dict[str, Any] | None = None


def is_quantised(model: Any) -> bool:
    """The weights are stored in fewer than 16 bits."""
    return bool(getattr(model, "is_quantized", False)) or any(
        parameter.element_size() < 2 for parameter in model.parameters()
    )


def merge(
    base: Path, adapter: Path | None, out: Path, *, dtype: str, dequantise: bool = False
) -> None:
    """Write `base` with `adapter` folded in, and the tokenizer, in 16 bit.

    Args:
        base: the model the adapter was trained on; without an adapter, the trained model itself.
        adapter: a PEFT adapter, or None.
        out: folder to write.
        dtype: `float16` or `bfloat16`.
        dequantise: a quantised base may be turned into 16-bit weights first.

    Raises:
        ExportError: the base is quantised and may not be dequantised, or a weight does not fit
            the dtype.
    """
    import torch

    from agent.models import load_model

    model, tokenizer = load_model(base, dtype=torch.float32)
    quantised = is_quantised(model)
    if quantised:
        if not dequantise:
            raise ExportError(
                f"{base} holds quantised weights; merging into them would round the training "
                "away. Set export.dequantise=true, or ship the adapter beside its base"
            )
        model = model.dequantize()
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model.float(), str(adapter))
        model = model.merge_and_unload(safe_merge=True)
    model = model.to(getattr(torch, dtype))
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise ExportError(f"{broken[0]}: not finite in {dtype}; set export.dtype=bfloat16")
    # The format of a quantised checkpoint is not the one to go back to.
    model.save_pretrained(out, save_original_format=not quantised)
    tokenizer.save_pretrained(out)


def observe(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    completions: Sequence[Sequence[int]] | None = None,
) -> Record:
    """Greedy completions of a model, and its logits along `completions` (default: its own)."""
    import torch

    greedy: list[list[int]] = []
    logits: list[Logits] = []
    with torch.inference_mode():
        for i, prompt in enumerate(prompts):
            ids = torch.tensor([prompt], device=model.device)
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(stop_ids),
                pad_token_id=stop_ids[0],
            )
            greedy.append(written[0, len(prompt) :].tolist())
            along = list(completions[i]) if completions is not None else greedy[-1]
            whole = torch.tensor([[*prompt, *along]], device=model.device)
            found = model(input_ids=whole).logits[0, len(prompt) - 1 : -1]  # [completion, vocab]
            logits.append(found.float().cpu().numpy())
    return Record(
        prompts=[list(prompt) for prompt in prompts],
        completions=greedy,
        logits=logits,
        stop_ids=list(stop_ids),
        max_new_tokens=max_new_tokens,
    )


def relative_errors(live: Sequence[Logits], other: Sequence[Logits]) -> list[float]:
    """Norm of the difference over the norm of the live logits, for each prompt.

    Each position is centred first: what is added to all logits changes no probability, and must
    not hide a difference by enlarging the norm.
    """
    errors = []
    for one, two in zip(live, other, strict=True):
        a, b = (x - x.mean(axis=-1, keepdims=True) for x in (one, two))
        errors.append(float(np.linalg.norm(b - a) / np.linalg.norm(a)))
    return errors


def measure(live: Record, model: Any) -> Measured:
    """A model against the record of the live one."""
    found = observe(
        model,
        live.prompts,
        stop_ids=live.stop_ids,
        max_new_tokens=live.max_new_tokens,
        completions=live.completions,
    )
    errors = relative_errors(live.logits, found.logits)
    ties = []
    for ours, theirs, logits in zip(live.completions, found.completions, live.logits, strict=True):
        differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
        if differing:
            at = logits[differing[0]]
            gap = at[ours[differing[0]]] - at[theirs[differing[0]]]
            ties.append(float(gap / np.abs(at - at.mean()).max()))
    return Measured(
        logit_error=max(errors),
        logit_error_mean=float(np.mean(errors)),
        completions_equal=len(live.prompts) - len(ties),
        ties=ties,
    )


def judge(measured: Measured, effect: float, limit: float) -> list[str]:
    """What is wrong with a merged model; empty when it behaves like the live one.

    Args:
        measured: by a fresh process, from the files on disk.
        effect: relative change of the logits by training (live against base).
        limit: largest relative error of the logits.
    """
    wrong = []
    if not effect > 0:
        wrong.append(
            "the trained model gives the logits of its base: the adapter was lost, or training "
            "moved nothing (no group of a step had a reward of its own, or a rate of almost 0)"
        )
    if not measured.logit_error <= limit:  # NaN fails too
        wrong.append(f"logits are {measured.logit_error:.3%} off, the limit is {limit:.3%}")
    elif 0 < effect < 2 * measured.logit_error:
        wrong.append(
            f"training moved the logits by {effect:.3%} and the merged model is "
            f"{measured.logit_error:.3%} off: a merge that lost the adapter would look the same"
        )
    # At a tie within the rounding of both logits, either token is right.
    differing = [gap for gap in measured.ties if not gap <= 2 * limit]
    if differing:
        wrong.append(f"{len(differing)} greedy completions differ by more than rounding")
    if measured.episode is not None and measured.episode["void"] is not None:
        wrong.append(f"the episode it played is void: {measured.episode['void']}")
    return wrong


def play_one(
    model: Any, tokenizer: Any, url: str, problem_id: str, generation: GenerationSettings
) -> dict[str, Any]:
    """One greedy episode on the environment: how it ended."""
    from agent.models import TransformersPolicy
    from agent.rollout import EpisodeSpec, play

    greedy = generation.model_copy(update={"temperature": 0.0})
    spec = EpisodeSpec(problem_id=problem_id, seed=0)
    (episode,) = play(TransformersPolicy(model, tokenizer, greedy), url, [spec], sessions=1)
    return {
        "problem_id": problem_id,
        "reward": episode.reward,
        "f1": episode.evidence.f1 if episode.evidence else None,
        "turns": episode.counters.turns,
        "stop_reason": episode.root.stop_reason if episode.frames else None,
        "void": episode.void,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure a model folder against a record; the fresh process of the check."""
    parser = argparse.ArgumentParser(prog="python -m agent.export", description=main.__doc__)
    parser.add_argument("model", type=Path, help="folder of the merged model")
    parser.add_argument("record", type=Path, help="record of the live model (.npz)")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--url", help="environment to play one episode on")
    parser.add_argument("--problem", help="id of that episode's problem")
    parser.add_argument("--generation", default="{}", help="its settings of generation, as JSON")
    options = parser.parse_args(argv)

    import torch

    from agent.models import load_model

    torch.set_num_threads(options.threads)
    # 32-bit arithmetic: what is measured is the weights, not the device's rounding.
    model, tokenizer = load_model(options.model, dtype=torch.float32)
    found = vars(measure(Record.load(options.record), model))
    if options.url:
        generation = GenerationSettings.model_validate_json(options.generation)
        found["episode"] = play_one(model, tokenizer, options.url, options.problem, generation)
    options.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
