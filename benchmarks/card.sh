#!/usr/bin/env bash
# The whole chain on one graphics card in some ten minutes, and what it took there; then the speed of
# decoding in the shape of Qwen3-4B, with a CUDA graph of each step and without.
#
#   MODEL=FOLDER bash benchmarks/card.sh [bf16|fp16|cpu]
#
# Run `make setup-cuda` and `python -m examples.trials.collect SOURCE` first. `fp16` takes bfloat16
# from the card, as a T4 lacks it; `cpu` tries the script without a card and without Unsloth.
# Results: reports/card/.
set -uo pipefail
mode=${1:-bf16}
out=reports/card/$mode
python=.venv/bin/python
mkdir -p "$out"
rm -f "$out"/*.json "$out"/*.parquet "$out"/*.csv
export HF_HUB_OFFLINE=1 PYTORCH_ALLOC_CONF=expandable_segments:True
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
from dataclasses import replace
from itertools import product

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agent.decoding.row_buffer import CacheShape
from agent.decoding.sampling import SampledTurn, sample

card = sys.argv[1] != "cpu"
torch.set_default_device("cuda" if card else "cpu")
if card:
    torch.set_default_dtype(torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)
width, layers, vocabulary, read, new = (2560, 36, 151_936, 500, 128) if card else (256, 2, 2000, 50, 9)
torch.manual_seed(0)
shape = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
model = Qwen3ForCausalLM(Qwen3Config(
    hidden_size=width, intermediate_size=4 * width - 512, num_hidden_layers=layers,
    vocab_size=vocabulary, **shape
)).eval()
torch.set_default_device("cpu")
torch.set_default_dtype(torch.float32)
print("frames  steps    tokens/s  GiB   log-probabilities differ by (mean, most)")
for run, (frames, static) in enumerate([(8, False), *product((8, 32, 64), (False, True))]):
    prompts = torch.randint(vocabulary, (frames, read)).tolist()
    rows = [  # some turns end early, as in play
        SampledTurn(n, ids, 0, None, limit=new - n % 4 * new // 8, seed=n)
        for n, ids in enumerate(prompts)
    ]
    try:
        kind = CacheShape.of(model)
        if static and card and not kind.static:
            sys.exit("no CUDA graph: see the warning above")
        if card:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        list(sample(model, replace(kind, static=static), rows, frozenset(), 1.0))
        speed = sum(len(row.sampled) for row in rows) / (time.perf_counter() - began)
        peak = torch.cuda.max_memory_reserved() / 2**30 if card else 0.0
        with torch.no_grad():
            ids = torch.tensor([prompts[0] + rows[0].sampled], device=model.device)
            logps = model(ids).logits[0, read - 1 : -1].float().log_softmax(-1)
        plain = logps.gather(1, ids[0, read:, None])[:, 0].cpu()
        off = (plain - torch.tensor(rows[0].logprobs)).abs()
        name = "graph" if static else "eager"
        if run:  # the first one warms up
            print(f"{frames:6}  {name}  {speed:10.0f}  {peak:4.1f}  {off.mean():.4f}, {off.max():.4f}")
    except torch.OutOfMemoryError:
        print(f"{frames:6}  out of memory")
END
exit "$code"
