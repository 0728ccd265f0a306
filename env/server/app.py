"""The server: `uvicorn env.server.app:app`.

The import reads the settings, because uvicorn needs the application then. The start creates
problems and sandbox. Routes: OpenEnv's HTTP and WebSocket routes, `/metadata` with the enforced
layers of the sandbox, and at `/` the page of `page.py`. Middlewares limit what strangers can do.
Start one process: with `--workers N`, each of N would take the whole memory budget and all seats.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from env.errors import SandboxError, SettingsError
from env.light_openenv import create_app, types
from env.models import RLMAction, RLMObservation, RLMState
from env.server.capacity import capacity
from env.server.door.connections import Connections, ServerLimits
from env.server.door.guard import Guard
from env.server.door.messages import message_bytes
from env.server.door.origin import SameOrigin
from env.server.door.requests import RequestLimits, short_errors
from env.server.door.seats import Seats
from env.server.environment import NAME, RLMEnvironment, RLMMetadata
from env.server.page import routes
from env.server.service import Service, read_problems, read_settings


def build() -> FastAPI:
    """The application, from the environment variables, with its `state.connections`.

    Raises:
        SystemExit: a setting is wrong; the message names it and the fix.
    """
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        raise SystemExit(str(error)) from None
    running: list[Service] = []
    size = message_bytes(settings.env)
    seats, connections = Seats(settings.env.idle_timeout_s), Connections(size)

    def start() -> None:
        try:
            service = Service(settings, read_problems(settings, os.environ), connections.relieve)
            running.append(service)
            # A machine without the boundary must fail at the start, not in an episode.
            seats.limit(*capacity(settings.env, service.host))
        except (SettingsError, SandboxError) as error:
            raise SystemExit(str(error)) from None

    def stop() -> None:
        while running:
            running.pop().close()

    app = create_app(
        partial(RLMEnvironment, lambda: running[0]),
        RLMAction,
        RLMObservation,
        env_name=NAME,
        # The guard ends idle sessions: OpenEnv measures them with a clock that can be set.
        concurrency_config=types.ConcurrencyConfig(max_concurrent_envs=settings.env.max_sessions),
        state_cls=RLMState,
    )
    # The last one added sees a request first.
    app.add_middleware(Guard, seats, idle_s=settings.env.idle_timeout_s, message_bytes=size)
    app.add_middleware(RequestLimits)
    app.add_middleware(SameOrigin, settings.env.allowed_hosts)
    app.state.connections = connections
    app.add_exception_handler(RequestValidationError, short_errors)
    app.router.on_startup.insert(0, start)
    app.router.on_shutdown.append(stop)
    # OpenEnv's metadata would drop our fields; its MCP makes sessions that nothing limits; its
    # schemas are made again for each request, which takes 19 ms.
    describe = next(r.endpoint for r in app.router.routes if getattr(r, "path", "") == "/schema")
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if getattr(route, "path", None) not in ("/metadata", "/mcp", "/schema")
    ]
    schemas: list[str] = []

    @app.get("/schema", tags=["Schema"], response_model=types.SchemaResponse)
    async def schema() -> Response:
        """JSON schemas of the messages."""
        if not schemas:
            schemas.append((await describe()).model_dump_json())
        return Response(schemas[0], media_type="application/json")

    @app.get("/metadata", tags=["Environment Info"])
    def metadata() -> RLMMetadata:
        """Settings, problems and boundary of this server."""
        return RLMEnvironment(lambda: running[0]).get_metadata()

    app.router.routes.extend(routes())
    return app


_application = build()
# FastAPI hides uvicorn from its middlewares, so this one is outside.
app = ServerLimits(_application, _application.state.connections)


SERVING: dict[str, Any] = {
    "timeout_graceful_shutdown": 3,
    "log_level": "warning",
    # Without a proxy, a client could name any address as its own.
    "proxy_headers": "FORWARDED_ALLOW_IPS" in os.environ,
}
"""Arguments of uvicorn that a bare `uvicorn` does not have; all limits hold without them."""


def main() -> None:
    """Serve on this machine."""
    import uvicorn

    parser = argparse.ArgumentParser(description="Start the environment's server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fd", type=int, help="inherited socket that already listens")
    parser.add_argument("--until-eof", action="store_true", help="stop when stdin closes")
    arguments = parser.parse_args()
    if arguments.until_eof:
        threading.Thread(target=_stop_at_eof, daemon=True).start()
    server = uvicorn.Server(uvicorn.Config(app, **SERVING))
    if arguments.fd is None:
        bound = _listener(arguments.host, arguments.port)
        url = f"http://{arguments.host}:{arguments.port}"
        sys.stderr.write(f"Serving the environment at {url}; Ctrl-C ends it.\n")
    else:
        bound = socket.socket(fileno=arguments.fd)
    with suppress(KeyboardInterrupt):
        server.run([bound])
    if not server.started:
        sys.exit(3)  # as uvicorn does


def _listener(host: str, port: int) -> socket.socket:
    """Listening socket; ends the process with one message if the address cannot be used."""
    try:
        return socket.create_server((host, port))
    except OSError:
        sys.exit(
            f"{host}:{port} is in use, or not an address of this machine. Stop the process that "
            f"listens there, or choose another port: `make serve-env PORT={port + 1}`."
        )


def _stop_at_eof() -> None:
    """End this process when its parent ends: the parent's end of the pipe closes in any case."""
    # sys.stdin has a lock, which this thread would hold while the process exits.
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
