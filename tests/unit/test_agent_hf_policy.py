"""The transformers policy: ids, caches and log-probs against plain forward passes."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import random_model
from helpers.random_model import tokenizer
from helpers.recorded_graph import RecordedGraph, record_graphs
from helpers.tiny_trees import sampled_logps

from agent.decoding import sampling
from agent.decoding.folding import Folding
from agent.errors import PolicyError
from agent.policies.base import TurnReply, TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.settings import GenerationSettings
from env.models import Message

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

END = random_model.SPECIAL.index("<|im_end|>")
SIZES = random_model.SIZES | {
    "hidden_size": 32,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}


def tiny(kind: str = "Llama", **changes: int) -> torch.nn.Module:
    """A random decoder; weights large enough that its distribution is not flat."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
    model: torch.nn.Module = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.lm_head.weight.data[END] *= 3  # so that some turns end early
    return model


def with_adapter(model: torch.nn.Module | None = None, **config: Any) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model

    config = {"r": 2, "target_modules": "all-linear", "init_lora_weights": False, **config}
    return get_peft_model(model or tiny(), LoraConfig(**config)).eval()


def saved(folder: Path) -> Path:
    tiny().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings(**changes: float) -> GenerationSettings:
    return GenerationSettings(**{"max_turn_tokens": 24, **changes})


def policy_of(model: torch.nn.Module | None = None, **changes: float) -> TransformersPolicy:
    return TransformersPolicy(model or tiny(), tokenizer(), settings(**changes))


def request(number: int, turn: int, text: str) -> TurnRequest:
    messages = [Message(role="user", content=text)]
    if turn == 0:
        messages.insert(0, Message(role="system", content="Find it."))
    return TurnRequest((number, 0), messages, 0, "rlm", turn == 0, seed=1000 * number + turn)


def converse(policy: TransformersPolicy, numbers: list[int], turns: int) -> list[list[TurnReply]]:
    """Several frames with texts of very different lengths, all in one call per turn."""
    replies: list[list[TurnReply]] = [[] for _ in numbers]
    for turn in range(turns):
        requests = [request(n, turn, "word " * (1 + (7 * n + 3 * turn) % 11)) for n in numbers]
        for history, reply in zip(replies, policy.act(requests), strict=True):
            history.append(reply)
    return replies


@pytest.mark.parametrize(("kind", "temperature"), [("Llama", 1.0), ("Qwen3", 0.7)])
def test_logprobs_equal_a_full_forward_pass_over_several_turns(kind, temperature):
    model = tiny(kind).train()
    model.config.attention_dropout = 0.5
    played = converse(policy_of(model, temperature=temperature), list(range(6)), turns=4)
    assert model.training  # it is sampled in evaluation, and left as it was
    model.eval()
    assert {turn.finish for turns in played for turn in turns} == {"stop", "length"}
    for turns in played:
        got = [value for turn in turns for value in turn.logprobs]
        assert got == pytest.approx(sampled_logps(model, turns, temperature).tolist(), abs=1e-4)
        for turn in turns:
            assert turn.finish == ("stop" if turn.sampled_ids[-1] == END else "length")
            assert END not in turn.sampled_ids[:-1]


def test_graphs_of_a_step_are_made_anew_for_other_weights(monkeypatch):
    record_graphs(monkeypatch)
    policy = policy_of(model := with_adapter())
    made = []
    for number in range(4):
        (turns,) = converse(policy, [number], 1)
        wanted = sampled_logps(model, turns).tolist()
        assert turns[0].logprobs == pytest.approx(wanted, abs=1e-4)
        made.append(RecordedGraph.made)
        for name, weight in model.named_parameters():
            if number == 1 and "lora_B" in name:
                weight.data.mul_(1.5)
        if number == 2:
            policy.release([(n, 0) for n in range(3)])
    assert made[0] == made[1] < made[2] < made[3]


