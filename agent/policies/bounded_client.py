"""HTTP client of endpoints: a whole answer is bounded in time and size.

`endpoint.py` gives it to openai, which repeats requests by status and headers.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from contextlib import closing
from threading import Thread
from typing import Any

import httpx2  # openai's HTTP client
import openai

EMPTY = "insufficient_quota"
"""OpenAI's code of an empty account; its status 429 is that of a quota."""
_MOST_BYTES = 16_000_000
"""Size of an answer, unpacked; the longest completion is far below."""
_CONNECT_S = 10.0
"""Seconds that a connection may take."""
_ONCE = {"x-should-retry": "false"}
"""Header that openai obeys."""


class BoundedClient(openai.DefaultHttpxClient):
    """HTTP client that bounds a whole answer in time and size.

    httpx bounds the wait for each part only: headers or a body that trickle would never end.

    Args:
        answer_s: seconds from the request to the end of its answer.
    """

    def __init__(self, answer_s: float) -> None:
        times = httpx2.Timeout(answer_s + 1.0, connect=min(answer_s, _CONNECT_S))
        # A redirect would send the question and the documents to another host.
        super().__init__(timeout=times, follow_redirects=False)
        self._answer_s = answer_s

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        """The answer, completely read; status 504 if it does not end, and openai asks once.

        Raises:
            openai.APIConnectionError: it is too long.
        """
        answer: Future[httpx2.Response] = Future()

        def read() -> None:
            try:
                answer.set_result(self._read(request, kwargs))
            except BaseException as error:
                answer.set_exception(error)

        # Nothing can interrupt the client while it reads headers.
        Thread(target=read, name="answer", daemon=True).start()
        if not wait([answer], self._answer_s).done:
            fault = f"its answer did not end within {self._answer_s:g} s"
            return httpx2.Response(504, headers=_ONCE, text=fault, request=request)
        return answer.result()

    def _read(self, request: httpx2.Request, kwargs: dict[str, Any]) -> httpx2.Response:
        deadline = time.monotonic() + self._answer_s + 1.0  # nobody waits by then
        response = super().send(request, **(kwargs | {"stream": True}))
        body = bytearray()
        with closing(response):
            for part in response.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES or time.monotonic() > deadline:
                    fault = f"its answer has more than {_MOST_BYTES // 1_000_000} MB"
                    raise openai.APIConnectionError(message=fault, request=request)
        headers = response.headers.copy()
        for name in ("content-encoding", "transfer-encoding", "content-length"):
            headers.pop(name, None)
        if EMPTY.encode() in body:
            headers |= _ONCE
        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(body), request=request
        )
