"""The guard of this folder: what a unit test must not do fails, even where errors are caught."""

import socket
import subprocess
from contextlib import suppress

import pytest


def test_a_unit_test_cannot_start_a_process() -> None:
    refused = pytest.raises(pytest.fail.Exception, match=r"^subprocess\.Popen in a unit test")
    with refused, suppress(Exception):
        subprocess.run(["true"])


@pytest.mark.parametrize("how", ["bind", "connect"])
def test_a_unit_test_cannot_use_a_socket(how: str) -> None:
    refused = pytest.raises(pytest.fail.Exception, match=rf"^socket\.{how} in a unit test")
    with socket.socket() as plain, refused:
        getattr(plain, how)(("127.0.0.1", 9))
