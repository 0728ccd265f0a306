"""Parameters of the functions of Unsloth that the loader calls, read from its wheel.

    pip download --no-deps unsloth==2026.10.7
    python -m tests.helpers.unsloth_signatures unsloth-*.whl > tests/data/unsloth_signatures.json

A machine without a GPU cannot import Unsloth, so nothing of the wheel is run.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path

FUNCTIONS = {
    "from_pretrained": ("unsloth/models/loader.py", "FastLanguageModel"),
    "get_peft_model": ("unsloth/models/llama.py", "FastLlamaModel"),
}


def signatures(wheel: Path) -> dict[str, object]:
    """The wheel's version, and the parameters of each function by its name."""
    found: dict[str, object] = {"version": wheel.name.split("-")[1]}
    with zipfile.ZipFile(wheel) as files:
        for function, (path, owner) in FUNCTIONS.items():
            (of_class,) = [
                node
                for node in ast.parse(files.read(path)).body
                if isinstance(node, ast.ClassDef) and node.name == owner
            ]
            (made,) = [
                node
                for node in of_class.body
                if isinstance(node, ast.FunctionDef) and node.name == function
            ]
            found[function] = [name.arg for name in made.args.args + made.args.kwonlyargs]
    return found


if __name__ == "__main__":
    json.dump(signatures(Path(sys.argv[1])), sys.stdout, indent=1)
