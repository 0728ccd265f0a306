"""Check what a published recursive environment and its model need: `rlm checklist`.

Each point is checked by program, after a run of the chain. What types, import contracts and tests
prove of every commit isn't checked again. A point is met, has a stand-in on this machine, or needs
a person, such as the answer of a package index. Exit code 0: no point is open; 1: some are.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tasks import paths
from tasks.errors import PipelineError
from tasks.io import read_report

State = Literal["met", "stand-in", "person", "open"]
Found = tuple[State, str]
"""State of a point, and what was found."""
LARGE_MB = 10.0
"""Largest file of a Space without Git LFS."""
RESERVED = ("reset", "step", "state", "close")
"""Names that OpenEnv uses itself."""
COLOURS = {"met": "green", "stand-in": "yellow", "person": "yellow", "open": "red"}


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with its output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def latest_openenv() -> Found:
    """Whether the installed OpenEnv is the latest on the package index."""
    have = version("openenv")
    told = ran(sys.executable, "-m", "pip", "index", "versions", "openenv").stdout
    match = re.search(r"openenv \(([^)]+)\)", told)
    if match is None:
        return "person", f"{have} is installed; the package index did not answer"
    return ("met" if match[1] == have else "open"), f"{have} is installed, {match[1]} is the latest"


def manifest() -> Found:
    """Whether OpenEnv accepts openenv.yaml and the layout."""
    done = ran(sys.executable, "-m", "openenv.cli", "validate", ".", "--level", "static")
    if done.returncode == 0:
        return "met", "`openenv validate . --level static` passes"
    return "open", (done.stdout + done.stderr).strip().splitlines()[-1]


def reserved_names() -> Found:
    """Whether a function of the REPL has a name that OpenEnv uses."""
    from env.prompts import root_messages
    from env.settings import LimitSettings

    prompt = root_messages("full", LimitSettings(), 1, "?", 1)[0].content
    functions = set(re.findall(r"^- (\w+)\(", prompt, re.M))
    taken = sorted(functions & set(RESERVED))
    return ("open" if taken else "met"), f"{len(functions)} functions, reserved: {taken or 'none'}"


def space() -> Found:
    """Whether the environment runs in a Space, whose address is to be handed in."""
    report = read_report(paths.DEPLOYMENT, "deploy")
    if report["target"] == "space":
        return "met", f"{report['url']} played an episode"
    return "stand-in", (
        f"the target {report['target']!r} played an episode; a Space needs an account: "
        "docs/deployment.md"
    )


def large_files() -> Found:
    """Whether a tracked file is too large for a Space."""
    listed = ran("git", "ls-files")
    if listed.returncode:
        return "person", "the folder is not a git repository"
    sizes = {name: Path(name).stat().st_size / 1e6 for name in listed.stdout.splitlines()}
    largest = max(sizes, key=sizes.__getitem__)
    state: State = "met" if sizes[largest] < LARGE_MB else "open"
    return state, f"the largest tracked file is {largest}, {sizes[largest]:.1f} MB"


def plots() -> Found:
    """Whether the figures are in git."""
    names = ran("git", "ls-files", "plots").stdout.split()
    if "plots/reward_curve.png" in names:
        return "met", ", ".join(names)
    return "open", "none; run make figures, and commit plots/"


def links() -> Found:
    """Whether each relative link of the README has a target."""
    text = Path("README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    broken = sorted({target for target in targets if not Path(target).exists()})
    return ("open" if broken else "met"), f"{len(targets)} links, broken: {broken or 'none'}"


def components() -> Found:
    """Whether at least four components have a weight and a documented defence."""
    from tasks import config

    weights = config.load_resolved().rewards.weights.model_dump()
    text = Path("docs/rewards.md").read_text(encoding="utf-8")
    defended = [name for name, weight in weights.items() if weight > 0 and f"`{name}`" in text]
    return ("met" if len(defended) >= 4 else "open"), ", ".join(defended)


def before_and_after() -> Found:
    """Whether the same problems were played before and after the training."""
    report = read_report(paths.EVALUATION, "evaluate")
    state: State = "met" if report["n"] >= 20 else "open"
    return state, f"{report['improvement']} over {report['n']} problems"


def merged_save() -> Found:
    """Whether the merged model was loaded again and played an episode."""
    report = read_report(paths.EXPORT, "export")
    good = not report["wrong"] and report["episode"]["void"] is None
    return ("met" if good else "open"), (
        f"{report['dtype']}, {report['completions_equal']} of {report['prompts']} answers equal "
        f"after loading, one episode with reward {report['episode']['reward']}"
    )


POINTS: dict[str, Callable[[], Found]] = {
    "latest OpenEnv release": latest_openenv,
    "manifest is valid": manifest,
    "no reserved names": reserved_names,
    "Space is live": space,
    "no large files": large_files,
    "plots in git": plots,
    "links of the README": links,
    "four defended components": components,
    "before and after": before_and_after,
    "merged save, checked": merged_save,
}


def found(point: Callable[[], Found]) -> Found:
    """What a point finds; a fault leaves it open."""
    try:
        return point()
    except Exception as error:  # a damaged file can raise anything in the library that reads it
        return "open", str(error) if isinstance(error, PipelineError) else repr(error)


def main() -> int:
    """Print the list; returns the exit code."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table
    from rich.text import Text

    results = {name: found(point) for name, point in POINTS.items()}
    table = Table("point", "state", "found")
    for name, (state, text) in results.items():
        table.add_row(Text(name), Text(state, style=COLOURS[state]), Text(text))
    brief = Path(__file__).parents[1] / "docs/brief.md"
    Console().print(table, Markdown(brief.read_text(encoding="utf-8")))
    return 1 if any(state == "open" for state, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
