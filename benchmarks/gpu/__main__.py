"""Measure one graphics card: 4-bit models, decoding, training.

    python -m benchmarks.gpu [PART ...] [--tiny] [--work DIR] [--out DIR] [--minutes 9]

Weights are random in the shape of Qwen3-4B, so nothing is downloaded. Parts run in this order, each
in at most `--minutes`: build, decode, train. The last two need what build left in `--work` (20 GB;
28 must be free). Figures are appended to figures.jsonl in `--out`, and printed as the table for
docs/experiments.md. `--tiny` runs all parts on a CPU in under two minutes, as a test.

For a machine without network, on one with the same Python:

    pip download --only-binary :all: --dest wheels --requirement constraints-cuda.txt

Copy the folder `wheels` (5 GB) and the checkout, then install there:

    pip install --no-index --find-links wheels --requirement constraints-cuda.txt

If that machine has torch already, download only the packages that `pip list` lacks there, with
`--no-deps`: usually trl, datasets, bitsandbytes and openenv.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import FULL, TINY
from benchmarks.gpu.parts import PARTS, Bench


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, one row a case."""
    lines = ["| part | case | figures |", "|---|---|---|"]
    for record in records:
        figures = {name: value for name, value in record.items() if name not in ("part", "case")}
        text = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
        lines.append(f"| {record['part']} | {record['case']} | {text} |")
    return "\n".join(lines)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the parts, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--work", type=Path, help="folder of the models (default: temporary)")
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"), help="folder of figures")
    parser.add_argument("--minutes", type=float, default=9.0, help="most minutes of a part")
    options = parser.parse_args(argv)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}. Choose from {', '.join(PARTS)}.")
    if not options.tiny and not torch.cuda.is_available():
        parser.error("torch finds no card. Run python -m flows.doctor, or measure with --tiny.")
    size = TINY if options.tiny else FULL
    device = "cpu" if options.tiny else "cuda"
    name = "the CPU" if options.tiny else torch.cuda.get_device_name()
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.work or Path(tempfile.gettempdir()) / f"rlm-gpu-{device}"
    work.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__} on {name}")
    before = (options.out / "figures.jsonl").exists() and len(_lines(options.out))
    for part in options.parts or PARTS:
        bench = Bench(size, device, work, options.out, time.monotonic() + 60 * options.minutes)
        bench.fresh()
        _, seconds = bench.timed(partial(PARTS[part], bench))
        bench.note(part, "whole part", seconds=seconds)
    print(table([json.loads(line) for line in _lines(options.out)[int(before) :]]))


def _lines(out: Path) -> list[str]:
    return (out / "figures.jsonl").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
