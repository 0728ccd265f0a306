"""Import OpenEnv without gradio and openai, which take longer to import than everything else.

OpenEnv imports gradio for a web page and openai for a judge; this project uses neither.
Import this module before `openenv`. A program that uses them itself is unaffected.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

if "gradio" not in sys.modules:
    sys.modules["gradio"] = None  # type: ignore[assignment]  # how Python marks a missing module
    try:
        import openenv.core.env_server
    finally:
        del sys.modules["gradio"]

if "openai" not in sys.modules and "openenv.core.llm_client" not in sys.modules:

    class _AsyncOpenAI:
        """Becomes the real client when somebody makes one."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return importlib.import_module("openai").AsyncOpenAI(*args, **kwargs)

    sys.modules["openai"] = ModuleType("openai")
    sys.modules["openai"].AsyncOpenAI = _AsyncOpenAI  # type: ignore[attr-defined]
    try:
        import openenv.core.rubrics  # noqa: F401
    finally:
        del sys.modules["openai"]
