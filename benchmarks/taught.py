"""The command line of the benchmarks that measure a taught model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from tasks.config import resolve
from tasks.config.params import Params


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Parser with the options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def begin(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Params]:
    """Read the command line and print the load; return settings with 40 training collections."""
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(
            f"{options.model} holds no model. Run the stage warmstart (or `make full`) first."
        )
    torch.set_num_threads(options.threads)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} thread(s)")
    collections = "prepare.synthetic.collections={train: 40, validation: 1, test: 1}"
    return options, resolve(overrides=[collections])
