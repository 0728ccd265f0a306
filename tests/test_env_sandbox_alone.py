"""The sandbox lifted out of this project, as docs/sandbox.md says, runs its example there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("env/server/sandbox", "env/settings.py", "env/errors.py")
EMPTY = ("env/__init__.py", "env/server/__init__.py")


def test_the_documents_example_runs_where_nothing_else_is(tmp_path: Path) -> None:
    text = (ROOT / "docs/sandbox.md").read_text()
    assert all(f"`{path.rstrip('/')}" in text for path in COPIED + EMPTY)
    for path in COPIED:
        source, target = ROOT / path, tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    for path in EMPTY:
        (tmp_path / path).touch()
    match = re.search(r"```python\n(.*?)```\nprints\n```text\n(.*?)```", text, re.DOTALL)
    assert match is not None
    code = f"{match.group(1)}\nimport env\nassert env.__file__.startswith({str(tmp_path)!r})\n"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.stdout == match.group(2)
