"""`rlm chat` and `rlm serve` as processes, and the page in a tab; a script is the model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import browser

ROOT = Path(__file__).parents[2]
QUESTION = "When do the looms arrive?"
HEIGHTS = {1280: 900, 390: 844}
"""Height of the window of a desktop and of a telephone by its width."""


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


def is_child(body: dict[str, Any]) -> bool:
    """Whether a request is that of an agent below the root."""
    return "one of several agents" in body["messages"][0]["content"]


def written(folder: Path, texts: dict[str, str]) -> Path:
    """A project folder with the documents in `notes`; returns it."""
    for name, text in texts.items():
        path = folder / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("params.yaml", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@dataclass(frozen=True)
class Running:
    """A command of `rlm` that serves."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    """Its output."""


@contextmanager
def running(
    folder: Path, ready: str, *words: str, end: int = signal.SIGTERM, **environ: str
) -> Iterator[Running]:
    """Such a command on a free port, until a signal at the end of the block ends it.

    Args:
        folder: its working folder.
        ready: expression for its output when it serves; the group is the address.
        words: the command.
        end: the signal.
        environ: further variables.
    """
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *words, "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while not (found := re.search(ready, log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield Running(process, found[1], log)
    finally:
        process.send_signal(end)
        assert process.wait(20) == 0, log.read_text()


def resize(tab: browser.Page, width: int) -> None:
    """Make a tab as wide as a desktop's or a telephone's."""
    size = {"width": width, "height": HEIGHTS[width], "mobile": width < 800}
    tab.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1)


@contextmanager
def window(url: str) -> Iterator[browser.Page]:
    """A tab of the page, as wide as a desktop's."""
    with browser.page("about:blank") as tab:
        resize(tab, 1280)
        tab.call("Page.navigate", url=url)
        tab.until("document.querySelectorAll('#documents button').length > 0")
        yield tab


def press(tab: browser.Page, key: str) -> None:
    """Press a key where the focus is."""
    text = {"text": "\r"} if key == "Enter" else {}
    codes = {"Enter": 13, "Escape": 27, "Tab": 9}
    for kind in ("keyDown", "keyUp"):
        tab.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=key,
            windowsVirtualKeyCode=codes[key],
            **text if kind == "keyDown" else {},
        )


def ask(tab: browser.Page, question: str) -> None:
    """Type a question into the box, which has the focus, and press Enter."""
    tab.run("document.getElementById('question').focus()")
    tab.call("Input.insertText", text=question)
    press(tab, "Enter")
