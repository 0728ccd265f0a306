#!/usr/bin/env bash
# The whole chain on one graphics card in some ten minutes, and what it took there; then the speed of
# decoding in the shape of Qwen3-4B with an adapter, with a CUDA graph of each step and without.
#
#   MODEL=FOLDER bash benchmarks/card.sh [bf16|fp16|cpu]
#
# Run `make setup-cuda` and `python -m examples.trials.collect SOURCE` first. `fp16` takes bfloat16
# from the card and decodes in 4 bits, as on a T4; `cpu` tries the script without a card and without
# Unsloth. Results: reports/card/. A second run needs a fresh clone, because the first one's results
# are kept.
set -uo pipefail
mode=${1:-bf16}
out=reports/card/$mode
python=.venv/bin/python
mkdir -p "$out"
rm -f "$out"/*.json "$out"/*.parquet "$out"/*.csv
export HF_HUB_OFFLINE=1
if [ "$mode" = fp16 ]; then
  printf 'import torch\ntorch.cuda.is_bf16_supported = lambda *a, **k: False\n' > "$out/sitecustomize.py"
  export PYTHONPATH=$PWD/$out
fi
settings=(
  model.source="${MODEL:?a folder, or package:NAME}"
  env.idle_timeout_s=3600
  warmstart.kind=sft warmstart.sft.problems=400
  generation.batch_frames=128 generation.cache_tokens=131072
  train.steps=3 train.problems_per_step=4 train.save_every=1
  evaluate.episodes=20 evaluate.latency_episodes=1 export.prompts=4
)
case $mode in
  bf16) settings+=(model.backend=unsloth model.quantisation=nf4) ;;
  fp16) settings+=(model.backend=unsloth model.quantisation=nf4 export.dtype=float16 export.max_logit_error=0.01
    warmstart.sft.seed=1) ;;  # or DVC would take the base that bf16 made
  cpu) ;;
  *) echo "unknown mode $mode: bf16, fp16 or cpu" >&2; exit 2 ;;
esac
arguments=()
for setting in "${settings[@]}"; do arguments+=(--set "$setting"); done
{ git rev-parse HEAD; $python -m flows.doctor; } > "$out/machine.txt" 2>&1
if [ "$mode" != cpu ]; then
  nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader,nounits -lms 1000 > "$out/card.csv" &
  trap 'kill %1' EXIT
fi
start=$SECONDS
$python -m flows.pipeline run --profile trials "${arguments[@]}" 2>&1 | tee "$out/chain.log"
code=${PIPESTATUS[0]}
echo "exit code $code, $((SECONDS - start)) s" | tee "$out/result.txt"
# Reports of this run only: after a failure, those of the run before are still there.
find reports -maxdepth 1 -type f -newer "$out/machine.txt" -exec cp {} "$out" \;
[ -f "$out/train.parquet" ] || { echo "nothing was trained in this run"; code=$((code ? code : 1)); }
[ -f "$out/train.parquet" ] && $python - "$out" << 'END'
"""Print what the training took by step, peak memory, and the error of the merge."""
import json, sys
from pathlib import Path

import pandas as pd

out = Path(sys.argv[1])
rows = pd.read_parquet(out / "train.parquet")
table = rows.filter(regex="^step$|seconds|tokens|logprob|kl|reward/overall")
table.to_csv(out / "train.csv", index=False)
print(table.T.to_string())
if (card := out / "card.csv").exists():
    print("peak MiB", max(int(line.split(",")[0]) for line in card.read_text().splitlines()))
merge = json.loads((out / "export.json").read_text())
print({name: merge[name] for name in ("logit_error", "limit", "effect") if name in merge})
END
$python - "$mode" << 'END' 2>&1 | tee "$out/decoding.txt"
"""Print the tokens a second of the own loop, and how far its log-probabilities are from a pass."""
import sys
import time
from itertools import product

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from agent.decoding.folding import Folding
from agent.decoding.row_buffer import CacheShape, StaticSteps
from agent.decoding.sampling import SampledTurn, sample
from agent.models.model_files import compute_dtype, free_memory, this_device
from flows.runtime import set_environment

set_environment()
device, card = this_device(), sys.argv[1] != "cpu"
dtype = torch.float16 if sys.argv[1] == "fp16" else compute_dtype(device)
torch.set_default_device(device)
torch.set_default_dtype(dtype)
width, layers, vocabulary, read, new = (2560, 36, 151_936, 500, 128) if card else (256, 2, 2000, 50, 9)
torch.manual_seed(0)
shape = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
model = Qwen3ForCausalLM(Qwen3Config(
    hidden_size=width, intermediate_size=4 * width - 512, num_hidden_layers=layers,
    vocab_size=vocabulary, **shape
)).eval()
if sys.argv[1] == "fp16":
    from bitsandbytes.nn import Linear4bit

    for module in [one for one in model.modules() if one is not model]:
        for name, child in [*module.named_children()]:
            if type(child) is torch.nn.Linear:
                sizes = (child.in_features, child.out_features)
                short = Linear4bit(*sizes, bias=False, compute_dtype=dtype, quant_type="nf4", device="cpu")
                short.load_state_dict({"weight": child.weight.cpu()})
                setattr(module, name, short.to(device))
    model.is_loaded_in_4bit = True  # as PEFT knows it
adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
model = get_peft_model(model, adapter).eval()
torch.set_default_device("cpu")
torch.set_default_dtype(torch.float32)
free_memory()
print("frames  turns    tokens  steps    tokens/s  GiB   log-probabilities differ by (mean, most)")
kinds = [(8, 1, new), (32, 1, new), (64, 1, new), (4, 16, 10)]  # the last one as a T4's readers
for run, ((frames, batches, tokens), static) in enumerate([(kinds[0], False), *product(kinds, (False, True))]):
    prompts = torch.randint(vocabulary, (frames * batches, read)).tolist()
    rows = [  # some turns end early, as in play
        SampledTurn(n, ids, 0, None, limit=tokens - n % 4 * tokens // 8, seed=n)
        for n, ids in enumerate(prompts)
    ]
    try:
        with Folding(model).folded():
            kind, steps = CacheShape.of(model), None
            if static:
                steps = StaticSteps.on(model, kind) if card else StaticSteps(model, kind)
                assert steps, "no CUDA graph: see the warning above"
            if card:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            for at in range(0, len(rows), frames):
                list(sample(model, kind, rows[at : at + frames], frozenset(), 1.0, steps=steps))
            speed = sum(len(row.sampled) for row in rows) / (time.perf_counter() - began)
        peak = torch.cuda.max_memory_reserved() / 2**30 if card else 0.0
        with torch.no_grad():  # as the trainer computes them
            ids = torch.tensor([prompts[0] + rows[0].sampled], device=model.device)
            logps = model(ids).logits[0, read - 1 : -1].float().log_softmax(-1)
        plain = logps.gather(1, ids[0, read:, None])[:, 0].cpu()
        off = (plain - torch.tensor(rows[0].logprobs)).abs()
        name = "graph" if static else "eager"
        if run:  # the first one warms up
            print(f"{frames:6}  {frames * batches:5}  {tokens:8}  {name}  {speed:10.0f}  {peak:4.1f}  {off.mean():.4f}, {off.max():.4f}")
    except torch.OutOfMemoryError:
        print(f"{frames:6}  out of memory")
END
exit "$code"
