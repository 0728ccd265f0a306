"""Which web pages may use the server: checks of the headers Host and Origin.

A browser sends the page's address as Origin. A page of another host cannot play on a server of the
visitor's own machine. It cannot either under a host name that its owner points to that machine.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_SETTING = "env.allowed_hosts"
_SAFE = {"GET", "HEAD", "OPTIONS"}
"""Methods whose answer a page of another host cannot read, and that change nothing."""


class SameOrigin:
    """Middleware that refuses requests of foreign pages with status 403.

    Args:
        app: application behind it.
        allowed: host names besides the server's own: `env.allowed_hosts`.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        reason = None if scope["type"] == "lifespan" else foreign(scope, self._allowed)
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await PlainTextResponse(reason, 403)(scope, receive, send)


def foreign(scope: Scope, allowed: Collection[str]) -> str | None:
    """Reason why a request counts as one of a foreign page; None if it does not."""
    headers = dict(scope["headers"])
    host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
    name, port = _address(host)
    server = scope.get("server") or ("", None)
    if host and not (_is_loopback(name) or name in allowed):
        if allowed:
            return f"This server does not answer for that host ({_SETTING}).\n"
        if _is_loopback(server[0]):
            return f"This server answers for this machine only ({_SETTING}).\n"
    if not origin or (scope["type"] == "http" and scope["method"] in _SAFE):
        return None
    page = _address(origin.partition("://")[2])
    if page == (name, port) or page[0] in allowed:
        return None
    return f"A page of another host may not use this server ({_SETTING}).\n"


def _address(netloc: str) -> tuple[str, int | None]:
    """Name and port of `host:port`; None for the ports that browsers leave out."""
    try:
        parts = urlsplit(f"//{netloc}")
        return parts.hostname or "", None if parts.port in (80, 443) else parts.port
    except ValueError:
        return "", -1


def _is_loopback(name: str) -> bool:
    """Whether a host name or address is one of this machine alone."""
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
