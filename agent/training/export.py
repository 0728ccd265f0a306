"""Check that a merged model on disk behaves like the model that was trained.

`observe` records the live model: base and adapter, not merged. `python -m agent.training.export`
loads the merged folder in a fresh process and measures it against the record, and `faults` decides.
A vocabulary can have 150,000 entries, so only the largest logits of each token are kept.
Neighbours: `merge.py` writes the folder, `tasks/export.py` calls both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agent.settings import GenerationSettings

if TYPE_CHECKING:
    import torch

Counted = Callable[[str, Sequence[Any]], Iterable[Any]]
"""(what is done, items) -> the items; the caller sees how many are finished."""

TOP = 64
"""Largest logits that are kept of each token."""
LIMITS = {"float16": 0.001, "bfloat16": 0.01}
"""Largest relative error of the logits from rounding the weights, by the format of the files."""


@dataclass(frozen=True)
class TopLogits:
    """Largest logits of a completion's tokens, in descending order.

    Each row has its mean over the vocabulary subtracted. A constant added to all logits changes no
    probability, but would hide a difference by increasing the norm.
    """

    ids_T_K: NDArray[np.int64]
    logits_T_K: NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """Completions and largest logits of a model; the lists have an entry per prompt."""

    prompts: list[list[int]]
    completions: list[list[int]]
    """Greedy completions, with the end-of-turn token if it was generated."""
    top: list[TopLogits]
    stop_ids: list[int]
    max_new_tokens: int
    dtype: str
    """Number format of the model's arithmetic."""

    def save(self, path: Path) -> None:
        """Write as one .npz file."""
        lists = {name: value for name, value in vars(self).items() if name != "top"}
        arrays = [array for top in self.top for array in (top.ids_T_K, top.logits_T_K)]
        np.savez(path, *arrays, lists=np.array(json.dumps(lists)))

    @staticmethod
    def load(path: Path) -> Record:
        """Read a file of `save`."""
        with np.load(path) as arrays:
            lists = json.loads(str(arrays["lists"]))
            places = range(0, 2 * len(lists["prompts"]), 2)
            top = [TopLogits(arrays[f"arr_{i}"], arrays[f"arr_{i + 1}"]) for i in places]
            return Record(**lists, top=top)


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


def error_limit(dtype: str, arithmetic: str) -> float:
    """Largest valid relative error of the logits.

    Args:
        dtype: number format of the merged weights.
        arithmetic: number format in which both models compute. In 16 bit, each layer rounds too.
    """
    return LIMITS[dtype] if arithmetic == "float32" else 2 * max(LIMITS[dtype], LIMITS[arithmetic])


def observe(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    counted: Counted = lambda _, items: items,
) -> Record:
    """Record greedy completions and their logits; `counted` passes on the prompts."""
    completions = [
        _complete(model, prompt, stop_ids, max_new_tokens)
        for prompt in counted("completions", prompts)
    ]
    return Record(
        prompts=[list(prompt) for prompt in prompts],
        completions=completions,
        top=[
            top_logits(_logits(model, prompt, completion))
            for prompt, completion in zip(prompts, completions, strict=True)
        ],
        stop_ids=list(stop_ids),
        max_new_tokens=max_new_tokens,
        dtype=str(model.get_input_embeddings().weight.dtype).removeprefix("torch."),
    )


def _complete(
    model: Any, prompt: Sequence[int], stop_ids: Sequence[int], max_new_tokens: int
) -> list[int]:
    import torch

    ids = torch.tensor([list(prompt)], device=model.device)
    with torch.inference_mode():
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stop_ids),
            pad_token_id=stop_ids[0],
        )
    completion: list[int] = written[0, len(prompt) :].tolist()
    return completion


def _logits(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] that predict the completion's tokens."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *completion]], device=model.device)
        logits_T_V: torch.Tensor = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        return logits_T_V


def _centred(logits_T_V: torch.Tensor) -> torch.Tensor:
    return logits_T_V.float() - logits_T_V.float().mean(dim=-1, keepdim=True)


