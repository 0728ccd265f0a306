"""Log-probabilities through a prefix tree against a pass over each row alone."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.tiny_trees import VOCAB, tiny_model

from agent.training.token_logprobs import sampled_logprobs

# One group, so that one process imports TRL.
pytestmark = [pytest.mark.usefixtures("trainer_imported"), pytest.mark.xdist_group("trainer")]
TEMPERATURE = 0.7
Row = tuple[list[int], list[int]]
"""Ids, and places of the sampled ones."""


def text(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, VOCAB, length)]


PROMPT = text(20, 0)
READERS: list[Row] = [([*PROMPT, *text(3, seed)], [20, 21, 22]) for seed in (1, 2, 1)]
APART: list[Row] = [(text(9, 3), [5, 6]), (text(5, 4), [1])]
TURNS: list[Row] = [([*PROMPT[:6], *text(2, 5), *text(7, n)], [6, 7, 11, 12, 14]) for n in (6, 7)]
BLANK: Row = ([0, 0], [])
LONG: Row = (text(60, 8), [50, 59])
CASES: dict[str, list[Row]] = {
    "equal prompts": READERS,
    "nothing shared": APART,
    "turns with observations between": TURNS,
    "blank rows": [BLANK, *APART, BLANK],
    "blank rows alone": [BLANK, BLANK],
    "all at once, one much longer": [*READERS, LONG, *TURNS, BLANK, *APART],
    "a row alone": [LONG],
    "a beginning of another row": [(PROMPT, [10, 19]), *READERS],
}


def padded(rows: Sequence[Row]) -> list[torch.Tensor]:
    """Ids and attention, [B, T], and the sampled ones of the columns after the first, [B, C]."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[9] * (width - len(ids))] for ids, _ in rows])
    attention = torch.tensor([[n < len(ids) for n in range(width)] for ids, _ in rows]).long()
    sampled = torch.tensor([[n in places for n in range(1, width)] for _, places in rows])
    return [ids, attention, sampled]


def one_by_one(model: torch.nn.Module, rows: Sequence[Row]) -> list[torch.Tensor]:
    """Log-probabilities and entropies of the sampled tokens, [2, n] of each row."""
    found = []
    for ids, places in rows:
        logits = model(input_ids=torch.tensor([ids])).logits[0] / TEMPERATURE
        before = torch.log_softmax(logits, -1)[[place - 1 for place in places]]
        chosen = before[range(len(places)), [ids[place] for place in places]]
        found.append(torch.stack([chosen, -(before.exp() * before).sum(-1)]))
    return found


def gradients(model: torch.nn.Module, logps_N: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a sum with unequal weights."""
    model.zero_grad()
    (logps_N * torch.arange(1, len(logps_N) + 1)).sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def apart(model: torch.nn.Module, rows: Sequence[Row]) -> tuple[float, float]:
    """Largest errors of log-probabilities and entropies, and of gradients."""
    batch = padded(rows)
    logps_B_C, entropies_B_C = sampled_logprobs(model, *batch, TEMPERATURE)
    assert not logps_B_C[~batch[-1]].any()
    assert not entropies_B_C[~batch[-1]].any()
    found = torch.stack([logps_B_C[batch[-1]], entropies_B_C[batch[-1]]])
    mine = gradients(model, found[0])
    wanted = torch.cat(one_by_one(model, rows), 1)
    theirs = gradients(model, wanted[0])
    assert len(mine) == len(theirs) > 0
    pairs = [(found, wanted), *zip(mine, theirs, strict=True)]
    errors = [float((a - b).detach().abs().max()) if a.numel() else 0.0 for a, b in pairs]
    return errors[0], max(errors[1:])


def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model

    adapted: torch.nn.Module = get_peft_model(model, LoraConfig(target_modules="all-linear"))
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data.normal_(std=0.1)
    return adapted


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_and_gradients_are_those_of_each_row_alone(case) -> None:
    logps, gradient = apart(tiny_model(), CASES[case])
    assert logps < 1e-5
    assert gradient < 1e-3  # of 1 to 100


def test_a_bfloat16_model_has_nearly_the_gradients_of_a_float32_one() -> None:
    short = with_adapter(tiny_model().bfloat16())
    exact = deepcopy(short).float()
    batch = padded(CASES["all at once, one much longer"])
    mine, theirs = (
        torch.cat([g.flatten() for g in gradients(model, logps[batch[-1]])])
        for model in (short, exact)
        for logps in [sampled_logprobs(model, *batch, TEMPERATURE)[0]]
    )
    assert torch.nn.functional.cosine_similarity(mine, theirs, dim=0) > 0.999


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_run_again_in_the_backward_pass_attend_alike(reentrant: bool) -> None:
    model = with_adapter(tiny_model()).train()
    theirs = gradients(model, torch.cat(one_by_one(model, READERS), 1)[0])
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = padded(READERS)
    mine = gradients(model, sampled_logprobs(model, *batch, TEMPERATURE)[0][batch[-1]])
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).abs().max() < 1e-3


def test_a_model_reads_plain_batches_after_a_tree() -> None:
    model = tiny_model()
    ids, attention, _ = padded(READERS + APART)
    before = model(input_ids=ids, attention_mask=attention).logits
    sampled_logprobs(model, *padded(READERS), TEMPERATURE)
    assert torch.equal(before, model(input_ids=ids, attention_mask=attention).logits)


def test_a_shared_beginning_passes_through_the_model_once() -> None:
    model, read = tiny_model(), []
    model.register_forward_pre_hook(
        lambda _, args, given: read.append((given["input_ids"].shape, given["logits_to_keep"])),
        with_kwargs=True,
    )
    sampled_logprobs(model, *padded(READERS), 1.0)
    ((shape, kept),) = read
    assert shape == (1, 26)
    assert len(kept) == 5  # the first token of all three readers follows one prompt