def test_a_full_gpu_names_the_settings_to_lower(monkeypatch):
    model = tiny().train()
    policy = policy_of(model, batch_frames=5, cache_tokens=90)

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sampling.Batch, "step", full)
    with pytest.raises(PolicyError, match="batch_frames"):
        policy.act([request(0, 0, "word")])
    assert model.training


def test_limits_end_turns_and_frames_with_length():
    played = converse(policy_of(max_frame_tokens=150), list(range(6)), 12)
    for turns in played:
        assert sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns) <= 150
        assert all(len(turn.sampled_ids) <= 24 for turn in turns)
        assert turns[-1] == TurnReply(text="", finish="length")
    cut = [turn for turns in played for turn in turns if turn.finish == "length"]
    assert any(turn.sampled_ids for turn in cut)


def test_released_frames_are_forgotten():
    policy = policy_of(with_adapter())
    converse(policy, [0, 1], 1)
    policy.release([(0, 0), (9, 9)])
    assert list(policy._frames) == [(1, 0)]
    with pytest.raises(KeyError):
        policy.act([request(0, 1, "more")])
    assert policy._folding._forwards
    policy.release([(1, 0)])
    assert not policy._folding._forwards


MODEL = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
TOKENIZER = {"AutoTokenizer": [None, "own.Own"]}
OWN_CODE = {
    "config.json": {"model_type": "own", "auto_map": MODEL},
    "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": TOKENIZER},
}


@pytest.mark.parametrize("asked_for", OWN_CODE)
def test_code_in_a_model_folder_is_refused_and_nobody_is_asked(tmp_path, monkeypatch, asked_for):
    stored = json.loads((saved(tmp_path) / asked_for).read_text())
    (tmp_path / asked_for).write_text(json.dumps(stored | OWN_CODE[asked_for]))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: ...\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    with pytest.raises(PolicyError, match="code of its own"):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "word"),
    [("none", "no such"), ("empty", "no model"), ("pickled", "no model"), ("away", "in another f")],
)
def test_what_is_no_model_is_refused(tmp_path, kind, word):
    if kind == "pickled":
        (saved(tmp_path) / "model.safetensors").unlink()
        torch.save(tiny().state_dict(), tmp_path / "pytorch_model.bin")
    if kind == "away":
        parts = {"weight_map": {"a": "../model.safetensors"}}
        (saved(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(parts))
    with pytest.raises(PolicyError, match=word):
        load_model(tmp_path / "nothing" if kind == "none" else tmp_path)


def test_an_adapter_is_laid_onto_its_base(tmp_path):
    adapted = with_adapter()
    adapted.save_pretrained(tmp_path / "adapter")
    model, tokenizer = load_model(saved(tmp_path / "base"), adapter=tmp_path / "adapter")
    for turns in converse(TransformersPolicy(model.cpu(), tokenizer, settings()), [0, 1], 2):
        got = [value for turn in turns for value in turn.logprobs]
        assert got == pytest.approx(sampled_logps(adapted, turns).tolist(), abs=1e-4)
        assert got != pytest.approx(sampled_logps(tiny(), turns).tolist(), abs=1e-2)
    (tmp_path / "adapter/adapter_model.safetensors").rename(tmp_path / "adapter/adapter_model.bin")
    with pytest.raises(PolicyError, match=r"adapter_model\.safetensors is missing"):
        load_model(tmp_path / "base", adapter=tmp_path / "adapter")


def four_bit(dtype: torch.dtype) -> torch.nn.Module:
    """The tiny model with linear layers of 4 bits that multiply in this format."""
    from bitsandbytes.nn import Linear4bit

    model = tiny(hidden_size=128, intermediate_size=128, head_dim=32).to(dtype)
    for module in [one for one in model.modules() if one is not model]:  # lm_head stays
        for name, child in module.named_children():
            if type(child) is torch.nn.Linear:
                sizes = (child.in_features, child.out_features)
                short = Linear4bit(*sizes, bias=False, compute_dtype=dtype, quant_type="nf4")
                short.load_state_dict(child.state_dict())
                setattr(module, name, short.to("cpu"))
    model.is_loaded_in_4bit = True  # as PEFT knows it
    return model


FORMATS = [(32, torch.float32, 1e-4), (16, torch.bfloat16, 0.6), (16, torch.float16, 0.15)]
FORMATS += [(4, torch.float32, 1e-4), (4, torch.bfloat16, 2.0), (4, torch.float16, 0.25)]


@pytest.mark.parametrize(("bits", "dtype", "error"), FORMATS)
def test_an_adapter_is_folded_into_the_weights_only_while_it_plays(bits, dtype, error):
    adapted = with_adapter(four_bit(dtype) if bits == 4 else tiny().to(dtype))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        adapted(input_ids=ids)  # packs weights of 4 bits for a CPU
    before = {name: value.clone() for name, value in adapted.named_parameters()}
    used = []
    layer = adapted.base_model.model.model.layers[0].mlp.up_proj.lora_A["default"]
    hook = layer.register_forward_hook(lambda *_: used.append(True))
    with torch.no_grad():
        with RecordedGraph() as slow:
            apart = adapted(input_ids=ids).logits
        assert used.pop()
        with Folding(adapted).folded(), RecordedGraph() as fast:
            together = adapted(input_ids=ids).logits
        assert not used
        assert len(fast.operations) <= len(slow.operations) - 3 * 14  # fewer kernels in each layer
        again = adapted(input_ids=ids).logits
        assert used
    hook.remove()
    assert together.dtype == dtype
    with torch.no_grad(), adapted.disable_adapter():
        assert float((adapted(input_ids=ids).logits - apart).abs().max()) > max(0.5, 5 * error)
    assert together.float().numpy() == pytest.approx(apart.float().numpy(), abs=error)
    assert torch.equal(again, apart)
    assert all(torch.equal(value, before[name]) for name, value in adapted.named_parameters())


def test_a_small_update_of_a_bfloat16_model_is_played():
    adapted = with_adapter(tiny().to(torch.bfloat16), r=1, lora_alpha=1, init_lora_weights=True)
    ids = torch.arange(40)[None]

    def logits(folded: bool) -> torch.Tensor:
        with torch.no_grad(), Folding(adapted).folded() if folded else nullcontext():
            return adapted(input_ids=ids).logits.float()

    bare = logits(folded=True)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.03)  # weights of 0.3 move by a thousandth
    moved, wanted = logits(folded=True) - bare, logits(folded=False) - bare
    assert float(torch.cosine_similarity(moved.flatten(), wanted.flatten(), dim=0)) > 0.9


