"""Draw the comparison of a recursive policy with agents without children from its results.

    python -m benchmarks.recursion [--figure recursion.png]

results.jsonl.gz beside this module has the greedy answers of all arms. This prints tables of all,
whose deciding rows docs/experiments.md has, and draws the figure of the README. The last commit
with the program that trained and measured the arms is 89a4776.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.recursion import figure

PAPERS = (2, 4, 8, 16, 24, 32, 48)


def main() -> None:
    """Draw the figure, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figure", type=Path, default=Path("recursion.png"), help="image to write")
    options = parser.parse_args()
    rows = figure.read_results(figure.RESULTS)
    figure.draw(rows, PAPERS).savefig(options.figure, dpi=120)
    print(figure.tables(rows, PAPERS))


if __name__ == "__main__":
    main()
