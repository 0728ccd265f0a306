"""Build context of the environment, which is pushed to a Space or built into an image.

It contains `env/`, `rewards/`, their requirements with the project's pins, the Dockerfile, the
manifest, a README and the sections of the settings that a server reads, but no agent, data or seed.
With env/pyproject.toml at its root, pip installs the client from it.
A Space may be public, so only files that git tracks are copied. `space.py` pushes it, `docker.py`
builds from it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from env.settings import Split
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.io import replacing
from tasks.reporting import cards

logger = logging.getLogger(__name__)

TREE = Path("dist/space")
SOURCE = Path(__file__).resolve().parents[2]
PACKAGES = ("env", "rewards")
FILES = ("Dockerfile", ".dockerignore", "constraints.txt", "openenv.yaml")
REQUIREMENTS = "env/requirements.txt"
SUFFIXES = (".css", ".html", ".js", ".py", ".toml")
"""Files of `PACKAGES` that are copied where git cannot name them, with `REQUIREMENTS`."""


def stage(
    params: Params,
    problems: str,
    notes: list[str],
    tree: Path = TREE,
    splits: Sequence[Split] | None = None,
) -> Path:
    """Write the build context atomically.

    Args:
        params: settings of the server.
        problems: origin of its problems, for the README.
        notes: comments at the head of its settings: external values that the context depends on.
        tree: folder to write.
        splits: `env.splits` of the server.

    Raises:
        StageError: a file is missing or a link.
    """
    missing = [name for name in (*PACKAGES, *FILES) if not (SOURCE / name).exists()]
    if missing:
        raise StageError(f"{SOURCE} lacks {', '.join(missing)}. Check the project out again.")
    files = source_files()
    with replacing(tree) as temporary:
        for name in files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, temporary / name)
        shutil.copy(SOURCE / "env/pyproject.toml", temporary)
        (temporary / "params.yaml").write_text(_settings(params, notes, splits), encoding="utf-8")
        title = params.deploy.space.name.rpartition("/")[2]
        readme = cards.rendered("space_card.md", title=title, problems=problems)
        (temporary / "README.md").write_text(readme, encoding="utf-8")
    return tree


def source_files() -> list[str]:
    """Files to copy, relative to the project: those that git tracks, or without git by suffix.

    Raises:
        StageError: one of them is a link, or git fails.
    """
    if (SOURCE / ".git").exists() and shutil.which("git"):
        names = _git("--cached")
        if untracked := _git("--others", "--exclude-standard"):
            logger.warning(
                "deploy: git does not track %s. These files are not deployed; "
                "`git add` them if the server needs them.",
                ", ".join(untracked),
            )
    else:
        paths = (path for name in PACKAGES for path in sorted((SOURCE / name).rglob("*")))
        files = [path for path in paths if path.suffix in SUFFIXES or path.is_symlink()]
        names = [*(path.relative_to(SOURCE).as_posix() for path in files), REQUIREMENTS, *FILES]
    if links := [name for name in names if _is_link(Path(name))]:
        raise StageError(
            f"{', '.join(links)} in {SOURCE} leads elsewhere: a deployment copies no links. "
            "Replace each link by the file itself."
        )
    return [name for name in names if (SOURCE / name).is_file()]


def _git(*which: str) -> list[str]:
    """Files of the build context as `git ls-files` lists them."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    listed = ("git", "-C", str(SOURCE), "ls-files", "-z", *which, "--", *PACKAGES, *FILES)
    done = subprocess.run(listed, env=own, capture_output=True, text=True)
    if done.returncode != 0:
        reason = next(iter(done.stderr.splitlines()), "no reason given")
        raise StageError(
            f"git cannot list the files of {SOURCE} ({reason}). Make `git status` work there."
        )
    return [name for name in done.stdout.split("\0") if name]


def _is_link(name: Path) -> bool:
    """Whether the file, or a folder on the way to it, is a symbolic link."""
    return any((SOURCE / part).is_symlink() for part in (name, *name.parents[:-1]))


def _settings(params: Params, notes: list[str], splits: Sequence[Split] | None) -> str:
    """The server's sections, without the seed: it would reveal the gold."""
    sections = params.model_dump(mode="json", include={"env", "rewards"})
    sections["env"]["splits"] = splits and list(splits)
    synthetic = params.prepare.synthetic.model_dump(mode="json", exclude={"seed"})
    sections["prepare"] = {"source": params.prepare.source, "synthetic": synthetic}
    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(sections, sort_keys=False)