def test_sums_with_an_adapter_are_made_once_for_its_weights():
    adapted = with_adapter()
    folding = Folding(adapted)
    ids = torch.arange(40)[None]

    def logits() -> tuple[torch.Tensor, list[int]]:
        with torch.no_grad(), folding.folded():
            found = adapted(input_ids=ids).logits
        return found, [id(forward) for forward in folding._forwards.values()]

    first, sums = logits()
    assert len(sums) == 14  # the linear layers
    again, kept = logits()
    assert kept == sums
    assert torch.equal(again, first)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.data.mul_(1.5)  # which no version counter sees
    trained, _ = logits()
    with torch.no_grad():
        assert trained.numpy() == pytest.approx(adapted(input_ids=ids).logits.numpy(), abs=1e-4)
        assert trained.numpy() != pytest.approx(first.numpy(), abs=1e-2)
        with adapted.disable_adapter():
            bare, _ = logits()
            assert torch.equal(bare, adapted(input_ids=ids).logits)


def test_an_adapter_that_cannot_be_folded_is_not_folded():
    biased = {"lora_bias": True, "target_modules": ["q_proj", "k_proj", "v_proj"]}
    for config in ({"use_dora": True}, biased):
        folding = Folding(with_adapter(tiny("Qwen3"), **config))
        with folding.folded():
            assert not folding._forwards


def test_a_cache_with_a_sliding_window_is_refused():
    from agent.decoding.row_buffer import CacheShape

    with pytest.raises(PolicyError, match="SlidingWindow"):
        CacheShape.of(tiny("Mistral", sliding_window=16))
