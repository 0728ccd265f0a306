"""Modules that the settings preload: cells can import them inside the same boundary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from env.errors import SandboxError
from env.server.sandbox import CellDone, Repl, SandboxHost
from env.settings import LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=2.0, cell_wall_s=60, memory_mb=64)


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    host = SandboxHost(LIMITS, SandboxSettings(preload=["numpy"]))
    yield host
    host.close()


@pytest.fixture
def repl(host: SandboxHost) -> Iterator[Repl]:
    repl = host.open("")
    yield repl
    repl.close()


def run(repl: Repl, code: str) -> CellDone:
    done = repl.run(f"import numpy as np\n{code}")
    assert isinstance(done, CellDone)
    return done


@pytest.mark.parametrize(
    "code",
    [
        "np.arange(6).reshape(2, 3).sum(axis=0)",
        "(np.ones((200, 300)) @ np.ones((300, 100))).sum()",
        "np.linalg.solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])).round(6)",
        "np.sort(np.linalg.eigvals(np.diag(np.arange(50.0)))).round(6)[-3:]",
        "np.fft.fft(np.arange(4))",
        "np.random.default_rng(3).normal(size=3)",
        "np.median([3, 1, 2]), np.percentile([1, 2, 3], 50), np.unique([2, 1, 2])",
        "np.ma.array([1, 2], mask=[0, 1]).sum(), np.strings.upper(np.array(['a']))",
        "np.datetime64('2024-02-28') + 2, np.histogram([1, 2, 3], 2)",
    ],
)
def test_numpy_gives_what_it_gives_outside(repl: Repl, code: str) -> None:
    done = run(repl, code)
    assert (done.stdout, done.error) == (f"{eval(code)!r}\n", None), done.traceback
    assert np.__name__ == "numpy"


def test_without_the_setting_there_is_no_numpy() -> None:
    plain = SandboxHost(LIMITS, SandboxSettings())
    assert "No module named 'numpy'" in run(plain.open(""), "").traceback
    plain.close()


def test_nothing_else_of_its_folder_can_be_imported(repl: Repl) -> None:
    assert "No module named 'yaml'" in run(repl, "import yaml").traceback
    assert run(repl, "import sys; sys.path").stdout == "[]\n"


def test_the_boundary_is_the_same(host: SandboxHost, repl: Repl) -> None:
    assert "seccomp" in host.enforced
    for code in ("np.save('/tmp/x', np.ones(1))", "np.fromfile('/proc/self/maps')"):
        assert "PermissionError" in run(repl, code).traceback
    assert repl._worker is not None
    assert len(list(Path(f"/proc/{repl._worker.pid}/task").iterdir())) == 1


def test_memory_counts_above_what_the_modules_take(repl: Repl) -> None:
    assert run(repl, "x = np.zeros(5_000_000); x.sum()").error is None  # 40 of 64 MB
    too_much = run(repl, "y = np.zeros(10**8)")
    assert (too_much.error, too_much.variables_lost) == ("memory", False)
    assert run(repl, "len(x)").stdout == "5000000\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nmpy", "env.sandbox.preload: nmpy: the server's environment has no module 'nmpy'"),
        ("numpy.rndom", "env.sandbox.preload: numpy.rndom cannot be imported"),
    ],
)
def test_a_wrong_name_is_refused_at_the_start(name: str, says: str) -> None:
    with pytest.raises(SandboxError, match=says):
        SandboxHost(LIMITS, SandboxSettings(preload=["numpy", name]))


def test_a_module_that_starts_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()\n"
    (tmp_path / "threaded.py").write_text(source)
    tmp_path.chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SandboxError, match="threaded starts threads"):
        SandboxHost(LIMITS, SandboxSettings(preload=["threaded"]))
