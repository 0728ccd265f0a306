"""Code fences of the documents: what tests run of them."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "mlflow/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)
"""Documents that people wrote."""


def fences(page: str, language: str) -> list[str]:
    """Fences of a document in a language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(page: str) -> list[str]:
    """Command lines of a document's shell fences, without comments."""
    text = "".join(fences(page, "bash")).replace("\\\n", " ")
    found: list[str] = []
    for line in re.sub(r"\s+# .*| +(?= )", "", text).splitlines():
        if found and found[-1].count("'") % 2:  # a quoted argument of several lines
            found[-1] += line
        else:
            found += [line] if line.strip() else []
    return found


def request() -> dict[str, Any]:
    """Body of the request to the model server in docs/registry.md."""
    (line,) = (line for line in commands("docs/registry.md") if line.startswith("curl"))
    return dict(json.loads(line.split("'")[3]))
