"""Lineage of a run, for its tags: commit, data, settings, seed, packages, sandbox.

The module also has the hashes that identify data, weights and code. `runs.py` tags each run,
`register` each version.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import paths
from tasks.io import digest, read_json

if TYPE_CHECKING:
    from tasks.config.params import Params

PACKAGES = ("torch", "transformers", "trl", "peft", "openenv", "prefect", "mlflow", "dvc")


def tags(params: Params, stage: str | None = None) -> dict[str, str]:
    """What is needed to repeat a run; what nobody reads at a glance is in one tag, as JSON."""
    unknown = "unknown: no reports/deployment.json"
    rest = {
        "params_hash": params_hash(params),
        "versions": versions(),
        "sandbox": ",".join(read_json(paths.DEPLOYMENT).get("sandbox", [])) or unknown,
    }
    return {
        "commit": commit(),
        "data_hash": data_hash(),
        "seed": str(seed_of(params, stage)),
        "lineage": json.dumps(rest),
    }


@cache
def commit() -> str:
    """Commit of the working tree, with `-dirty` if tracked files differ from it.

    What a run itself writes doesn't count: you commit it afterwards.
    """
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ":/"]
    changed += [":!dvc.lock", ":!params.resolved.yaml"]
    try:
        status, head = (
            subprocess.run(command, capture_output=True, text=True)
            for command in (changed, ["git", "rev-parse", "HEAD"])
        )
    except OSError:
        return "no git"
    if head.returncode:
        return "no git" if status.returncode else "no commits"
    return head.stdout.strip() + ("-dirty" if status.stdout else "")


def data_hash() -> str:
    """Hash of the problems' files, names included; `none` before prepare."""
    return folder_hash(paths.PROBLEMS) if paths.PROBLEMS.is_dir() else "none"


def folder_hash(folder: Path) -> str:
    """`files_hash` of all files in a folder."""
    return files_hash(sorted(p for p in folder.rglob("*") if p.is_file()), folder)


def files_hash(files: Sequence[Path], folder: Path) -> str:
    """First 16 hex digits of SHA-256 over files and their names relative to `folder`."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def params_hash(params: Params) -> str:
    """Digest of the settings in force."""
    return digest(params.model_dump(by_alias=True, mode="json"))


_SEEDED = ("audit", "zeroshot", "gate", "export", "evaluate")
"""Stages whose seed is a constant: 0."""


def seed_of(params: Params, stage: str | None) -> int:
    """The stage's own seed; train.seed for stages without one."""
    if stage == "prepare":
        return params.prepare.synthetic.seed
    if stage == "warmstart":
        shown = params.warmstart.may_demonstrate
        return params.warmstart.sft.seed if shown else params.warmstart.nano.seed
    return 0 if stage in _SEEDED else params.train.seed


@cache
def versions() -> dict[str, str]:
    """Installed versions of the packages that affect results."""
    return {package: metadata.version(package) for package in PACKAGES}
