"""The steps of a Dockerfile without an engine: copied files, pip in a fresh venv, the command.

No isolation: it shows that what the image would hold is enough, not that the image is built.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from helpers.sandbox_attacks import ORDINARY_USER

_CONTAINED = """
import errno, os, sys
import pyseccomp as s
rules = s.SyscallFilter(s.ALLOW)
for name in sys.argv[1].split():
    rules.add_rule(s.ERRNO(errno.EPERM), name)
rules.add_rule(s.ERRNO(errno.EPERM), "personality", s.Arg(0, s.EQ, 0x0040000))
rules.load()
os.execv(sys.argv[2], sys.argv[2:])
"""
_REFUSED = (
    "acct add_key bpf chroot clock_settime delete_module finit_module fsopen init_module "
    "io_uring_enter io_uring_register io_uring_setup ioperm iopl kexec_load keyctl mount "
    "move_mount name_to_handle_at open_by_handle_at open_tree perf_event_open pivot_root quotactl "
    "reboot request_key setns settimeofday swapoff swapon umount2 unshare userfaultfd"
)
"""Calls that engines refuse to a container without privileges; new namespaces among them."""

KNOWN = ("ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "CMD")


@dataclass
class Image:
    """State that the steps left."""

    root: Path
    """The working folder of the container."""
    python: Path
    environment: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    user: str = "0"
    port: int = 0
    ran: list[str] = field(default_factory=list)
    """RUN lines, in order."""

    def start(self, port: int, log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """The command on another port, refused what a container is refused.

        As an ordinary user, if this process may choose.
        """
        command = [str(port) if word == str(self.port) else word for word in self.command]
        become = ORDINARY_USER if os.geteuid() == 0 and self.user != "0" else []
        python = str(self.python)
        contained = [*become, python, "-c", _CONTAINED, _REFUSED]
        with log.open("ab") as stream:
            return subprocess.Popen(
                [*contained, python, *command[1:]],
                cwd=self.root,
                # Nothing of this machine's environment but what a process needs to run.
                env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def steps(path: Path) -> list[tuple[str, str]]:
    """Instructions and their arguments."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")
    ]


def build(context: Path, into: Path, install: bool = False) -> Image:
    """Follow the steps of `context/Dockerfile`.

    Args:
        context: the build's context.
        into: an empty folder.
        install: make a venv there and run the pip steps; otherwise this Python is used.
    """
    root = into / "app"
    root.mkdir(parents=True)
    image = Image(root, Path(sys.executable))
    if install:
        subprocess.run([sys.executable, "-m", "venv", str(into / "venv")], check=True)
        image.python = into / "venv/bin/python"
    for word, rest in steps(context / "Dockerfile"):
        assert word in KNOWN, word
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(context / source, root / target)
        elif word == "ENV":
            pairs = (pair.split("=", 1) for pair in shlex.split(rest))
            image.environment |= {key: value.replace("/app", str(root)) for key, value in pairs}
        elif word == "USER":
            image.user = rest
        elif word == "EXPOSE":
            image.port = int(rest)
        elif word == "CMD":
            image.command = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.health = json.loads(rest.partition("CMD ")[2])
        elif word == "RUN":
            image.ran.append(rest)
            if install and rest.startswith("pip "):
                pip = [str(image.python), "-m", *shlex.split(rest)]
                subprocess.run([*pip, "--quiet"], cwd=root, check=True)
    return image


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)
