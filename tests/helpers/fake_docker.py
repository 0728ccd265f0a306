#!/usr/bin/env python3
"""The `docker` commands that the pipeline gives, by following the Dockerfile without an engine.

State lies in the folder `FAKE_DOCKER`: images and containers.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
STATE = Path(os.environ["FAKE_DOCKER"])


def build(arguments: list[str]) -> None:
    """docker build --quiet --tag IMAGE CONTEXT."""
    from helpers.dockerfile import build as follow

    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--tag")
    parser.add_argument("context", type=Path)
    asked = parser.parse_args(arguments)
    image = follow(asked.context, STATE / f"{asked.tag}-{time.time_ns()}")
    (STATE / f"{asked.tag}.image").write_bytes(pickle.dumps(image))
    sys.stdout.write("sha256:0\n")


def run(arguments: list[str]) -> None:
    """docker run --detach --init --name N --env K [--volume A:B:ro] --publish H:P:C ... IMAGE."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--init", action="store_true")
    parser.add_argument("--name")
    parser.add_argument("--label")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--volume", default="")
    parser.add_argument("--publish")
    for name in ("memory", "memory-swap", "pids-limit", "cap-drop", "security-opt", "tmpfs"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--read-only", action="store_true", required=True)
    parser.add_argument("image")
    asked = parser.parse_args(arguments)
    outside, _, inside = asked.volume.removesuffix(":ro").partition(":")
    environment = {}
    for word in asked.env:
        key, given, value = word.partition("=")
        environment[key] = value if given else os.environ[key]
        if inside:
            environment[key] = environment[key].replace(inside, outside)
    image = pickle.loads((STATE / f"{asked.image}.image").read_bytes())
    _, port, exposed = asked.publish.split(":")
    assert int(exposed) == image.port
    process = image.start(int(port), STATE / f"{asked.name}.log", **environment)
    (STATE / f"{asked.name}.pid").write_text(str(process.pid))


def ps(arguments: list[str]) -> None:
    """docker ps --all --filter label=L --format {{.Names}}."""
    for path in STATE.glob("*.pid"):
        sys.stdout.write(f"{path.stem}\n")


def inspect(arguments: list[str]) -> None:
    """docker inspect --format {{.State.Running}} NAME."""
    sys.stdout.write("true\n" if _runs(arguments[-1]) else "false\n")


def _runs(name: str) -> bool:
    stat = Path(f"/proc/{(STATE / f'{name}.pid').read_text()}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def logs(arguments: list[str]) -> None:
    """docker logs --tail N NAME."""
    lines = (STATE / f"{arguments[-1]}.log").read_text().splitlines()
    sys.stdout.write("\n".join(lines[-int(arguments[1]) :]))


def stop(arguments: list[str]) -> None:
    """docker stop --time S NAME."""
    try:
        os.killpg(int((STATE / f"{arguments[-1]}.pid").read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        sys.exit("Error response from daemon: No such container")
    while _runs(arguments[-1]):
        time.sleep(0.05)


def rm(arguments: list[str]) -> None:
    """docker rm --force --volumes NAME."""
    (STATE / f"{arguments[-1]}.pid").unlink(missing_ok=True)


if __name__ == "__main__":
    with (STATE / "commands").open("a") as told:
        told.write(" ".join(sys.argv[1:]) + "\n")
    globals()[sys.argv[1]](sys.argv[2:])
