# %% [markdown]
# # Train a recursive language model
#
# Nine sections train a model by reinforcement, in this kernel, with the objects of the library.
# Each section needs only the ones before it. Run All works with a graphics card and without:
# without one it trains `nano`, a model of 0.66 million parameters, in ten minutes. With one, it
# trains as long as the card's profile says: hours, and more than a session of Colab on a T4.
#
# A training that survives lost sessions, proves its result and registers it is
# `make full ARGS="--profile NAME"`.

# %% tags=["parameters"]
PROFILE = ""  # a name in profiles/; empty: what `python -m flows.doctor` finds, or else `quick`
SETTINGS = []  # further ones, such as "train.steps=8", which a T4 ends in a session
REPOSITORY = ""  # address of the project, if this notebook is not in a checkout of it
TRIALS = "https://github.com/jayded/evidence-inference"  # the data of the profiles for cards
ENV_URL = ""  # address of a running environment, such as a Space; empty: start one here

# %% [markdown]
# ## 1. Install
#
# All packages have the versions of `constraints.txt`, or of `constraints-cuda.txt` with a card.
# The kernel needs Python 3.11 or 3.12. PyTorch's usual build is for CUDA 13.0. A driver below 580
# gets the build for CUDA 12.6.

# %%
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


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


def doctor():
    """What `python -m flows.doctor` finds."""
    told = subprocess.run(["python3", "-m", "flows.doctor", "--json"], stdout=subprocess.PIPE)
    return json.loads(told.stdout)


assert (3, 11) <= sys.version_info < (3, 13), (
    f"This kernel has Python {sys.version.split()[0]}, not 3.11 or 3.12. In the project's folder, "
    "run in a terminal: uv venv --python 3.12 --seed .venv && make setup-cuda && make full"
)
if not Path("dvc.yaml").exists() and Path("../dvc.yaml").exists():
    os.chdir("..")
if not Path("dvc.yaml").exists():
    if not Path("rlm").exists():
        assert REPOSITORY, "Set REPOSITORY to the address of the project."
        sh(f"git clone {shlex.quote(REPOSITORY)} rlm")
    os.chdir("rlm")
os.environ["PATH"] = f"{Path('.venv/bin').absolute()}:{os.environ['PATH']}"

machine = doctor()["machine"]
cards = machine["cards"]
if not Path(".venv/bin/python").exists() and shutil.which("uv"):
    sh("uv venv --quiet --seed .venv")  # Colab's Python has no ensurepip
if not machine["seccomp"]:
    sh("apt-get update -qq && apt-get install -y -qq libseccomp2")
