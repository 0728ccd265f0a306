# %% [markdown]
# # Train a recursive language model
#
# Run All works with a graphics card and without: without one it trains `nano`, a model of 0.66
# million parameters. Each section needs only the ones before it. After a lost session, Run All
# continues: finished stages are skipped, and training goes on from its last checkpoint.

# %% tags=["parameters"]
PROFILE = ""  # a name in profiles/; empty: what `python -m flows.doctor` finds
SETTINGS = []  # changes such as "train.steps=20"
REPOSITORY = ""  # address of the project, if this notebook is not in a checkout of it
ENV_URL = ""  # address of a running environment, such as a Space; empty: start one here

# %% [markdown]
# ## 1. Install
#
# All packages have the versions of `constraints.txt`, or of `constraints-cuda.txt` with a card.
# They go to `.venv`, so that this notebook's own packages stay as they are. PyTorch's usual build
# is for CUDA 13.0. A driver below 580 gets the build for CUDA 12.6.

# %%
import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from IPython.display import Image, display


def sh(command, **variables):
    """Run a shell command and show its output; a failure ends Run All."""
    with subprocess.Popen(
        command,
        shell=True,
        executable="/bin/bash",
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            print(line, end="")
    if process.returncode:
        raise RuntimeError(f"{command}: exit code {process.returncode}. See its output above.")


def stage(name):
    """Run `python -m flows.pipeline NAME`, unless its result is up to date."""
    sh(f"dvc repro --single-item {name}")


if not Path("dvc.yaml").exists() and Path("../dvc.yaml").exists():
    os.chdir("..")
if not Path("dvc.yaml").exists():
    if not Path("rlm").exists():
        assert REPOSITORY, "Set REPOSITORY to the address of the project."
        sh(f"git clone {shlex.quote(REPOSITORY)} rlm")
    os.chdir("rlm")
os.environ["PATH"] = f"{Path('.venv/bin').absolute()}:{os.environ['PATH']}"

doctor = subprocess.run(["python3", "-m", "flows.doctor", "--json"], capture_output=True, text=True)
cards = json.loads(doctor.stdout)["machine"]["cards"]
if not Path(".venv/bin/python").exists() and shutil.which("uv"):
    sh("uv venv --quiet --seed .venv")  # Colab's Python has no ensurepip
if not json.loads(doctor.stdout)["machine"]["seccomp"]:
    sh("apt-get update -qq && apt-get install -y -qq libseccomp2")
if not cards:
    sh("make setup", PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu")
elif int(cards[0]["driver"].split(".")[0]) < 580:
    sh("make setup-cuda", UV_TORCH_BACKEND="cu126")
else:
    sh("make setup-cuda")

# %%
sh("python -m flows.doctor")
os.environ["CARD"] = cards[0]["name"] if cards else ""
if not PROFILE:
    found = subprocess.run(["python", "-m", "flows.doctor", "--json"], stdout=subprocess.PIPE)
    PROFILE = json.loads(found.stdout)["profile"]
changes = " ".join(f"--set {shlex.quote(setting)}" for setting in SETTINGS)
sh(f"python -m flows.pipeline resolve --profile {PROFILE} {changes}")

# %% [markdown]
# ## 2. Data and base model
#
# The problems are generated and checked. The bare model plays ten zero-shot episodes, which show
# whether it needs demonstrations. The warm start writes `models/base`.

# %%
stage("prepare")
stage("validate")
stage("zeroshot")
stage("warmstart")

# %% [markdown]
# With a card, Unsloth loads the base, which the profiles `t4` and `a100` store in 4 bit. It adds
# an adapter of rank 16 to the seven projection matrices, with alpha 16 and without dropout. The
# limit is 2,048 tokens, the seed 42.

# %%
# %%script .venv/bin/python
import os
from pathlib import Path

if os.environ["CARD"]:
    from agent.demonstrations.unsloth_process import load_with_unsloth
    from tasks.config import load_resolved

    lora = load_resolved().train.lora
    model, tokenizer = load_with_unsloth(Path("models/base"), lora, max_seq_length=2048, seed=42)
    model.print_trainable_parameters()
else:
    from agent.policies.hf_policy import load_model

    model, tokenizer = load_model(Path("models/base"))
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters on the CPU")


# %% [markdown]
# ## 3. Connect to the environment
#
# `ENV_URL` names a deployed environment. Without it, one is started on this machine. The client
# then plays one turn by hand.

# %%
def healthy(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


if not ENV_URL:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    Path("logs").mkdir(exist_ok=True)
    server = subprocess.Popen(
        shlex.split(f"python -m env.server.app --until-eof --host 127.0.0.1 --port {port}"),
        env={**os.environ, "RLM_SETTINGS": "params.resolved.yaml", "RLM_DATA": "data/problems"},
        stdin=subprocess.PIPE,  # it stops with this notebook
        stdout=Path("logs/environment.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    ENV_URL = f"http://127.0.0.1:{port}"
    while not healthy(ENV_URL):
        assert server.poll() is None, Path("logs/environment.log").read_text()
        time.sleep(0.5)
assert healthy(ENV_URL), f"The environment at {ENV_URL} does not answer."
os.environ["RLM_ENV_URL"] = ENV_URL

# %%
# %%script .venv/bin/python
import asyncio
import os

from env.client import RLMEnv
from env.models import RLMAction


async def play_a_turn():
    async with RLMEnv(os.environ["RLM_ENV_URL"]) as client:
        shown = (await client.reset(seed=0)).observation
        print(shown.frames[0].messages[-1].content)
        result = await client.step(RLMAction(text="```repl\nprint(len(context))\n```"))
        print(result.observation.frames[0].messages[-1].content)


asyncio.run(play_a_turn())

# %% [markdown]
# ## 4. Rollouts before training
#
# The gate plays the base at the target difficulty and at the easiest, ten episodes and more of each.
# If too few earn a reward by what was read, the model is too weak or the task too hard, and the
# notebook stops here with advice.

# %%
stage("gate")
for level, figures in json.loads(Path("reports/gate.json").read_text())["levels"].items():
    print(f"{level}: {figures['earned']} of {figures['episodes']} episodes earned a reward")

# %% [markdown]
# ## 5. Train with GRPO
#
# The curriculum moves to harder problems when the reward allows it. MLflow records every step.
# `python -m flows.services up` shows the curves while it trains.

# %%
stage("train")

# %% [markdown]
# The table has the reward, its four components, and the shares of successes and timeouts. Below it
# are episodes as the model wrote them: a hacked reward shows there first.

# %%
# %%script .venv/bin/python
import json
from pathlib import Path

import pandas

steps = pandas.read_parquet("reports/train.parquet")
columns = [name for name in steps if name.startswith("reward/")]
columns += ["episode/success_rate", "episode/timeout_rate"]
print(steps[["step", *columns]].round(3).to_string(index=False))
episodes = Path("reports/raw_episodes.jsonl").read_text().splitlines()
for episode in map(json.loads, episodes[-3:]):
    print("\n", json.dumps(episode, ensure_ascii=False)[:3000])

# %% [markdown]
# ## 6. Save and check
#
# The adapter is merged in 16 bit, never into 4-bit weights. A fresh process loads the files,
# compares them with the trained model and plays an episode.

# %%
stage("export")
exported = json.loads(Path("reports/export.json").read_text())
print(f"logits differ by {exported['logit_error']:.2%}, training moved them by {exported['effect']:.2%}")
print("episode of the merged model:", exported["episode"])

# %% [markdown]
# ## 7. Compare before and after
#
# Both models play the same held-out problems with the same seeds.

# %%
stage("evaluate")
stage("plots")
print(json.loads(Path("reports/evaluation.json").read_text())["improvement"])
for name in ("reward_curve", "before_after"):
    display(Image(f"reports/plots/{name}.png"))

# %% [markdown]
# ## 8. Register
#
# The registry keeps the model with data, settings and figures. `python -m flows.pipeline promote`
# decides on fresh problems whether it becomes champion.

# %%
sh("python -m flows.pipeline register")
