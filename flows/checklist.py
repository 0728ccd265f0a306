"""Check what a published recursive environment and its model need: `rlm checklist`.

Each point is checked by program, after a run of the chain. A point is met, has a stand-in on this
machine, or needs a person, such as a live Space. Exit code 0: no point is open; 1: some are.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks import paths
from tasks.errors import PipelineError
from tasks.io import read_report

State = Literal["met", "stand-in", "person", "open"]
LARGE_MB = 10.0
"""Largest file of a Space without Git LFS."""
RESERVED = ("reset", "step", "state", "close")
"""Names that OpenEnv uses itself."""
COLOURS = {"met": "green", "stand-in": "yellow", "person": "yellow", "open": "red"}


@dataclass(frozen=True)
class CheckedPoint:
    """One point of the list and what was found."""

    name: str
    state: State
    found: str


def latest_openenv() -> tuple[State, str]:
    """Whether the installed OpenEnv is the latest on the package index."""
    from importlib.metadata import version

    have = version("openenv")
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "openenv"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    match = re.search(r"openenv \(([^)]+)\)", asked.stdout)
    if match is None:
        return "person", f"{have} is installed; the package index did not answer"
    return ("met" if match[1] == have else "open"), f"{have} is installed, {match[1]} is the latest"


def manifest() -> tuple[State, str]:
    """Whether OpenEnv accepts openenv.yaml and the layout."""
    done = subprocess.run(
        [sys.executable, "-m", "openenv.cli", "validate", ".", "--level", "static"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 0:
        return "met", "`openenv validate . --level static` passes"
    return "open", (done.stdout + done.stderr).strip().splitlines()[-1]


def python(code: str) -> str:
    """Output of Python code in a process of its own; this module imports nothing of the server."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return (done.stdout or done.stderr).strip()


def base_classes() -> tuple[State, str]:
    """Whether environment and client extend OpenEnv's classes."""
    output = python(
        "from env.client import RLMEnv\n"
        "from env.server.environment import RLMEnvironment\n"
        "from openenv.core.env_client import EnvClient\n"
        "from openenv.core.env_server.interfaces import Environment\n"
        "print(issubclass(RLMEnvironment, Environment), issubclass(RLMEnv, EnvClient))"
    )
    return ("met" if output == "True True" else "open"), (
        f"RLMEnvironment is an Environment, RLMEnv an EnvClient: {output}"
    )


def client_alone() -> tuple[State, str]:
    """Whether the client imports no module of the server."""
    output = python(
        "import sys, env.client; print([m for m in sys.modules if m.startswith('env.server')])"
    )
    return ("met" if output == "[]" else "open"), f"modules of the server in the client: {output}"


def gym_methods() -> tuple[State, str]:
    """Whether reset and step return observations, and state is a property."""
    output = python(
        "import inspect\n"
        "from env.server.environment import RLMEnvironment as E\n"
        "returns = [inspect.signature(f).return_annotation for f in (E.reset, E.step)]\n"
        "print(*returns, type(E.state).__name__)"
    )
    report = read_report(paths.DEPLOYMENT, "deploy")
    state: State = "met" if output == "RLMObservation RLMObservation property" else "open"
    return state, f"{output}; an episode over the wire took {report['smoke_test_s']:.2f} s"


def reserved_names() -> tuple[State, str]:
    """Whether a function of the REPL has a name that OpenEnv uses."""
    from env.prompts import root_messages
    from env.settings import EnvSettings

    prompt = root_messages(EnvSettings(prompt_style="full"), "?", 1)[0].content
    functions = set(re.findall(r"^- (\w+)\(", prompt, re.M))
    taken = sorted(functions & set(RESERVED))
    return ("open" if taken else "met"), f"{len(functions)} functions, reserved: {taken or 'none'}"


def space() -> tuple[State, str]:
    """Whether the environment runs in a Space, whose address is handed in."""
    report = read_report(paths.DEPLOYMENT, "deploy")
    if report["target"] == "space":
        return "met", f"{report['url']} played an episode"
    return "stand-in", (
        f"the target {report['target']!r} played an episode; a Space needs an account: "
        "docs/deployment.md"
    )


