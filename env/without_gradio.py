"""Import OpenEnv without gradio, which takes longer to import than everything else together.

OpenEnv imports gradio for a web page that this project does not serve, and works without it.
Import this module before `openenv`. A program that uses gradio itself is unaffected.
"""

import sys

if "gradio" not in sys.modules:
    sys.modules["gradio"] = None  # type: ignore[assignment]  # how Python marks a missing module
    try:
        import openenv.core.env_server  # noqa: F401
    finally:
        del sys.modules["gradio"]
