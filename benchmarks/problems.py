"""Measure a profile's synthetic problems: `python -m benchmarks.problems [--samples | --play N]`.

Without an option it prints the time to generate and write them, and their content hash, computed
twice in this process and once in another. `--samples` prints problems of the worlds `papers` or
`fields` as Markdown for docs/problem_samples.md. `--play N` plays N test problems of each level on
a real server with the oracle, the expert and keyword search.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import fmean, median

from agent.policies.demonstrator import Demonstrator
from agent.policies.scripted import keyword, oracle
from benchmarks.arena import arena
from benchmarks.exploits.fields_expert import fields_expert
from env.problems import fields
from env.problems.papers import plan_collection, write_collection
from env.problems.papers.asked import Asked
from env.problems.schema import Paper, Problem, Span, to_row
from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate
from tasks.config import resolve
from tasks.params import Params
from tasks.prepare import content_hash, write_parquet

SHOWN = {"easy": "score", "medium": "training", "hard": "score"}
"""Kind of question that `--samples` shows for each level."""

WHY = {
    "score": "another split, release, metric, method or variant, or an experiment not made",
    "board": "another split, release, metric or variant, or an experiment not made",
    "ablation": "another part or another change, or an experiment not made",
    "training": "another state or release of the corpus, or training that did not count",
    "aspect": "denied, not examined, or said of others",
    "weakness": "another method, the opposite, or not tested",
    "cause": "another method, or denied, or not tested",
    "updates": "another method, or another training of this one",
    "size": "another method, or another design of this one",
}
"""Reason why the near misses of a kind are not evidence."""


def hashed(problems: list[Problem]) -> str:
    """SHA-256 of the rows."""
    return content_hash([to_row(problem) for problem in problems])


def measure(params: Params) -> None:
    """Print times, sizes and hashes."""
    settings = params.prepare.synthetic
    started = time.process_time()
    problems = generate(settings)
    made = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.parquet"
        write_parquet(path, [to_row(problem) for problem in problems])
        written = time.process_time()
        megabytes = path.stat().st_size / 1e6
    words = [len(paper.text.split()) for problem in problems for paper in problem.papers]
    print(f"{len(problems)} problems made in {made - started:.1f} s of CPU, ", end="")
    print(f"written in {written - made:.1f} s ({megabytes:.1f} MB)")
    print(f"words of a paper: {min(words)} to {max(words)}, median {median(words):g}")
    print(f"hash here    {hashed(problems)}")
    print(f"hash again   {hashed(generate(settings))}")
    command = [sys.executable, "-m", "benchmarks.problems", "--profile", params.profile, "--hash"]
    environ = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    print(f"hash beside  {done.stdout.strip()}")


def play_all(params: Params, wanted: int) -> None:
    """Print mean total, plain F1 and process quality of each policy by level."""
    fields_only = params.prepare.synthetic.world == "fields"
    with arena(params, wanted) as ring:
        heads = " | ".join(f"{level}: total | F1 | process" for level in ring.levels)
        print(f"| policy | {heads} |\n|{'---|' * (1 + 3 * len(ring.levels))}")
        for name, policy in (
            ("oracle", oracle(ring.problems)),
            ("expert", fields_expert() if fields_only else Demonstrator(ring.problems, params.env)),
            ("keyword search", keyword()),
        ):
            episodes = ring.play(name, policy)
            cells = [name]
            for level in ring.levels:
                part = [e for e in episodes if e.difficulty == level]
                cells.append(f"{fmean(e.reward or 0.0 for e in part):.2f}")
                cells.append(f"{fmean(e.metrics.f1 if e.metrics else 0.0 for e in part):.2f}")
                cells.append(f"{fmean(e.components['process_quality'] for e in part):.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)


# --- samples


def in_place(paper: Paper, span: Span) -> str:
    """A gold sentence with its neighbours, or a gold row with the head of its table."""
    line_start = paper.text.rfind("\n", 0, span.start) + 1
    line_end = paper.text.find("\n", span.end)
    line = paper.text[line_start : line_end if line_end >= 0 else None]
    if line.startswith("|"):
        table = paper.text.rfind("\nTable ", 0, span.start) + 1
        caption, head = paper.text[table:].split("\n")[:2]
        return f"{caption} / {head} / ... / **{span.text}**"
    before = re.split(r"(?<=[.?!]) (?=[A-Z])", line[: span.start - line_start].rstrip())[-1]
    after = re.split(r"(?<=[.?!]) (?=[A-Z])", line[span.end - line_start :].lstrip())[0]
    return f"{before} **{span.text}** {after}".strip()


def sample(problem: Problem, asked: Asked) -> Iterator[str]:
    """One problem as Markdown."""
    papers = {paper.paper_id: paper for paper in problem.papers}
    yield f"### {problem.difficulty}: `{problem.problem_id}`, {problem.tier}, kind {asked.kind}\n"
    yield f"> {problem.question}\n"
    for paper in problem.papers:
        yield f"- {paper.paper_id}: {paper.title} ({len(paper.text.split())} words)"
    yield "\nEvidence, in its place:\n"
    for fact in problem.evidence:
        for n, span in enumerate(fact.spans):
            name = fact.fact_id if n == 0 else f"or, for {fact.fact_id}"
            yield f"- {name}, {span.paper_id}: {in_place(papers[span.paper_id], span)}"
    plan, text = asked.missed[0]
    yield f"\nNot evidence ({WHY[asked.kind]}):\n"
    yield f"- p{plan.number + 1}: {text}\n"


def print_samples(settings: SyntheticSettings) -> None:
    """Print each level's first problem of the kind in `SHOWN` with two or more gold papers.

    Raises:
        KeyError: the profile has a level without a kind.
    """
    for level in settings.levels_of("test"):
        for number in count():
            _, asked = plan_collection(settings, "test", level, number)
            fits = [len(q.papers) > 1 and q.kind == SHOWN[level] for q in asked]
            if any(fits):
                q = fits.index(True)
                problem = write_collection(settings, "test", level, number)[q]
                print("\n".join(sample(problem, asked[q])))
                break


def fields_sample(settings: SyntheticSettings) -> Iterator[str]:
    """The first test problem of the first level as Markdown, all text included."""
    level = next(iter(settings.levels))
    problem = fields.write_collection(settings, "test", level, 0)[0]
    gold = {fact.spans[0].text for fact in problem.evidence}
    yield f"### fields, {level}: `{problem.problem_id}`, {problem.tier}\n"
    yield f"> {problem.question}\n"
    for paper in problem.papers:
        yield f"- {paper.paper_id}: {paper.title}"
        for line in paper.text.split("\n")[1:]:
            yield f"  - **{line}**" if line in gold else f"  - {line}"
    candidates = [span.text for span in problem.candidates]
    yield f"\nFields of the {len(candidates)} candidates, which only the lexicon knows:"
    yield ", ".join(fields.field_of(text, settings.lexicon) for text in candidates) + "."


def main() -> None:
    """Run the chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="papers")
    parser.add_argument("--samples", action="store_true", help="problems as Markdown")
    parser.add_argument("--play", type=int, metavar="N", help="problems of each level to play")
    parser.add_argument("--hash", action="store_true", help="only the content hash")
    options = parser.parse_args()
    params = resolve(options.profile, ["threads=1"])
    if options.hash:
        print(hashed(generate(params.prepare.synthetic)))
    elif options.samples and params.prepare.synthetic.world == "fields":
        print("\n".join(fields_sample(params.prepare.synthetic)))
    elif options.samples:
        print_samples(params.prepare.synthetic)
    elif options.play:
        play_all(params, options.play)
    else:
        measure(params)


if __name__ == "__main__":
    main()