def top_logits(logits_T_V: torch.Tensor) -> TopLogits:
    """The `TOP` largest logits of each row."""
    values, ids = _centred(logits_T_V).topk(min(TOP, logits_T_V.shape[-1]), dim=-1)
    return TopLogits(ids.cpu().numpy(), values.cpu().numpy())


def relative_error(live: TopLogits, logits_T_V: torch.Tensor) -> float:
    """Norm of the difference to other logits divided by the norm of the live ones.

    Tokens that are only in the other's largest count by how far they are above the least of the
    live ones: their live logits are below it.

    Args:
        live: largest logits of the live model.
        logits_T_V: logits of the other model for the same tokens.
    """
    import torch

    other = _centred(logits_T_V)
    ids_T_K = torch.from_numpy(live.ids_T_K).to(other.device)
    difference = other.gather(-1, ids_T_K).cpu().numpy() - live.logits_T_K
    risen = other.scatter(-1, ids_T_K, -torch.inf)
    risen_T_K = risen.topk(min(TOP, other.shape[-1]), dim=-1).values.cpu().numpy()
    above = np.clip(risen_T_K - live.logits_T_K[:, -1:], 0, None)
    norm = np.hypot(np.linalg.norm(difference), np.linalg.norm(above))
    return float(norm / np.linalg.norm(live.logits_T_K))


def relative_errors(live: Record, model: Any) -> list[float]:
    """Relative error of a model's logits along the live completions, for each prompt."""
    pairs = zip(live.prompts, live.completions, live.top, strict=True)
    return [relative_error(top, _logits(model, prompt, done)) for prompt, done, top in pairs]


def measure(live: Record, model: Any) -> MergeDifference:
    """Measure a model against the record of the live one."""
    errors = relative_errors(live, model)
    ties = []
    for prompt, ours, top in zip(live.prompts, live.completions, live.top, strict=True):
        theirs = _complete(model, prompt, live.stop_ids, live.max_new_tokens)
        differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
        if differing:
            at = differing[0]
            logits = dict(zip(top.ids_T_K[at].tolist(), top.logits_T_K[at].tolist(), strict=True))
            # A token that is not among the largest has a logit below all of them.
            gap = logits[ours[at]] - logits.get(theirs[at], min(logits.values()))
            ties.append(gap / max(map(abs, logits.values())))
    return MergeDifference(
        logit_error=max(errors),
        logit_error_mean=float(np.mean(errors)),
        completions_equal=len(live.prompts) - len(ties),
        ties=ties,
    )


def faults(
    measured: MergeDifference, effect: float, limit: float, whole_effect: float | None = None
) -> list[str]:
    """Faults of a merged model; empty if it behaves like the live one.

    Args:
        measured: measurement of the files on disk by a fresh process.
        effect: relative change of the logits by training (live against base).
        limit: largest valid relative error of the logits.
        whole_effect: change by training and by the adapter that the base had before (live against
            the base without it). Default: `effect`.
    """
    wrong = []
    moved = effect if whole_effect is None else whole_effect
    if not effect > 0:
        wrong.append(
            "the trained model gives the logits of its base: the adapter was lost, or training "
            "changed nothing (no signal, or too small a learning rate)"
        )
    if not measured.logit_error <= limit:  # NaN fails too
        wrong.append(f"logits are off by {measured.logit_error:.3%}, the limit is {limit:.3%}")
    elif 0 < moved < 2 * measured.logit_error:
        wrong.append(
            f"training moved the logits by {moved:.3%}, but the merge by "
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
    parser.add_argument("--generation", default="{}", help="its generation settings, as JSON")
    options = parser.parse_args(argv)

    import torch

    from agent.policies.hf_policy import load_model

    torch.set_num_threads(options.threads)
    live = Record.load(options.record)
    # The arithmetic of the live model, so that only the weights differ.
    model, tokenizer = load_model(options.model, dtype=getattr(torch, live.dtype))
    report = asdict(measure(live, model))
    if options.url:
        generation = GenerationSettings.model_validate_json(options.generation)
        report["episode"] = play_one(model, tokenizer, options.url, options.problem, generation)
    options.out.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