if not cards:
    sh("make setup", PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu")
elif int(cards[0]["driver"].split(".")[0]) < 580:
    sh("make setup-cuda", UV_TORCH_BACKEND="cu126")
else:
    sh("make setup-cuda")

# %%
# This kernel imports the packages of `.venv`, before its own.
packages = Path(f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
assert packages.exists(), f"{sys.version} isn't the Python of .venv. Use 3.11 or 3.12 for both."
sys.path[:0] = [str(Path.cwd()), str(packages.absolute())]
sys.executable = str(Path(".venv/bin/python").absolute())  # of the environment's server

import torch
import transformers
import trl

sh("python -m flows.doctor")
print(f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}")

# %% [markdown]
# ## 2. Load
#
# The stage `prepare` makes or reads the problems, and `validate` checks them. The bare model plays
# ten episodes (`zeroshot`), and `warmstart` writes the base: a model that knows from demonstrations
# how to write each move. With a T4, Unsloth trains it on them, in 4 bits.

# %%
from agent.policies.hf_policy import load_model
from tasks import paths
from tasks.config import load_resolved

PROFILE = PROFILE or (doctor()["profile"] if cards else "quick")
sizes = ["train.steps=8", "train.problems_per_step=8", "train.group_size=8"]
short = [] if cards else ["warmstart.nano.steps=800", *sizes]  # enough to succeed now and then
changes = " ".join(f"--set {shlex.quote(setting)}" for setting in [*short, *SETTINGS])
sh(f"python -m flows.pipeline resolve --profile {PROFILE} {changes}")
params = load_resolved()
if params.prepare.source == "files" and not Path(params.prepare.files.path).exists():
    only = "annotations/splits annotations/txt_files"
    sh(f"git clone --depth 1 --filter=blob:none --sparse {shlex.quote(TRIALS)} evidence")
    sh(f"git -C evidence sparse-checkout set {only}")
    sh("python -m examples.trials.collect evidence")
for stage in ("prepare", "validate", "zeroshot", "warmstart"):
    sh(f"dvc repro --single-item {stage}")

model, tokenizer = load_model(paths.BASE)
lora = params.train.lora
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters on {model.device}")
print(f"adapter: r {lora.r}, alpha {lora.alpha}, {', '.join(lora.targets)}")

# %% [markdown]
# ## 3. Connect
#
# `ENV_URL` names a deployed environment. Without it, one is started on this machine. The client
# then plays one turn by hand: `reset` shows a question, and `step` runs Python in the REPL, whose
# variable `context` has the papers.

# %%
from contextlib import ExitStack

from env.client import RLMEnv
from env.models import RLMAction
from tasks.deployment.local import local_server

running = ExitStack()  # the environment stops with this kernel
url = ENV_URL or running.enter_context(local_server(params, data=paths.PROBLEMS))
async with RLMEnv(url) as client:
    shown = (await client.reset(seed=0)).observation
    print(shown.frames[0].messages[-1].content)
    result = await client.step(RLMAction(text="```repl\nprint(len(context))\n```"))
    print(result.observation.frames[0].messages[-1].content)

# %% [markdown]
# ## 4. Roll out
#
# The policy writes a turn for each agent that waits: the root, and the children that its code
# opened. So an episode is a tree. Ten episodes of the easiest level show whether GRPO has anything
# to reinforce.

# %%
from statistics import fmean

from agent.policies.hf_policy import TransformersPolicy
from agent.rollouts.engine import play
from agent.rollouts.specs import read_specs
from tasks.training.problem_data import read_problems

problems = read_problems(paths.TRAIN, params.train.curriculum.levels)


def rollout(model, specs, generation=params.generation):
    """Play an episode for each spec."""
    policy = TransformersPolicy(model, tokenizer, generation)
    return play(policy, url, specs, sessions=min(len(specs), params.env.max_sessions))


def show(tree):
    """Print an episode as the model wrote it."""
    for agent in tree.frames.values():
        for turn in agent.turns:
            print(f"[{agent.kind} {agent.frame}] {turn.text.strip()}")
    print(f"answer {tree.answer}, reward {tree.reward}, {tree.components}\n")


first = problems[params.train.curriculum.levels[0]][:10]
trees = rollout(model, first)
show(trees[0])
print(f"mean reward {fmean(tree.reward or 0.0 for tree in trees):.3f}")
assert any(tree.succeeded for tree in trees), "No episode succeeded: nothing to reinforce."

# %% [markdown]
# ## 5. Train with GRPO
#
# A step plays groups of episodes, which differ in their seeds alone. The advantage of a tree is its
# reward minus its group's mean, over the deviation. Its children inherit it: one shared policy
# plays them all. The curriculum unlocks the next level when the reward allows it.

# %%
from agent.training.curriculum import Curriculum
from agent.training.groups import draw_groups
from agent.training.metrics import draw_metrics, episode_metrics, trainer_metrics
from agent.training.trainer import TreeGRPOTrainer

curriculum, steps, drawn = Curriculum(params.train.curriculum), [], []


def play_step(live_model, step):
    drawn.append(
        draw_groups(
            lambda specs: rollout(live_model, specs), step, curriculum, problems, params.train
        )
    )
    return drawn[-1].groups


def on_step(step, figures):
    played = drawn[-1].episodes
    row = {"step": step, "level": curriculum.level, **episode_metrics(played)}
    row |= trainer_metrics(figures) | draw_metrics(drawn[-1])
    steps.append(row)
    print(f"step {step}, {row['level']}: reward {row['reward/overall']:.3f}")
    curriculum.update(step, played)
    if step % 5 == 0:
        show(played[0])
    return row


trainer = TreeGRPOTrainer(
    model,
    tokenizer,
    params.train,
    output_dir=Path("models/notebook/checkpoints"),
    rollout=play_step,
    on_step=on_step,
    state=dict,
    temperature=params.generation.temperature,
)
trainer.train()

# %% [markdown]
# ## 6. Log
#
# Reward, its four components, and the shares of successes and timeouts by step. Then five episodes
# of the last step, from the best to the worst: a hacked reward shows there first.

# %%
import pandas

table = pandas.DataFrame(steps)
columns = [name for name in table if name.startswith("reward/")]
columns += ["episode/timeout_rate", "episode/success_rate"]
print(table[["step", *columns]].round(3).to_string(index=False))
last = sorted(drawn[-1].episodes, key=lambda tree: -(tree.reward or 0.0))
for tree in last[:: max(1, len(last) // 4)][:5]:
    show(tree)

# %% [markdown]
# ## 7. Plot
#
# The dashed line is the model of section 2, at the easiest level.

# %%
from IPython.display import Image, display
from matplotlib.figure import Figure

figure = Figure(figsize=(8, 4))
axes = figure.subplots()
axes.plot(table["step"], table["reward/overall"], label="trained reward")
axes.plot(table["step"], table["reward/primary"], label="primary objective")
baseline = fmean(tree.reward or 0.0 for tree in trees)
axes.axhline(baseline, color="grey", linestyle="--", label="before training")
axes.set(xlabel="Training Step", ylabel="Reward", ylim=(0, 1))
axes.legend()
figure.savefig("models/notebook/reward_curve.png")
display(Image("models/notebook/reward_curve.png"))

# %% [markdown]
# ## 8. Save and test
#
# The adapter is merged in 16 bit, never into 4-bit weights. The merged model is loaded again and
# plays an episode. (The stage `export` also compares its logits, in a fresh process.)

# %%
from agent.models.model_files import free_memory
from agent.training.merge import merge

trainer.save_result(Path("models/notebook/adapter"))
del trainer, model  # a T4 has no room for another one
free_memory()
merge(paths.BASE, Path("models/notebook/adapter"), Path("models/notebook/merged"), dtype=params.export.dtype)
merged, _ = load_model(Path("models/notebook/merged"))
show(rollout(merged, first[:1], params.generation.greedy)[0])

# %% [markdown]
# ## 9. Before and after
#
# Both models play the same 20 test problems, greedily, one after the other. The interval is a
# bootstrap over collections: problems that share papers aren't independent.

# %%
from agent.evaluation.statistics import Bootstrap

test = [spec for spec in read_specs(paths.TEST) if spec.difficulty == curriculum.level][:20]
after = rollout(merged, test, params.generation.greedy)
del merged
free_memory()
base, _ = load_model(paths.BASE)
before = rollout(base, test, params.generation.greedy)
gains = [(b.reward or 0.0) - (a.reward or 0.0) for a, b in zip(before, after)]
gain = Bootstrap(resamples=10_000, seed=0).mean(gains, [spec.collection_id for spec in test])
means = [fmean(tree.reward or 0.0 for tree in played) for played in (before, after)]
print(f"{curriculum.level}: mean reward {means[0]:.3f} before, {means[1]:.3f} after")
print(f"Improvement: {gain.mean:+.3f} (95 % interval {gain.low:+.3f} to {gain.high:+.3f})")
running.close()
