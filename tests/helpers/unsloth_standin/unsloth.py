"""A stand-in for Unsloth that loads with transformers and PEFT; its folder goes on the path.

It notes its calls in the file that UNSLOTH_CALLS names, one a line.
"""

import json
import os
import sys
from pathlib import Path

sys.stdout.write("a banner\n")
Path("unsloth_compiled_cache").mkdir(exist_ok=True)


class FastLanguageModel:
    @staticmethod
    def from_pretrained(**named):
        from agent.policies.hf_policy import load_model

        note("from_pretrained", named)
        return load_model(Path(named["model_name"]))

    @staticmethod
    def get_peft_model(model, **named):
        from peft import LoraConfig, get_peft_model

        note("get_peft_model", named)
        names = ("r", "target_modules", "lora_alpha", "lora_dropout", "bias")
        kept = {name: named[name] for name in names}
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **kept))


def note(name, named):
    with open(os.environ.get("UNSLOTH_CALLS", os.devnull), "a") as file:
        file.write(json.dumps({"name": name, **named}, default=str) + "\n")
