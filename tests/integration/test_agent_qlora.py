"""The merge of a 4-bit base and its adapter, and the merges that would damage the model.

The whole path: `test_tasks_demonstrate.py`.
"""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.random_model import observed, write_adapter, write_base

from agent.errors import ExportError
from agent.policies.hf_policy import load_model
from agent.training.export import LIMITS, error_limit, faults, measure
from agent.training.merge import merge

# One group, so that one process imports it.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.xdist_group("transformers")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])  # float32: the whole path
def test_a_merge_onto_the_twin_behaves_like_the_4_bit_model_and_its_adapter(tmp_path, dtype):
    base = write_base(tmp_path, dtype)
    adapter = write_adapter(base, tmp_path / "adapter")
    live, effect = observed(base, adapter)
    arithmetic = str(dtype).removeprefix("torch.")
    assert live.dtype == arithmetic
    form = "bfloat16" if dtype == torch.bfloat16 else "float16"
    merge(base, adapter, tmp_path / "merged", dtype=form)
    merged, _ = load_model(tmp_path / "merged", dtype=dtype)
    assert not getattr(merged, "is_quantized", False)
    assert faults(measure(live, merged), effect, error_limit(form, arithmetic)) == []
    assert effect > 0.05


def test_other_merges_would_damage_the_model_and_are_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path, torch.float32)
    adapter = write_adapter(base, tmp_path / "adapter")
    live, effect = observed(base, adapter)
    limit = LIMITS["float16"]

    def refused(folder: Path) -> float:
        found = measure(live, load_model(folder)[0])
        (wrong, *_) = faults(found, effect, limit)
        assert wrong.startswith("logits are off by")
        return found.logit_error

    # Into the 4-bit weights, which rounds them again.
    model, tokenizer = load_model(base, adapter=adapter)
    with pytest.warns(UserWarning, match="Merge lora module to 4-bit"):
        naive = model.merge_and_unload()
    whole = naive.dequantize(dtype=torch.float32)
    whole.save_pretrained(tmp_path / "naive", save_original_format=False)
    tokenizer.save_pretrained(tmp_path / "naive")
    assert refused(tmp_path / "naive") > 10 * limit
    # Onto the weights from before the quantisation.
    merge(tmp_path / "source", adapter, tmp_path / "unquantised", dtype="float16")
    assert refused(tmp_path / "unquantised") > 10 * limit
    # Without a twin there is nothing that a merge may use.
    shutil.copytree(base, tmp_path / "alone", ignore=shutil.ignore_patterns("twin"))
    with pytest.raises(ExportError, match=r"quantised weights and no twin.*stage warmstart"):
        merge(tmp_path / "alone", adapter, tmp_path / "merged", dtype="float16")
    assert not (tmp_path / "merged").exists()
