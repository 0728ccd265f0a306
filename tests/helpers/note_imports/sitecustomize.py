"""Note which of the project's modules each process imports; see `helpers/code_inputs.py`.

Python loads this at its start from a folder of PYTHONPATH. A server that is killed cannot note
anything at its end, so each import is noted when it happens.
"""

import os
import sys

FILE = os.environ.get("NOTE_IMPORTS")
# A server without data files generates problems. `register` starts one for its example; the stages
# of DVC play on servers with data.
GENERATES = os.environ.get("RLM_DATA") == ""
PACKAGES = {"agent", "assistant", "env", "flows", "rewards", "tasks"}


def _note(event, args):
    if event == "import" and args[0].partition(".")[0] in PACKAGES:
        with open(FILE, "a", encoding="utf-8") as file:
            file.write(f"{' '.join(sys.orig_argv)}\t{args[0]}\n")


if FILE and not GENERATES:
    sys.addaudithook(_note)
