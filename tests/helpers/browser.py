"""A headless Chromium, driven over its own debugging protocol."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --remote-debugging-port=0 "
    "--hide-scrollbars --window-size=1280,1060"
)


class Page:
    """One tab.

    Args:
        socket: to its debugger.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        params = {"expression": script, "awaitPromise": True}
        self._socket.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": params}))
        answer: dict[str, Any] = {}
        while "id" not in answer:  # an event
            answer = json.loads(self._socket.recv(timeout=30))
        assert "exceptionDetails" not in answer["result"], answer
        return answer["result"]["result"].get("value")

    def until(self, script: str, wait_s: float = 20.0) -> None:
        """Wait for an expression to become true."""
        deadline = time.monotonic() + wait_s
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.05)


@contextmanager
def page(url: str) -> Iterator[Page]:
    """A tab that shows `url`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = subprocess.Popen(
            [BINARY, *FLAGS.split(), f"--user-data-dir={home}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = Path(home, "DevToolsActivePort")
            deadline = time.monotonic() + 60
            while not port.exists() or not port.read_text().strip():
                assert time.monotonic() < deadline, "the browser did not start"
                time.sleep(0.1)
            address = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
            with urllib.request.urlopen(address, timeout=10) as answer:
                tabs = json.load(answer)
            socket = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            with connect(socket, max_size=None) as debugger:
                yield Page(debugger)
        finally:
            browser.terminate()
            browser.wait(timeout=30)
