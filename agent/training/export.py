"""Merge of an adapter into its base in 16 bit, and check that the files behave like the model.

`merge` writes the folder. `observe` records the live model: 32-bit base and adapter.
`python -m agent.training.export` loads the folder in a fresh process and measures it against the
record, and `judge` decides. An adapter is never merged into 4-bit weights, because the rounding
would undo training (measured: 6.6 % error of the logits; 0.015 % after dequantising first).
Neighbours: `tasks/export.py` calls it, `agent/policies/hf_policy.py` loads.
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
    """Completions and logits of a model; the lists have an entry per prompt."""

    prompts: list[list[int]]
    completions: list[list[int]]
    """Greedy completions, with the end-of-turn token if it was generated."""
    logits: list[Logits]
    stop_ids: list[int]
    max_new_tokens: int

    def save(self, path: Path) -> None:
        """Write as one .npz file."""
        lists = {name: value for name, value in vars(self).items() if name != "logits"}
        np.savez(path, *self.logits, lists=np.array(json.dumps(lists)))

    @staticmethod
    def load(path: Path) -> Record:
        """Read a file of `save`."""
        with np.load(path) as arrays:
            lists = json.loads(str(arrays["lists"]))
            logits = [arrays[f"arr_{i}"] for i in range(len(lists["prompts"]))]
            return Record(**lists, logits=logits)


@dataclass(frozen=True)
class MergeDifference:
    """Difference between a model on disk and the record of the live one."""

    logit_error: float
    """Largest relative error of the logits over prompts."""
    logit_error_mean: float
    completions_equal: int
    ties: list[float] = field(default_factory=list)
    """Relative gap of the two tokens' live logits at the first difference of each completion.

    A gap below the rounding error is a tie.
    """
    episode: dict[str, Any] | None = None


def is_quantised(model: Any) -> bool:
    """Whether weights are stored in fewer than 16 bits."""
    return bool(getattr(model, "is_quantized", False)) or any(
        parameter.element_size() < 2 for parameter in model.parameters()
    )


def merge(
    base: Path, adapter: Path | None, out: Path, *, dtype: str, dequantise: bool = False
) -> None:
    """Write `base` with `adapter` merged, and the tokenizer, in 16 bit.

    Args:
        base: base of the adapter; without an adapter, the trained model itself.
        adapter: PEFT adapter, or None.
        out: folder to write.
        dtype: `float16` or `bfloat16`.
        dequantise: allow to dequantise a quantised base.

    Raises:
        ExportError: the base is quantised and `dequantise` is False, or a weight overflows the
            dtype.
    """
    import torch

    from agent.policies.hf_policy import load_model

    model, tokenizer = load_model(base, dtype=torch.float32)
    quantised = is_quantised(model)
    if quantised:
        if not dequantise:
            raise ExportError(
                f"{base} has quantised weights (a merge would round the training away). Set "
                "export.dequantise=true."
            )
        model = model.dequantize()
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model.float(), str(adapter))
        model = model.merge_and_unload(safe_merge=True)
    model = model.to(getattr(torch, dtype))
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise ExportError(f"{broken[0]}: not finite in {dtype}. Set export.dtype=bfloat16.")
    # The original format of a quantised checkpoint would quantise again.
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
    """Record greedy completions, and the logits along `completions` (default: the same)."""
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
    """Norm of the difference divided by the norm of the live logits, for each prompt.

    Each position is centred first. A constant added to all logits changes no probability, but would
    hide a difference by increasing the norm.
    """
    errors = []
    for one, two in zip(live, other, strict=True):
        a, b = (x - x.mean(axis=-1, keepdims=True) for x in (one, two))
        errors.append(float(np.linalg.norm(b - a) / np.linalg.norm(a)))
    return errors


def measure(live: Record, model: Any) -> MergeDifference:
    """Measure a model against the record of the live one."""
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
    return MergeDifference(
        logit_error=max(errors),
        logit_error_mean=float(np.mean(errors)),
        completions_equal=len(live.prompts) - len(ties),
        ties=ties,
    )


def judge(measured: MergeDifference, effect: float, limit: float) -> list[str]:
    """Faults of a merged model; empty if it behaves like the live one.

    Args:
        measured: measurement of the files on disk by a fresh process.
        effect: relative change of the logits by training (live against base).
        limit: largest valid relative error of the logits.
    """
    wrong = []
    if not effect > 0:
        wrong.append(
            "the trained model gives the logits of its base: the adapter was lost, or training "
            "changed nothing (no signal, or too small a learning rate)"
        )
    if not measured.logit_error <= limit:  # NaN fails too
        wrong.append(f"logits are off by {measured.logit_error:.3%}, the limit is {limit:.3%}")
    elif 0 < effect < 2 * measured.logit_error:
        wrong.append(
            f"training moved the logits by {effect:.3%}, but the merge by "
            f"{measured.logit_error:.3%}: a merge without the adapter would look the same"
        )
    # At a tie within the rounding of both logits, either token is right.
    if differing := [gap for gap in measured.ties if not gap <= 2 * limit]:
        wrong.append(f"{len(differing)} greedy completions differ by more than rounding")
    if measured.episode is not None and measured.episode["void"] is not None:
        wrong.append(f"its episode is void: {measured.episode['void']}")
    return wrong


def play_one(
    model: Any, tokenizer: Any, url: str, problem_id: str, generation: GenerationSettings
) -> dict[str, Any]:
    """Play a greedy episode on the environment. Returns its result."""
    from agent.policies.hf_policy import TransformersPolicy
    from agent.rollouts.engine import play
    from agent.rollouts.specs import EpisodeSpec

    spec = EpisodeSpec(problem_id=problem_id, seed=0)
    policy = TransformersPolicy(model, tokenizer, generation.greedy)
    (episode,) = play(policy, url, [spec], sessions=1)
    return {
        "problem_id": problem_id,
        "reward": episode.reward,
        "f1": episode.metrics.f1 if episode.metrics else None,
        "turns": episode.counters.turns,
        "stop_reason": episode.root.stop_reason if episode.frames else None,
        "void": episode.void,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure a model folder against a record, in a fresh process."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.training.export", description=main.__doc__
    )
    parser.add_argument("model", type=Path, help="folder of the merged model")
    parser.add_argument("record", type=Path, help="record of the live model (.npz)")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--url", help="address of an environment for one episode")
    parser.add_argument("--problem", help="id of that episode's problem")
    parser.add_argument(
        "--generation", default="{}", help="generation settings of that episode, as JSON"
    )
    options = parser.parse_args(argv)

    import torch

    from agent.policies.hf_policy import load_model

    torch.set_num_threads(options.threads)
    # 32-bit arithmetic, which measures the weights without the rounding of a device.
    model, tokenizer = load_model(options.model, dtype=torch.float32)
    found = vars(measure(Record.load(options.record), model))
    if options.url:
        generation = GenerationSettings.model_validate_json(options.generation)
        found["episode"] = play_one(model, tokenizer, options.url, options.problem, generation)
    options.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
