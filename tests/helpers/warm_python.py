"""A `python` whose slow packages are imported already, for processes that tests start.

A stage is a process that imports torch, MLflow or Great Expectations: more work than what a tiny
stage does. This command asks a process that has imported them to fork. The nightly chain starts
its stages as users do.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = (
    "great_expectations",
    "fastmcp",
    "matplotlib.pyplot",
    "mlflow.store.tracking.sqlalchemy_store",
    "peft",
    "trl.trainer.grpo_trainer",
    "websockets.asyncio.client",
)
"""Slow imports of stages; nothing of the project, whose modules each stage imports itself."""
PR_SET_PDEATHSIG = 1
CLIENT = """#!{python} -ISE
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({address!r})
told = [sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(asked, [json.dumps(told).encode()], [0, 1, 2])
sys.exit(int(asked.recv(16) or 137))
"""


@contextmanager
def warm_python(folder: Path) -> Iterator[Path]:
    """The command: `python -m MODULE ARGUMENTS`.

    The first that asks waits until the packages are imported. Killed, the command takes what it
    started along.
    """
    address = str(folder / "socket")
    server = subprocess.Popen([sys.executable, __file__, address], start_new_session=True)
    command = folder / "python"
    command.write_text(CLIENT.format(python=sys.executable, address=address))
    command.chmod(0o755)
    try:
        while not os.path.exists(address):
            assert server.poll() is None, "the warm Python ended"
            time.sleep(0.01)
        yield command
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def serve(address: str) -> list[str]:
    """Fork a process for each request; return its command line there, and never here."""
    if sys.platform == "linux":  # end with a test session that is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    asked, _ = listener.accept()
    for name in PACKAGES:
        importlib.import_module(name)
    gc.freeze()
    while os.fork():
        asked.close()
        asked, _ = listener.accept()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(asked, 1 << 18, 3)
    if child := os.fork():
        ended = os.pidfd_open(child)
        if ended not in select.select([asked, ended], [], [])[0]:  # who asked is gone
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(BrokenPipeError):
            asked.send(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
    asked.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, cwd, environment = json.loads(message)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.orig_argv = ["python", *arguments]
    sys.executable = str(Path(address).with_name("python"))
    return list(arguments)


if __name__ == "__main__":
    _, module, *rest = serve(sys.argv[1])
    if Path(sys.path[1], "sitecustomize.py").is_file():
        runpy.run_path(str(Path(sys.path[1], "sitecustomize.py")))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
