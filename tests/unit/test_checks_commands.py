"""docs/commands.md names every command, and is the page that the code generates."""

from __future__ import annotations

import re
from pathlib import Path

from checks import commands
from env.variables import VARIABLES

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_the_one_that_is_generated(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    written = commands.PAGE.read_text(encoding="utf-8")
    assert written == commands.page(), "run python -m checks.commands --write"


def test_each_command_target_and_runnable_module_is_on_the_page() -> None:
    from flows.pipeline import app

    written = (ROOT / commands.PAGE).read_text(encoding="utf-8")
    for item in app.registered_commands:
        name = item.name or item.callback.__name__  # type: ignore[union-attr]
        assert (f"### `rlm {name}`" in written) is not item.hidden
    for target in re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M):
        assert f"| `make {target}` |" in written
    for path in (ROOT / "benchmarks").rglob("*.py"):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert f"`python -m {module.removesuffix('.__main__')}`" in written


def test_the_table_of_variables_is_the_only_place_that_names_them() -> None:
    named = re.compile(r'"(RLM_[A-Z_]+)"')
    sources = [p for folder in ("agent", "benchmarks", "env", "examples", "flows", "tasks")
               for p in (ROOT / folder).rglob("*.py")]  # fmt: skip
    found = {name: path for path in sources for name in named.findall(path.read_text("utf-8"))}
    assert set(found) == set(VARIABLES)
    assert set(found.values()) == {ROOT / "env/variables.py"}
