"""MLflow's server without its assistant, for pages of its own address alone.

MLflow has no password and answers pages of every local port, and whoever reaches its assistant can
let it run commands. `mlflow server --app-name rlm` starts this application.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_ASSISTANT = "/mlflow/assistant"
"""Part of the paths of its requests, at any version of the API."""


def make() -> ASGIApp:
    """MLflow's application behind the two rules."""
    from mlflow.server import fastapi_app, security_utils

    also = security_utils.get_allowed_origins_from_env() or []

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = fastapi_app.app
        if scope["type"] == "http":
            origin, host = map(Headers(scope=scope).get, ("origin", "host"))
            if _ASSISTANT in scope["path"]:
                answer = PlainTextResponse("the assistant is off", 404)
            elif origin and origin not in (f"http://{host}", f"https://{host}", *also):
                answer = PlainTextResponse("not for pages of other addresses", 403)
        await answer(scope, receive, send)

    return guarded
