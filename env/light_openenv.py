"""Import OpenEnv without gradio, openai and fastmcp, which take longer to import than the rest.

OpenEnv imports gradio for a web page, openai for a judge and fastmcp for tools; this project uses
none of them. So `env` takes OpenEnv's classes from here, or imports this module first; the package
itself doesn't, because the sandbox's processes import it. A program that uses those packages itself
is unaffected.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_LATER = {
    "openai": ["AsyncOpenAI"],
    "fastmcp": ["Client"],
    "fastmcp.client": [],
    "fastmcp.client.client": ["CallToolResult"],
    "mcp": [],
    "mcp.types": ["TextContent"],
}
"""The modules, and the classes of each that OpenEnv imports by name."""


def _later(module: str, name: str) -> type:
    """A class that becomes the real one when somebody makes an object of it."""

    def make(_: type, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return type(name, (), {"__new__": make})


@contextmanager
def _without_slow_packages() -> Iterator[None]:
    """Let those packages that are not loaded yet look as if they were."""
    loaded = {module.partition(".")[0] for module in sys.modules}
    absent = [module for module in _LATER if module.partition(".")[0] not in loaded]
    for module in absent:
        sys.modules[module] = ModuleType(module)
        for name in _LATER[module]:
            setattr(sys.modules[module], name, _later(module, name))
    if "gradio" not in loaded:
        absent.append("gradio")
        sys.modules["gradio"] = None  # type: ignore[assignment]  # how Python marks a missing module
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]


with _without_slow_packages():
    import openenv.core.rubrics  # noqa: F401  # for `rewards.rubrics`
    from openenv.core.env_server import create_app as create_app
    from openenv.core.env_server import types as types
    from openenv.core.env_server.interfaces import Environment as Environment
