"""Memory and processes of this process, limited by groups of both versions."""

import resource
from pathlib import Path

import pytest

from env import cgroups
from env.cgroups import machine_bytes, most_processes


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The only files that exist, with their texts."""
    found: dict[str, str] = {}

    def read(path: Path, *args: object, **kwargs: object) -> str:
        if str(path) not in found:
            raise FileNotFoundError
        return found[str(path)]

    monkeypatch.setattr(cgroups.Path, "read_text", read)
    return found


def test_a_limit_of_a_group_above_counts(files: dict[str, str]) -> None:
    files |= {
        "/proc/self/cgroup": "0::/slice/job/step\n",
        "/sys/fs/cgroup/slice/job/step/memory.max": "max\n",
        "/sys/fs/cgroup/slice/job/memory.max": "268435456\n",
        "/sys/fs/cgroup/slice/memory.max": "536870912\n",
    }
    assert machine_bytes() == 256 << 20


GROUPS = [
    ("0::/pod/server", "/sys/fs/cgroup/pod/pids.max", 5000, 1024),
    ("5:x,pids:/server", "/sys/fs/cgroup/pids/server/pids.max", resource.RLIM_INFINITY, 1024),
    ("0::/", "/sys/fs/cgroup/pids.max", 500, 500),
    ("0::/", "/nowhere", resource.RLIM_INFINITY, None),
]


@pytest.mark.parametrize(("group", "place", "user", "expected"), GROUPS)
def test_processes_of_the_user_and_of_each_group_above_are_limited(
    files, monkeypatch, group, place, user, expected
):
    files |= {"/proc/self/cgroup": f"{group}\n", place: "1024\n"}
    files["/sys/fs/cgroup/pod/server/pids.max"] = "max\n"
    monkeypatch.setattr(cgroups.resource, "getrlimit", lambda _: (user, user))
    assert most_processes() == expected
