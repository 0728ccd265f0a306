"""Make the figures of docs/oolong.md: `python -m benchmarks.oolong`.

The scripted expert answers 200 problems at each of 8 lengths, without and with labels. So does a
stand-in endpoint (`stand_in.py`), recursively and plainly. No model is needed. A stopped run
continues with the same command.

With `--keep`, the answers replace those that are committed beside this module, and the documents
are drawn from them. `--draw` alone asks nothing.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from benchmarks.oolong.stand_in import OolongStandIn
from flows.benchmark import run
from flows.pipeline import guarded
from flows.runtime import settle
from tasks.errors import StageError
from tasks.io import write_text
from tasks.oolong import report
from tasks.oolong.play import OolongPlan, answer_baselines
from tasks.oolong.questions import LENGTHS

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("results")
"""Committed answers: a compressed file for each model."""
ACCURACY = 0.9
MODEL = "stand-in-90"
PRICES = ["evaluate_model.prompt_price=0.5", "evaluate_model.completion_price=2"]
PLAN = OolongPlan(LENGTHS, 200, (False, True), 32_768, 0, Path("runs/oolong"))
_HEAD = """\
# Figures of `rlm benchmark oolong`

Written by `python -m benchmarks.oolong --draw`, described in [oolong.md](oolong.md). Each cell \
holds {count} problems in {contexts} contexts. `frequent`, `keywords`, `no reading` and `random` \
answer without a model. `cut`: the prompt holds only the first part of the context.

"""


def play(plan: OolongPlan) -> None:
    """Answer what has no answer yet, and write the report into the plan's folder."""
    shared = (tuple(plan.lengths), plan.count, tuple(plan.labels))
    run("expert", None, [], *shared, None, plan.out, plan.seed)
    with OolongStandIn(0, ACCURACY) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            run(MODEL, server.url, PRICES, *shared, plan.window, plan.out, plan.seed)
        finally:
            server.shutdown()


def keep(folder: Path, kept: Path) -> None:
    """Compress the answers of a folder, the same ones to the same bytes."""
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("expert", MODEL):
        packed = gzip.compress((folder / f"{name}.jsonl").read_bytes(), mtime=0)
        (kept / f"{name}.jsonl.gz").write_bytes(packed)


def unpacked(kept: Path, plan: OolongPlan) -> report.Scores:
    """Scores of committed answers and of the baselines; both are in the plan's folder then.

    Raises:
        StageError: the answers are not those to all problems of the plan.
    """
    for path in sorted(kept.glob("*.jsonl.gz")):
        (plan.out / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    answer_baselines(plan)
    scores = report.read_scores(plan)
    for labels in plan.labels:
        models = {name: of for name, of in scores[labels].items() if not report.is_baseline(name)}
        counts = [of[n].score.n if n in of else 0 for of in models.values() for n in plan.lengths]
        if len(models) != 3 or min(counts) < plan.count:
            raise StageError(
                f"the answers in {kept} are not those to all problems. Play again: "
                "python -m benchmarks.oolong --keep"
            )
    return scores


def draw(kept: Path, documents: Path) -> None:
    """Write the documents' figure and table from committed answers."""
    with TemporaryDirectory() as folder:
        plan = replace(PLAN, out=Path(folder))
        scores = unpacked(kept, plan)
        _, table, figure = report.write_report(plan, scores)
        head = _HEAD.format(count=plan.count, contexts=plan.count // 8)
        write_text(documents / "oolong_table.md", head + table.read_text(encoding="utf-8"))
        (documents / "images" / "oolong.png").write_bytes(figure.read_bytes())


def main() -> None:
    """Play, keep or draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PLAN.out, help="folder of the answers")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--keep", action="store_true", help="replace committed answers and draw")
    then.add_argument("--draw", action="store_true", help="draw the committed answers, no more")
    options = parser.parse_args()

    def work() -> None:
        settle()
        if not options.draw:
            play(replace(PLAN, out=options.out))
        if options.keep:
            keep(options.out, KEPT)
        if options.keep or options.draw:
            draw(KEPT, ROOT / "docs")

    words = ["python -m benchmarks.oolong", f"--out {options.out}", "--keep" * options.keep]
    guarded(work, " ".join(filter(None, words)), kept="Answers")


if __name__ == "__main__":
    main()
