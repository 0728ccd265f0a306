"""Data Docs pages that can be read without a network.

Great Expectations writes a page per table with styles and scripts of four content networks, and
an index that is such a script. Here each page gets one embedded stylesheet, and the index becomes
a plain list of all checks with links to the pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.reporting.html import TEMPLATES, page

if TYPE_CHECKING:
    from tasks.data.expectations import Check

_OUTSIDE = re.compile(
    r'<link[^>]*href="https?://[^>]*>|<script[^>]*src="https?://[^>]*>\s*</script>'
    r'|<img[^>]*src="https?://[^>]*>|<footer.*?</footer>',
    re.DOTALL,
)
_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)
"""Remaining scripts, which need the removed libraries."""


def finish(site: Path, checks: Sequence[Check], rows: Mapping[str, int], profile: str) -> None:
    """Make the pages of a site self-contained, and write its index.

    Args:
        site: the folder that Great Expectations wrote.
        checks: all outcomes, in order.
        rows: number of problems of each split.
        profile: name of the settings.
    """
    style = f"<style>{(TEMPLATES / 'data_docs.css').read_text(encoding='utf-8')}</style></head>"
    for path in site.rglob("*.html"):
        text = _SCRIPT.sub("", _OUTSIDE.sub("", path.read_text(encoding="utf-8")))
        path.write_text(text.replace("</head>", style, 1), encoding="utf-8")
    tables = {
        table: {
            "page": _page(site, table),
            "checks": [check for check in checks if check.table == table],
        }
        for table in dict.fromkeys(check.table for check in checks)
    }
    index = page("checks.html").render(tables=tables, rows=rows, profile=profile)
    (site / "index.html").write_text(index, encoding="utf-8")


def _page(site: Path, table: str) -> str | None:
    pages = sorted((site / "validations" / table).rglob("*.html"))
    return pages[0].relative_to(site).as_posix() if pages else None
