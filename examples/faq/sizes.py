"""When does it pay to read? F1, tokens and seconds by the size of the collection.

`python -m examples.faq.sizes models/merged` asks people's questions about the page that answers
them, about all pages of the FAQ, and about these and Python's manual. It prints a table and draws
it. It needs what profile `faq` needs, and the problems that it has prepared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from agent.demonstrations import keyed_plan
from agent.evaluation.statistics import Bootstrap, Interval
from agent.policies import baselines
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import read_specs
from benchmarks.small_model import played
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

QUESTIONS = 60
MEGABYTES = (0.0, 0.2, 1.0, 5.0)
ALONE = 8
"""Questions that are asked one after the other, for the seconds of one."""
TREE, SEARCH, BOUND = "the model in its tree", "its plan without readers", "no reader errs"

Row = tuple[float, dict[str, Interval], float, dict[str, float]]
"""Mean characters of a collection; F1 by name; tokens and seconds of a question."""


def grown(problem: Problem, pages: Sequence[Paper], chars: int) -> Problem:
    """A problem with the pages that answer it, then its own others, then these, up to a size."""
    papers = [paper for paper in problem.papers if paper.paper_id in problem.gold_papers]
    size = sum(len(paper.text) for paper in papers)
    for paper in [*(p for p in problem.papers if p not in papers), *pages]:
        if (size := size + len(paper.text)) > chars:
            break
        papers.append(paper)
    return problem.model_copy(update={"papers": tuple(papers)})


def measure(problems: Sequence[Problem], policy: TransformersPolicy, params: Params) -> Row:
    """Play and rank the questions about collections of one size."""
    with TemporaryDirectory(prefix="rlm-sizes-") as name:
        path = Path(name) / "test.parquet"
        write_parquet(path, [to_row(problem) for problem in problems])
        specs, waited = read_specs(path), []
        with local_server(params, data=path.parent) as url:
            scores = played(policy, url, specs)
            for spec in specs[:ALONE]:  # again, now that each passage has its vector
                began = time.monotonic()
                play(policy, url, [spec], sessions=1)
                waited.append(time.monotonic() - began)
    began = time.monotonic()
    plan = {"keyed": keyed(params), "env": params.env, "rewards": params.rewards}
    quoted = [keyed_plan.answer(one, **plan, read=False) for one in problems]
    seconds = {TREE: median(waited), SEARCH: (time.monotonic() - began) / len(problems)}
    f1 = {
        TREE: scores["f1"],
        SEARCH: list(map(baselines.f1, problems, quoted)),
        BOUND: [baselines.f1(one, keyed_plan.answer(one, **plan)) for one in problems],
    }
    pages = [problem.collection_id for problem in problems]
    means = {name: Bootstrap(10_000, 0).mean(values, pages) for name, values in f1.items()}
    chars = fmean(sum(len(paper.text) for paper in problem.papers) for problem in problems)
    return chars, means, fmean(scores["tokens"]), seconds


def table(rows: Sequence[Row]) -> str:
    """A line for each size."""
    _, f1, _, timed = rows[0]
    head = ["characters", *f1, "tokens", *(f"seconds, {name}" for name in timed)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for chars, means, tokens, seconds in rows:
        cells = [f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in means.values()]
        cells += [f"{tokens:,.0f}", *(f"{value:.2f}" for value in seconds.values())]
        lines.append(f"| {' | '.join([f'{chars:,.0f}', *cells])} |")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """F1 and seconds against characters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    chars = [row[0] for row in rows]
    for name in rows[0][1]:
        f1 = [row[1][name] for row in rows]
        (line,) = left.plot(chars, [one.mean for one in f1], marker="o", label=name)
        low, high = [one.low for one in f1], [one.high for one in f1]
        left.fill_between(chars, low, high, alpha=0.12, lw=0, color=line.get_color())
        if name in rows[0][3]:
            right.plot(chars, [row[3][name] for row in rows], marker="o", color=line.get_color())
    left.set(ylim=(0, 1), ylabel="F1 of characters")
    left.legend(frameon=False, fontsize=8)
    right.set(yscale="log", ylabel="seconds a question")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="characters of the collection")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure each size, print the table and draw it."""
    parser = argparse.ArgumentParser(description="Measure when it pays to read.")
    parser.add_argument("model", type=Path, help="folder of a model that profile faq trained")
    parser.add_argument("--figure", type=Path, default=Path("sizes.png"))
    args = parser.parse_args()
    params, store = resolve("faq"), ProblemStore.load(paths.PROBLEMS)
    policy = TransformersPolicy(*load_model(args.model), params.evaluate.generation.greedy)
    asked = [store.get(s.problem_id) for s in choose(paths.TEST, QUESTIONS, params.evaluate.seed)]
    found = [(path.name, path.read_text("utf-8")) for path in (TARGET / "headings").iterdir()]
    pages = [Paper(paper_id=n, title=n, abstract="", text=read(t)[0]) for n, t in sorted(found)]
    rows = []
    for megabytes in MEGABYTES:
        some = [grown(problem, pages, int(1e6 * megabytes)) for problem in asked]
        rows.append(measure(some, policy, params))
        print(table(rows), flush=True)
    draw(rows, args.figure)


if __name__ == "__main__":
    main()
