"""Measure the effect of children by the number of papers: `python -m benchmarks.recursion`.

Two policies are trained from one base with the same seed and number of steps. One may call itself;
for the other every sub-call is refused (`env.limits.max_depth: 0`). In a share of the base's
demonstrations the root answers by its own code (`mixture.alone`), unlike in the default: a policy
without children must have seen how.

Both then answer unseen questions over 2 to 24 papers. So does the first policy without its
children and, with `--default DIR`, the policy that `make full` left in DIR, whose base only saw
demonstrations with children.

Writes recursion.json and recursion.png into the work folder, and prints the table. Trainings and
measurements that are already there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from benchmarks.ablation import SOURCE, run_stages, train, trained_policy
from env.problems.settings import LevelSettings
from env.problems.store import ProblemStore
from tasks.config import Params, resolve
from tasks.deployment.local import local_server
from tasks.reporting.figures import BLUE, GREY, ORANGE, figure_style
from tasks.train import RESULT

PAPERS = (2, 4, 8, 12, 16, 24)
WITH, WITHOUT, TAKEN = "with children", "trained without", "children taken away"
DEFAULT = "with children, the default run"
ALONE = ["env.limits.max_depth=0"]
Scores = dict[str, dict[str, list[float]]]
"""F1 of each episode, by policy and number of papers."""


def levels() -> dict[str, LevelSettings]:
    """A level for each number of papers; the number of gold papers grows as in the defaults."""
    return {
        f"papers_{n}": LevelSettings(
            papers=n, max_gold=min(max(n // 2, 1), 6), distractors=min(2 * n, 8)
        )
        for n in PAPERS
    }


def make_base(root: Path, sets: Sequence[str]) -> None:
    """Make the data and the base model of the comparison, unless they exist."""
    if (root / "models" / "base").is_dir():
        return
    root.mkdir(parents=True, exist_ok=True)
    for name in ("params.yaml", "profiles"):
        (root / name).symlink_to(SOURCE / name)
    run_stages(root, sets, ["prepare", "warmstart"])


def evaluate(params: Params, episodes: int) -> dict[str, list[float]]:
    """Sampled F1 of every episode of this folder's trained policy, by number of papers."""
    world = params.prepare.synthetic.model_copy(
        update={
            "levels": levels(),
            "questions_per_collection": 1,
            "collections": {"train": 0, "validation": 0, "test": episodes},
        }
    )
    prepare = params.prepare.model_copy(update={"synthetic": world})
    served = params.model_copy(update={"prepare": prepare})
    problems = ProblemStore.generate(world)
    found: dict[str, list[float]] = {}
    with local_server(served, data=None) as url:
        for n in PAPERS:
            names = problems.ids("test", f"papers_{n}")
            specs = [EpisodeSpec(name, seed=k) for k, name in enumerate(names)]
            played = play(trained_policy(params, temperature=1.0), url, specs, sessions=64)
            whole = [one for one in played if not one.void]
            found[str(n)] = [one.metrics.f1 if one.metrics else 0.0 for one in whole]
    return found


def mean_and_half(values: Sequence[float], rng: np.random.Generator) -> tuple[float, float]:
    """Mean, and half-width of its bootstrapped 95 % interval."""
    array = np.asarray(values)
    means = rng.choice(array, (10_000, len(array))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(array.mean()), float(high - low) / 2


def plot(scores: Scores) -> Figure:
    """Plot F1 with 95 % intervals against the number of papers, one line for each policy."""
    styles = {
        DEFAULT: (BLUE, "D", "-."),
        WITH: (BLUE, "o", "-"),
        WITHOUT: (ORANGE, "s", "--"),
        TAKEN: (GREY, "^", ":"),
    }
    rng = np.random.default_rng(0)
    with figure_style():
        figure = Figure(figsize=(8.0, 4.6))
        axes = figure.subplots()
        for name, (colour, marker, line) in styles.items():
            if not (by_papers := scores.get(name)):
                continue
            points = [mean_and_half(values, rng) for values in by_papers.values()]
            axes.errorbar(
                [int(papers) for papers in by_papers],
                [mean for mean, _ in points],
                yerr=[half for _, half in points],
                color=colour,
                marker=marker,
                linestyle=line,
                capsize=3,
                label=name,
            )
        axes.set(xlabel="Papers of a problem", ylabel="F1, sampled", ylim=(0, 1), xticks=PAPERS)
        axes.set_title("Effect of children")
        axes.legend()
    return figure


def table(scores: Scores) -> str:
    """The figures of the plot as Markdown."""
    rng = np.random.default_rng(0)
    lines = [f"| papers | {' | '.join(map(str, PAPERS))} |", "|---" * (len(PAPERS) + 1) + "|"]
    for name, by_papers in scores.items():
        cells = (mean_and_half(values, rng) for values in by_papers.values())
        lines.append(f"| {name} | {' | '.join(f'{m:.2f} ± {h:.2f}' for m, h in cells)} |")
    return "\n".join(lines)


def measure_all(options: argparse.Namespace) -> Scores:
    """Make the base, both trainings and the evaluations that are not in the file yet."""
    file: Path = options.work / "recursion.json"
    scores: Scores = json.loads(file.read_text()) if file.exists() else {}

    def add(name: str, params: Params) -> None:
        scores[name] = evaluate(params, options.episodes)
        file.write_text(json.dumps(scores))

    common = [f"warmstart.nano.mixture.alone={options.alone}"]
    trained = [*common, f"train.steps={options.steps}", f"train.seed={options.seed}"]
    base = options.work / "base"
    for name, sets in {WITH: trained, WITHOUT: [*trained, *ALONE]}.items():
        if name in scores:
            continue
        folder = options.work / name.replace(" ", "_")
        if not (folder / RESULT["lora"]).is_dir():
            make_base(base, common)
            train(folder, base, sets)
        os.chdir(folder)
        add(name, resolve(overrides=sets))
        if name == WITH:
            add(TAKEN, resolve(overrides=[*sets, *ALONE]))
    if options.default and DEFAULT not in scores:
        os.chdir(options.default)
        add(DEFAULT, resolve())
    return scores


def main() -> None:
    """Measure, write the files, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/recursion"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=100, help="problems of each size")
    parser.add_argument(
        "--alone", type=float, default=0.2, help="share of demonstrations without children"
    )
    parser.add_argument("--default", type=Path, help="folder of a default run (make full)")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.default = options.default and options.default.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    scores = measure_all(options)
    plot(scores).savefig(options.work / "recursion.png", dpi=120)
    print(table(scores))


if __name__ == "__main__":
    main()
