"""Settings and stages of earlier versions, with their present names.

An old name in params.yaml, a profile, `--set` or a command raises an error that gives the new
name. Settings that a registered version contains are translated.
"""

from __future__ import annotations

RENAMED = {
    "prepare.synthetic.groups": "prepare.synthetic.collections",
    "prepare.synthetic.questions_per_group": "prepare.synthetic.questions_per_collection",
    "train.parity": "train.logprob_check",
    "version": "push",
}
"""Old dotted key to new dotted key."""

_LEVELS = ("easy", "medium", "hard", "double")

REMOVED = {
    "env.quiet_search": "search and extract only return what they find; code prints it",
    "env.sandbox.backend": "seccomp is the only sandbox",
    "export.dequantise": "the warm start writes the 16-bit twin of a 4-bit base",
    "prepare.synthetic.canaries": "the world `papers` has left",
    "prepare.synthetic.held_out": "the test split shares no names with the others",
    "prepare.synthetic.levels.easy.hint": "no question has a hint",
    "prepare.synthetic.levels.hard.hint": "no question has a hint",
    "prepare.synthetic.levels.medium.hint": "no question has a hint",
    **{
        f"prepare.synthetic.levels.{level}.{key}": why
        for level in _LEVELS
        for key, why in (
            ("distractors", "papers determine it"),
            ("indirect", "the world `papers` has left"),
            ("max_gold", "papers determine it"),
        )
    },
    "prepare.synthetic.words": "the world `papers` has left",
    "prepare.synthetic.world": "`fields` is the only one",
    "train.control": "negative controls have left; commit 83f76a2 has them",
    "train.loss_type": "the loss is TRL's dapo; commit a49b2e06 has dr_grpo",
    "train.mask_truncated": "turns that a token limit cut are blamed; commit a8b304b4 masks them",
    "train.micro_batch_rows": "train.micro_batch_tokens bounds micro-batches by tokens",
    "train.own_score": "train.inheritance=own uses own scores alone; commit 3df18ea8 has shares",
    "validate.tier_share": "no source promises tiers",
    "warmstart.nano.mixture": "warmstart.nano.reading has the shares of demonstrations",
    "warmstart.nano.trees": "demonstrations are written while they are taught",
}
"""Old dotted key to the reason for its removal."""

FEWER_VALUES = {"train.inheritance", "warmstart.sft.plan"}
"""Keys that have lost values. In the settings of a registered version, such a value is dropped."""

STAGES = {"version": "push"}
"""Old stage to new stage."""