def large_files() -> tuple[State, str]:
    """Whether a tracked file is too large for a Space."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True)
    if listed.returncode:
        return "person", "the folder is not a git repository"
    sizes = {name: Path(name).stat().st_size / 1e6 for name in listed.stdout.splitlines()}
    largest = max(sizes, key=sizes.__getitem__)
    state: State = "met" if sizes[largest] < LARGE_MB else "open"
    return state, f"the largest tracked file is {largest}, {sizes[largest]:.1f} MB"


def notebook() -> tuple[State, str]:
    """Whether the notebook has cells that are valid Python."""
    cells = json.loads(Path("notebooks/train_colab.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for text in code:
        compile(text, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return "stand-in", f"{len(code)} cells compile; `make test-nightly` executes them"


def plots() -> tuple[State, str]:
    """Whether the figures are in git."""
    listed = subprocess.run(["git", "ls-files", "plots"], capture_output=True, text=True)
    names = listed.stdout.split()
    if "plots/reward_curve.png" in names:
        return "met", ", ".join(names)
    return "open", "none; run make figures, and commit plots/"


def write_up() -> tuple[State, str]:
    """Whether the text about the project is there."""
    text = Path("docs/write-up.md")
    if not text.exists():
        return "open", f"{text} is missing"
    return "person", f"{text} has {len(text.read_text().split())} words; publish it"


def links() -> tuple[State, str]:
    """Whether each relative link of the README has a target."""
    text = Path("README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    broken = sorted({target for target in targets if not Path(target).exists()})
    return ("open" if broken else "met"), f"{len(targets)} links, broken: {broken or 'none'}"


def components() -> tuple[State, str]:
    """Whether at least four components have a weight and a documented defence, and were audited."""
    from tasks import audit, config

    weights = config.load_resolved().rewards.weights.model_dump()
    read_report(audit.REPORT, "audit")
    text = Path("docs/rewards.md").read_text(encoding="utf-8")
    defended = [name for name, weight in weights.items() if weight > 0 and f"`{name}`" in text]
    return ("met" if len(defended) >= 4 else "open"), ", ".join(defended)


def reward_figure() -> tuple[State, str]:
    """Whether the reward curve has both axes labelled, and the baseline in it."""
    from tasks import plots
    from tasks.reporting import figures

    train = plots.read_train(paths.TRAIN_ROWS)
    baseline = read_report(paths.BASELINE, "gate")
    axes = figures.reward_curve(train, baseline, read_report(paths.ZERO_SHOT, "zeroshot")).axes[0]
    labels = [axes.get_xlabel(), axes.get_ylabel()]
    named = [text.get_text() for text in (axes.get_legend() or axes.figure.legends[0]).get_texts()]
    good = labels == ["Training Step", "Reward"] and "before" in " ".join(named)
    return ("met" if good else "open"), f"axes {labels}, legend {named}"


def before_and_after() -> tuple[State, str]:
    """Whether the same problems were played before and after the training."""
    report = read_report(paths.EVALUATION, "evaluate")
    state: State = "met" if report["n"] >= 20 else "open"
    return state, f"{report['improvement']} over {report['n']} problems"


def merged_save() -> tuple[State, str]:
    """Whether the merged model was loaded again and played an episode."""
    report = read_report(paths.EXPORT, "export")
    good = not report["wrong"] and report["episode"]["void"] is None
    return ("met" if good else "open"), (
        f"{report['dtype']}, {report['completions_equal']} of {report['prompts']} answers equal "
        f"after loading, one episode with reward {report['episode']['reward']}"
    )


POINTS: dict[str, Callable[[], tuple[State, str]]] = {
    "latest OpenEnv release": latest_openenv,
    "manifest is valid": manifest,
    "base classes of OpenEnv": base_classes,
    "client without the server": client_alone,
    "reset, step and state": gym_methods,
    "no reserved names": reserved_names,
    "Space is live": space,
    "no large files": large_files,
    "notebook": notebook,
    "plots in git": plots,
    "write-up": write_up,
    "links of the README": links,
    "four defended components": components,
    "baseline and axes of the curve": reward_figure,
    "before and after": before_and_after,
    "merged save, checked": merged_save,
}


def checked_points() -> list[CheckedPoint]:
    """All points in order."""
    points = []
    for name, point in POINTS.items():
        try:
            points.append(CheckedPoint(name, *point()))
        except Exception as error:  # a damaged file can raise anything in the library that reads it
            message = str(error) if isinstance(error, PipelineError) else repr(error)
            points.append(CheckedPoint(name, "open", message))
    return points


def main() -> int:
    """Print the list; returns the exit code."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table
    from rich.text import Text

    points = checked_points()
    table = Table("point", "state", "found")
    for point in points:
        state = Text(point.state, style=COLOURS[point.state])
        table.add_row(Text(point.name), state, Text(point.found))
    brief = Path(__file__).parents[1] / "docs/brief.md"
    Console().print(table, Markdown(brief.read_text(encoding="utf-8")))
    return 1 if any(point.state == "open" for point in points) else 0


if __name__ == "__main__":
    sys.exit(main())
