"""The chain as prose, and the command line."""

import sys
from importlib.util import find_spec

if find_spec("typer") is None:
    sys.exit(
        "error: this Python lacks the project's packages. Run `make setup` once, then "
        "`source .venv/bin/activate` in each new shell."
    )
