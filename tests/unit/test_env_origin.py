"""Headers Host and Origin: pages of other hosts do not reach a local server."""

from typing import Any

import pytest

from env.server.door.origin import foreign

LOCAL, SPACE = "127.0.0.1", "10.1.2.3"


def request(
    server: str | None, host: str, origin: str | None, kind: str = "websocket", method: str = "POST"
) -> dict[str, Any]:
    headers = [(b"host", host.encode())] if host else []
    headers += [(b"origin", origin.encode())] if origin else []
    place = (server, 8000) if server else None
    return {"type": kind, "method": method, "headers": headers, "server": place}


OWN = [
    (LOCAL, "127.0.0.1:8000", None, ()),
    (LOCAL, "localhost:8000", "http://localhost:8000", ()),
    (LOCAL, "LOCALHOST:8000", "http://localhost:8000", ()),
    ("::1", "[::1]:8000", "http://[::1]:8000", ()),
    ("::ffff:127.0.0.1", "127.0.0.1", "http://127.0.0.1", ()),
    (LOCAL, "", None, ()),  # no browser
    (SPACE, "ada-rlm.hf.space", "https://ada-rlm.hf.space", ()),
    (SPACE, "ada-rlm.hf.space:443", "https://ada-rlm.hf.space", ()),
    (SPACE, "anything.example", None, ()),
    (LOCAL, "rlm.example", "https://rlm.example", {"rlm.example"}),
    (LOCAL, "localhost", "https://rlm.example", {"rlm.example"}),
    (SPACE, "localhost", None, {"rlm.example"}),
    ("172.17.0.2", "127.0.0.1:8000", "http://127.0.0.1:8000", {"localhost"}),
    (None, "whatever", None, ()),  # a test harness has no address
]
FOREIGN = [
    (LOCAL, "127.0.0.1:8000", "https://evil.example", ()),
    (LOCAL, "127.0.0.1:8000", "null", ()),
    (LOCAL, "127.0.0.1:8000", "http://127.0.0.1:3000", ()),
    (LOCAL, "127.0.0.1:8000", "http://127.0.0.1.evil.example:8000", ()),
    (LOCAL, "evil.example:8000", None, ()),  # DNS rebinding
    ("::ffff:127.0.0.1", "evil.example", None, ()),
    (LOCAL, "localhost.evil.example", None, ()),
    (LOCAL, "127.0.0.1:x", None, ()),
    (SPACE, "ada-rlm.hf.space", "https://eve-rlm.hf.space", ()),
    (SPACE, "evil.example", None, {"rlm.example"}),
    ("172.17.0.2", "evil.example:8000", None, {"localhost"}),  # a container of this machine
    (SPACE, "rlm.example", "https://evil.example", {"rlm.example"}),
]


@pytest.mark.parametrize(
    ("of", "refused"), [*((of, False) for of in OWN), *((of, True) for of in FOREIGN)]
)
def test_own_pages_and_programs_pass_and_others_are_refused(of, refused):
    server, host, origin, allowed = of
    assert (foreign(request(server, host, origin), allowed) is not None) == refused


def test_a_foreign_page_may_read_but_not_post() -> None:
    def refused(method: str) -> bool:
        page = request(SPACE, "a.example", "https://b.example", kind="http", method=method)
        return foreign(page, ()) is not None

    assert [refused(method) for method in ("GET", "OPTIONS", "POST")] == [False, False, True]
