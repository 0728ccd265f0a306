"""What a run is made of, for its tags: commit, data, settings, seeds, packages, sandbox.

And the hashes by which data, weights and code are told apart. Neighbours: `tracking.py` tags each
run, `register.py` each version.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.config import Params

DATA = Path("data/problems")
DEPLOYMENT = Path("reports/deployment.json")
PACKAGES = ("torch", "transformers", "trl", "peft", "openenv", "prefect", "mlflow", "dvc")


def tags(params: Params, stage: str | None = None) -> dict[str, str]:
    """What it takes to do this again: commit, data, settings, seed, versions, sandbox."""
    sandbox = deployment()
    return {
        "commit": commit(),
        "data_hash": data_hash(),
        "params_hash": params_hash(params),
        "seed": str(seed_of(params, stage)),
        "versions": json.dumps(versions()),
        "sandbox": ",".join(sandbox.get("sandbox", [])) or "unknown: no reports/deployment.json",
        "sandbox_backend": sandbox.get("sandbox_backend") or "unknown: no reports/deployment.json",
    }


@cache
def commit() -> str:
    """The commit of the working tree, `-dirty` when tracked files differ from it.

    But for the figures in plots/, which every run draws anew.
    """
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!plots"]
    try:
        head, status = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["git", "rev-parse", "HEAD"], changed)
        )
    except (OSError, subprocess.CalledProcessError):
        return "no git"
    return f"{head}-dirty" if status else head


def data_hash() -> str:
    """A hash of the problems' files, names included; `none` before prepare."""
    return folder_hash(DATA) if DATA.is_dir() else "none"


def folder_hash(folder: Path) -> str:
    """`files_hash` of everything in a folder."""
    return files_hash(sorted(p for p in folder.rglob("*") if p.is_file()), folder)


def files_hash(files: Sequence[Path], folder: Path) -> str:
    """The first 16 hex digits of SHA-256 over files and their names relative to `folder`."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def params_hash(params: Params) -> str:
    """The first 16 hex digits of SHA-256 over the settings in force."""
    text = json.dumps(params.model_dump(by_alias=True, mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seed_of(params: Params, stage: str | None) -> int:
    """The stage's own seed; the training's for stages without one."""
    if stage == "prepare":
        return params.prepare.synthetic.seed
    if stage == "warmstart":
        return params.warmstart.nano.seed
    section = getattr(params, stage, None) if stage else None
    seed: int = getattr(section, "seed", params.train.seed)
    return seed


@cache
def versions() -> dict[str, str]:
    """Installed versions of the packages that decide the numbers."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def deployment() -> dict[str, Any]:
    """What the deploy stage wrote down of the environment; empty before it."""
    try:
        return dict(json.loads(DEPLOYMENT.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
