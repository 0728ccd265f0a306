"""Names in vLLM's interface, recorded from its wheel without installing it.

    pip download --no-deps vllm==0.31.0
    python -m tests.helpers.vllm_contract vllm-0.31.0-*.whl

The second command rewrites tests/data/vllm_contract.json: the flags of `vllm serve`, the fields of
requests and answers, the ranks of adapters and the environment variables.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parents[1] / "data/vllm_contract.json"
COMPLETION = "vllm/entrypoints/openai/completion/protocol.py"
LORA = "vllm/entrypoints/serve/lora/protocol.py"
SAMPLING = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "watermarking": False,
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""Values that make the sampled distribution that of the model."""
GIVEN = ("model", "prompt", "max_tokens", "temperature", "seed", "stop_token_ids")
"""Fields whose values depend on the turn."""


def contract() -> dict[str, Any]:
    """The recorded names, by kind."""
    recorded: dict[str, Any] = json.loads(CONTRACT.read_text(encoding="utf-8"))
    return recorded


def flags(tree: ast.AST) -> Iterator[str]:
    """Flags that are written out in calls of `add_argument`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            yield from (text for text in texts if str(text).startswith("--"))


def fields(tree: ast.AST, *classes: str) -> list[str]:
    """Annotated names in the bodies of classes."""
    return [
        item.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in classes
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]


def record(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """The names in a wheel."""

    def read(name: str) -> ast.Module:
        return ast.parse(wheel.read(name))

    frontend = read("vllm/entrypoints/launchers/cli_args.py")
    # Fields of the front end become flags (`FrontendArgs.add_cli_args`).
    named = fields(frontend, "BaseFrontendArgs", "FrontendArgs")
    serve = {f"--{name.replace('_', '-')}" for name in named}
    serve |= {*flags(frontend), *flags(read("vllm/engine/arg_utils.py"))}
    (ranks,) = [
        node.value
        for node in read("vllm/config/lora.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MaxLoRARanks"
    ]
    assert isinstance(ranks, ast.Subscript)
    completion, lora = read(COMPLETION), read(LORA)
    (information,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    variables = [
        node.value
        for node in ast.walk(read("vllm/envs.py"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.isupper() and node.value.replace("_", "").isalnum()
    ]
    return {
        "wheel": information.split("/")[0].removesuffix(".dist-info"),
        "serve": sorted(serve),
        "completion_request": fields(completion, "CompletionRequest"),
        "completion_choice": fields(completion, "CompletionResponseChoice"),
        "load_request": fields(lora, "LoadLoRAAdapterRequest"),
        "lora_ranks": list(ast.literal_eval(ranks.slice)),
        "variables": sorted(set(variables)),
    }


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as opened:
        CONTRACT.write_text(json.dumps(record(opened), indent=1) + "\n", encoding="utf-8")
