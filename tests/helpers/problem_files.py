"""Files of problems, as the stage prepare leaves them."""

from collections.abc import Iterable
from pathlib import Path

from env.problems.schema import Problem, to_row
from tasks import prepare


def write_problems(path: Path | str, problems: Iterable[Problem]) -> None:
    """Write problems as Parquet."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    prepare.write_parquet(Path(path), [to_row(problem) for problem in problems])
