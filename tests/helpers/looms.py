"""A folder of documents, a question about them, and a script that answers it as a model would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUESTION = "When do the looms arrive?"


def scripted_reply(body: dict[str, Any]) -> str:
    """Reply of a careful model: it searches, gives its hits to children, and quotes them."""
    messages = body["messages"]
    if "one of several agents" in messages[0]["content"]:
        return (
            "```repl\n"
            "sentences = [s for line in context.splitlines() for s in line.split('. ')]\n"
            "FINAL([s for s in sentences if 'looms' in s])\n```"
        )
    if len(messages) == 2:
        return (
            "```repl\nhits = search(context, 'looms')\n"
            "print({name: len(found) for name, found in hits.items()})\n```"
        )
    return (
        "```repl\nprompt = 'Quote every sentence that says when the looms arrive.'\n"
        "FINAL(rlm_query_batched([prompt] * len(hits), [context[name] for name in hits]))\n```"
    )


def written(folder: Path, texts: dict[str, str]) -> Path:
    """A project folder with the documents in `notes`; returns it."""
    for name, text in texts.items():
        path = folder / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("params.yaml", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    return folder
