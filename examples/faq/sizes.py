"""When does it pay to read? F1, tokens and seconds by the size of the collection.

`python -m examples.faq.sizes --model models/merged` asks people's questions about the page that
answers them, about all pages of the FAQ, and about these and the manual, up to `--megabytes`. It
prints a table and draws it: the model in its tree, the passages that rank first without any model,
and the tree with readers that never err. It needs what profile `faq` needs, and its prepared data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from agent.demonstrations import keyed_plan
from agent.evaluation.statistics import Bootstrap, Interval
from agent.policies import baselines
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import read_specs
from agent.rollouts.trajectory import Trajectory
from env.problems.schema import Paper, Problem, to_row
from env.problems.store import ProblemStore
from examples.faq.collect import TARGET
from tasks import paths
from tasks.config import resolve
from tasks.config.params import Params
from tasks.data.headings import read
from tasks.deployment.local import local_server
from tasks.evaluate import choose
from tasks.prepare import write_parquet
from tasks.training.demonstrate import keyed

ALONE = 8
"""Questions that are asked one after the other, for the seconds of one."""
RANKED = 2
"""Passages that rank first, best on people's questions."""
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)


@dataclass(frozen=True)
class Size:
    """What was measured at a size; F1 by name, with an interval over pages."""

    chars: float
    f1: dict[str, Interval]
    tokens: float
    seconds: dict[str, float]


def grown(problem: Problem, pages: Sequence[Paper], chars: int) -> Problem:
    """A problem with the pages that answer it first, then its own others, then these."""
    order = sorted(problem.papers, key=lambda paper: paper.paper_id not in problem.gold_papers)
    papers = [paper for paper in order if paper.paper_id in problem.gold_papers]
    size = sum(len(paper.text) for paper in papers)
    for paper in [*order[len(papers) :], *pages]:
        if size + len(paper.text) > chars:
            break
        papers.append(paper)
        size += len(paper.text)
    return problem.model_copy(update={"papers": tuple(papers)})


def manual(folder: Path) -> list[Paper]:
    """Pages of the manual without their headings."""
    bodies = [(path.name, read(path.read_text("utf-8"))[0]) for path in sorted(folder.glob("*.md"))]
    return [Paper(paper_id=name, title=name, abstract="", text=text) for name, text in bodies]


def measured(problems: Sequence[Problem], policy: TransformersPolicy, params: Params) -> Size:
    """Play and rank the questions of one size."""
    collections = [problem.collection_id for problem in problems]
    with TemporaryDirectory(prefix="rlm-sizes-") as name:
        file = Path(name) / "test.parquet"
        write_parquet(file, [to_row(problem) for problem in problems])
        specs = read_specs(file)
        with local_server(params, data=Path(name)) as url:
            episodes = play(policy, url, specs, sessions=16)
            waited = []
            for spec in specs[:ALONE]:  # in the second pass, so that every passage has its vector
                began = time.monotonic()
                play(policy, url, [spec], sessions=1)
                waited.append(time.monotonic() - began)
    f1 = {"the model in its tree": [_f1(episode) for episode in episodes]}
    ranking = []
    for rank in ("bm25", params.env.rank):
        env = params.env.model_copy(update={"rank": rank})
        began = time.monotonic()
        f1[f"{rank}, first {RANKED}"] = [
            baselines.f1(one, _quotes(keyed_plan.ranked(one, RANKED, env, params.rewards)))
            for one in problems
        ]
        ranking.append((time.monotonic() - began) / len(problems))
    f1["readers that never err"] = [
        baselines.f1(one, keyed_plan.answer(one, keyed(params), params.env, params.rewards))
        for one in problems
    ]
    turns = [t for episode in episodes for frame in episode.frames.values() for t in frame.turns]
    return Size(
        fmean(sum(len(paper.text) for paper in problem.papers) for problem in problems),
        {name: BOOTSTRAP.mean(values, collections) for name, values in f1.items()},
        sum(len(t.prompt_ids) + len(t.sampled_ids) for t in turns) / len(episodes),
        {"the model in its tree": median(waited), f"{params.env.rank}, first {RANKED}": ranking[1]},
    )


def _f1(episode: Trajectory) -> float:
    if episode.void or episode.metrics is None:
        raise SystemExit(f"sizes: an episode is void ({episode.void}). Run it again.")
    return episode.metrics.f1


def _quotes(passages: Sequence[keyed_plan.Passage]) -> list[dict[str, str]]:
    return [{"paper_id": paper_id, "text": text} for paper_id, text in passages]


def table(sizes: Sequence[Size]) -> str:
    """A line for each size."""
    names, timed = list(sizes[0].f1), list(sizes[0].seconds)
    head = ["characters", *names, "tokens", *(f"seconds, {name}" for name in timed)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for size in sizes:
        cells = [f"{size.chars:,.0f}"]
        cells += [f"{v.mean:.3f} [{v.low:.3f}, {v.high:.3f}]" for v in size.f1.values()]
        cells += [f"{size.tokens:,.0f}", *(f"{size.seconds[name]:.2f}" for name in timed)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(sizes: Sequence[Size], path: Path) -> None:
    """F1 and seconds against characters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    chars = [size.chars for size in sizes]
    for name in sizes[0].f1:
        values = [size.f1[name] for size in sizes]
        (line,) = left.plot(chars, [v.mean for v in values], marker="o", label=name)
        left.fill_between(
            chars,
            [v.low for v in values],
            [v.high for v in values],
            alpha=0.12,
            lw=0,
            color=line.get_color(),
        )
        if name in sizes[0].seconds:
            seconds = [size.seconds[name] for size in sizes]
            right.plot(chars, seconds, marker="o", label=name, color=line.get_color())
    left.set(ylim=(0, 1), ylabel="F1 of characters", xlabel="characters of the collection")
    right.set(ylabel="seconds a question", xlabel="characters of the collection", yscale="log")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure each size, print the table and draw it."""
    parser = argparse.ArgumentParser(description="Measure when it pays to read.")
    parser.add_argument("--model", type=Path, default=paths.MERGED)
    parser.add_argument("--questions", type=int, default=60, help="evenly over difficulties")
    parser.add_argument("--megabytes", nargs="+", type=float, default=[0, 0.2, 1, 5])
    parser.add_argument("--figure", type=Path, default=Path("sizes.png"))
    parser.add_argument("--set", nargs="*", default=[], help="settings, section.key=value")
    args = parser.parse_args()
    params = resolve("faq", args.set)
    settings = params.evaluate.generation.model_copy(update={"temperature": 0.0})
    policy = TransformersPolicy(*load_model(args.model), settings)
    specs = choose(paths.TEST, args.questions, params.evaluate.seed)
    store = ProblemStore.load(paths.PROBLEMS)
    asked = [store.get(spec.problem_id) for spec in specs]
    pages = manual(TARGET / "headings")
    sizes = []
    for megabytes in args.megabytes:
        some = [grown(problem, pages, int(1e6 * megabytes)) for problem in asked]
        sizes.append(measured(some, policy, params))
        print(f"{time.strftime('%H:%M')} {sizes[-1].chars:,.0f} characters", flush=True)
    print(table(sizes))
    draw(sizes, args.figure)


if __name__ == "__main__":
    main()
