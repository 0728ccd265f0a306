"""The guard of the fast tier: a unit test opens no socket and starts no process."""

import platform
import sys
from collections.abc import Iterator

import matplotlib.font_manager  # noqa: F401  # its import may ask fc-list for the fonts
import pytest
import urllib3  # noqa: F401  # its import binds a socket; a test that imports it must not

FORBIDDEN = {
    *("socket.bind", "socket.connect", "socket.sendto", "subprocess.Popen"),
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
}
running: list[str] = []
platform.processor()  # starts a process when it is first asked, which MLflow's import does


def guard(event: str, arguments: tuple[object, ...]) -> None:
    if running and event in FORBIDDEN:
        pytest.fail(f"{event} in a unit test; move the test to tests/integration")


sys.addaudithook(guard)


@pytest.hookimpl(wrapper=True)
def guarded(item: pytest.Item) -> Iterator[None]:
    running.append(item.nodeid)
    try:
        return (yield)
    finally:
        running.clear()


pytest_runtest_setup = pytest_runtest_call = guarded
