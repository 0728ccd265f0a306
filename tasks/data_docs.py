"""The Data Docs pages, so that they can be read without a network and shown to a colleague.

Great Expectations writes a page for each table, whose styles and scripts come from four content
networks, and an index that is a script of one of them. Here each page gets one stylesheet of its
own instead, and the index becomes a plain list of all checks that links to the pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.report import TEMPLATES, page

if TYPE_CHECKING:
    from tasks.expectations import Check

_OUTSIDE = re.compile(
    r'<link[^>]*href="https?://[^>]*>|<script[^>]*src="https?://[^>]*>\s*</script>'
    r'|<img[^>]*src="https?://[^>]*>|<footer.*?</footer>',
    re.DOTALL,
)
_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)
"""What is left of scripts needs the libraries that are gone."""


def finish(site: Path, checks: Sequence[Check], rows: Mapping[str, int], profile: str) -> None:
    """Make the pages of a site stand alone, and write its index.

    Args:
        site: the folder that Great Expectations wrote.
        checks: all outcomes, in order.
        rows: problems of each split.
        profile: name of the settings.
    """
    style = f"<style>{(TEMPLATES / 'data_docs.css').read_text(encoding='utf-8')}</style></head>"
    for path in site.rglob("*.html"):
        text = _SCRIPT.sub("", _OUTSIDE.sub("", path.read_text(encoding="utf-8")))
        path.write_text(text.replace("</head>", style, 1), encoding="utf-8")
    tables = {
        table: {
            "page": next(
                (found.relative_to(site).as_posix() for found in _pages(site, table)), None
            ),
            "checks": [check for check in checks if check.table == table],
        }
        for table in dict.fromkeys(check.table for check in checks)
    }
    index = page("checks.html").render(tables=tables, rows=rows, profile=profile)
    (site / "index.html").write_text(index, encoding="utf-8")


def _pages(site: Path, table: str) -> list[Path]:
    return sorted((site / "validations" / table).rglob("*.html"))
