"""Answers to the questions by counting.

The generator uses `solve` for gold. The scripted expert pastes its source into the REPL, so it
needs nothing but the standard library.
"""

from __future__ import annotations

from collections import Counter


def solve(kind: str, rows: list[tuple[str, str, str]], parts: dict[str, str]) -> list[str]:
    """All right answers; more than one is a tie.

    Args:
        kind: name of the question's kind.
        rows: (month, user, topic) of each message.
        parts: topics, user or month that the question names.
    """
    first, second, user = parts.get("a", ""), parts.get("b", ""), parts.get("user", "")
    if kind == "count":
        return [str(sum(row[2] == first for row in rows))]
    if kind == "user count":
        return [str(sum(row[1:] == (user, first) for row in rows))]
    if kind == "compare":
        counts = Counter(row[2] for row in rows)
        if counts[first] == counts[second]:
            return ["more", "less"]
        return ["more" if counts[first] > counts[second] else "less"]
    if kind in ("most", "least"):
        totals = Counter(row[2] for row in rows)
    elif kind == "user topic":
        totals = Counter(row[2] for row in rows if row[1] == user)
    else:
        place = 1 if kind == "which user" else 0
        totals = Counter(row[place] for row in rows if row[2] == first)
    best = (min if kind == "least" else max)(totals.values(), default=0)
    return sorted(name for name, total in totals.items() if total == best)
