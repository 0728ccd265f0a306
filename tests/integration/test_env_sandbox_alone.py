"""The sandbox, copied out of this project as in docs/sandbox.md, runs its example."""

import re
import subprocess
import sys
from pathlib import Path

from helpers.chain_runs import copy_project

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    *("env/server/sandbox", "env/chat_tokens.py", "env/ranking.py", "env/passages.py"),
    *("env/words.py", "env/settings.py", "env/errors.py", "env/cgroups.py", "rewards/settings.py"),
)
EMPTY = ("env/__init__.py", "env/server/__init__.py", "rewards/__init__.py")


def test_the_documents_example_runs_where_nothing_else_is(tmp_path: Path) -> None:
    text = (ROOT / "docs/sandbox.md").read_text()
    assert all(f"`{path.rstrip('/')}" in text for path in COPIED + EMPTY)
    copy_project(tmp_path, COPIED)
    for path in EMPTY:
        (tmp_path / path).touch()
    match = re.search(r"```python\n(.*?)```\nprints\n```text\n(.*?)```", text, re.DOTALL)
    ours = "[m for name, m in sys.modules.items() if name.split('.')[0] in ('env', 'rewards')]"
    found = f"all(one.__file__.startswith({str(tmp_path)!r}) for one in {ours})"
    code = f"{match.group(1)}\nimport sys\nassert {found}\n"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.stdout == match.group(2)
