"""A chain whose DVC stages take a tenth of a second; Prefect, DVC and MLflow are real.

The command of each stage is this file. It writes one output; two settings make it refuse as the
real stages do: `validate.min_rows` above 1000, and `warmstart.kind: none` for the gate.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SETTINGS = {"validate": "validate", "gate": "warmstart.kind"}
"""Setting that a stage reads besides the output of the stage before."""
SLOW = Path("slow")
"""While it exists `validate` takes a minute; it says in `started` that it began."""
ADVICE = "primary_objective is 0 in every episode: warm-start the model longer"


def write(folder: Path, names: tuple[str, ...]) -> None:
    """A working folder with such a chain; `names` are the stages that DVC keeps."""
    stages: dict[str, Any] = {}
    before = "params.yaml"
    for name in names:
        # As an interrupted stage is found: by the end of its command line.
        stages[name] = {
            "cmd": f"python {Path(__file__)} flows.pipeline {name}",
            "deps": [before],
            "params": [{"params.resolved.yaml": [SETTINGS.get(name, "profile")]}],
            "outs": [before := f"out/{name}"],
        }
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    shutil.copy(ROOT / "params.yaml", folder)
    shutil.copytree(ROOT / "profiles", folder / "profiles")
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc/config", folder / ".dvc")


def stage(name: str) -> None:
    """Do the work of a stage's command."""
    from tasks.errors import GateFailed, StageError

    settings = yaml.safe_load(Path("params.resolved.yaml").read_text())
    if name == "validate" and SLOW.exists():
        Path("started").touch()
        time.sleep(60)
    if name == "validate" and settings["validate"]["min_rows"] > 1000:
        refuse(name, StageError("validate: fewer rows than validate.min_rows"))
    if name == "gate" and settings["warmstart"]["kind"] == "none":
        Path("reports").mkdir(exist_ok=True)
        Path("reports/gate.json").write_text(json.dumps({"advice": ADVICE}))
        refuse(name, GateFailed(ADVICE))
    Path("out").mkdir(exist_ok=True)
    Path(f"out/{name}").write_text(f"made by {name}")


def refuse(name: str, error: Exception) -> None:
    """End as the real command does: the MLflow run says why, and so does the exit code."""
    from flows.pipeline import guarded
    from tasks import config
    from tasks.tracking import runs

    def work() -> None:
        with runs.stage_run(name, config.load_resolved()):
            raise error

    guarded(work)


if __name__ == "__main__":
    stage(sys.argv[-1])
