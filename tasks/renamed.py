"""Settings and stages of earlier versions, with their present names.

An old name in params.yaml, a profile, `--set` or a command raises an error that gives the new
name. Settings that a registered version contains are translated.
"""

from __future__ import annotations

RENAMED = {
    "measure": "evaluate_model",
    "prepare.synthetic.groups": "prepare.synthetic.collections",
    "prepare.synthetic.questions_per_group": "prepare.synthetic.questions_per_collection",
    "train.parity": "train.logprob_check",
    "version": "push",
}
"""Old dotted key to new dotted key."""

REMOVED = {
    "env.sandbox.backend": "seccomp is the only sandbox",
    "evaluate.judge": "only gold scores answers",
    "prepare.synthetic.held_out_templates": "all splits use the same wordings",
    "warmstart.nano.reworded": "all questions use the wordings of their world",
}
"""Old dotted key to the reason for its removal."""

STAGES = {"version": "push"}
"""Old stage to new stage."""
