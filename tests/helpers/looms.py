"""A folder of documents, a question about them, and a script that answers it as a model would."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUESTION = "When do the looms arrive?"


def scripted_reply(body: dict[str, Any]) -> str:
    """Reply of a model that lets a child quote from the orders."""
    if "one of several agents" in body["messages"][0]["content"]:
        return "```repl\nFINAL([line for line in context.splitlines() if 'looms' in line])\n```"
    return "```repl\nFINAL(rlm_query('When do the looms arrive?', context['orders.md']))\n```"


def written(folder: Path, texts: dict[str, str]) -> Path:
    """A project folder with the documents in `notes`; returns it."""
    for name, text in texts.items():
        path = folder / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("params.yaml", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    return folder
