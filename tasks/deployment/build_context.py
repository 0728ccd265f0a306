"""Build context of the environment, which is pushed to a Space or built into an image.

It contains `env/`, `rewards/`, their pinned requirements, the Dockerfile, the manifest, a README
and the sections of the settings that a server reads. It contains no agent, torch, data or seed.
`space.py` pushes it, `docker.py` builds from it.
"""

from __future__ import annotations

import shutil
from functools import cache
from importlib import metadata
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.config import Params
from tasks.errors import StageError
from tasks.io import replacing

TREE = Path("dist/space")
SOURCE = Path(__file__).resolve().parents[2]
PACKAGES = ("env", "rewards")
FILES = ("Dockerfile", ".dockerignore", "openenv.yaml")
REQUIREMENTS = "env/requirements.txt"
TEMPLATES = Path(__file__).resolve().parent / "templates" / "space"


def stage(params: Params, problems: str, notes: list[str], tree: Path = TREE) -> Path:
    """Write the build context atomically.

    Args:
        params: settings of the server.
        problems: origin of its problems, for the README.
        notes: comments at the head of its settings: external values that the context depends on.
        tree: folder to write.

    Raises:
        StageError: a file is missing, or a package that the server needs is not pinned.
    """
    missing = [name for name in (*PACKAGES, *FILES) if not (SOURCE / name).exists()]
    if missing:
        raise StageError(f"{SOURCE} lacks {', '.join(missing)}. Check the project out again.")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
    with replacing(tree) as temporary:
        temporary.mkdir()
        for name in PACKAGES:
            shutil.copytree(SOURCE / name, temporary / name, ignore=ignore)
        for name in FILES:
            shutil.copy(SOURCE / name, temporary / name)
        (temporary / "constraints.txt").write_text("\n".join([*pins(), ""]), encoding="utf-8")
        (temporary / "params.yaml").write_text(_settings(params, notes), encoding="utf-8")
        (temporary / "README.md").write_text(_readme(params, problems), encoding="utf-8")
    return tree


@cache
def pins() -> tuple[str, ...]:
    """All direct and indirect requirements of the server, as pinned in constraints.txt.

    Raises:
        StageError: constraints.txt does not pin one of them.
    """
    lines = (SOURCE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(Requirement(line).name): line for line in lines if "==" in line}
    todo = [Requirement(line) for line in _lines(SOURCE / REQUIREMENTS)]
    needed: set[str] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras = ["", *requirement.extras]
        marker = requirement.marker
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in needed or (marker and not marker.evaluate({"extra": ""})):
            continue
        needed.add(key)
        for text in metadata.requires(name) or []:
            below = Requirement(text)
            if below.marker is None or any(below.marker.evaluate({"extra": e}) for e in extras):
                below.marker = None
                todo.append(below)
    names = {canonicalize_name(key.partition("[")[0]) for key in needed}
    if unpinned := sorted(names - set(pinned)):
        missing = ", ".join(unpinned)
        raise StageError(f"constraints.txt does not pin {missing}. Pin the installed versions.")
    return tuple(sorted(pinned[name] for name in names))


def _lines(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def _settings(params: Params, notes: list[str]) -> str:
    """The server's sections, without the seed: it would reveal the gold."""
    sections = params.model_dump(mode="json", include={"env", "rewards"})
    synthetic = params.prepare.synthetic.model_dump(mode="json", exclude={"seed"})
    sections["prepare"] = {"source": params.prepare.source, "synthetic": synthetic}
    head = "".join(f"# {note}\n" for note in notes)
    return head + yaml.safe_dump(sections, sort_keys=False)


def _readme(params: Params, problems: str) -> str:
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; the values are checked settings
    )
    title = params.deploy.space.name.rpartition("/")[2]
    return templates.get_template("README.md").render(title=title, problems=problems)
