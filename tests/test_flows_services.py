"""A background process that belongs to a run ends with it, however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

STARTS = """
import time
from flows import services
services.start(services.Service("sleeper", ["python", "-c", "import time; time.sleep(300)"]),
               quiet=True, bound={bound})
print(open(".run/sleeper.pid").read(), flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death")
@pytest.mark.parametrize("bound", [True, False])
def test_only_a_bound_service_dies_with_who_started_it(tmp_path: Path, bound: bool) -> None:
    root = Path(__file__).resolve().parent.parent
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS.format(bound=bound)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    service = psutil.Process(int(starter.stdout.readline()))
    try:
        starter.kill()
        starter.wait(timeout=10)
        gone, alive = psutil.wait_procs([service], timeout=10 if bound else 1)
        assert ([service] == gone, [service] == alive) == (bound, not bound)
    finally:
        if service.is_running():
            os.killpg(service.pid, signal.SIGKILL)
        starter.stdout.close()
