"""A stand-in endpoint for `rlm benchmark oolong`, which reads most messages correctly.

It speaks OpenAI's chat completions. A root gets the scripted expert's code. A reader gets the
topics of its messages, the share `--accuracy` of them right. A plain prompt gets an answer counted
with the same errors. So its figures show the harness, not a model.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks.oolong.contexts import CHARS_PER_TOKEN
from tasks.oolong.expert import answer_plainly, reply, shows_context

_CHILDREN = 64


class OolongStandIn(ThreadingHTTPServer):
    """The server.

    Args:
        port: 0 for a free one.
        accuracy: share of messages whose topic it knows.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, accuracy: float) -> None:
        super().__init__(("127.0.0.1", port), OolongHandler)
        self.accuracy = accuracy

    @property
    def url(self) -> str:
        """Address, with its path."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, messages: list[dict[str, str]]) -> str:
        """Text of the next turn of a conversation."""
        text = messages[1]["content"]
        if text == "Say yes.":  # the client's test question
            return "yes"
        if shows_context(text):
            return answer_plainly(text, self.accuracy)
        return reply(text, _CHILDREN, self.accuracy)


class OolongHandler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: OolongStandIn

    def do_POST(self) -> None:
        """Answer a chat completion; 400 where the question is not one of the benchmark."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, answer = 200, self._completion(body)
        if "error" in answer:
            status = 400
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            text = self.server.answer(body["messages"])
        except ValueError as error:
            return {"error": {"message": str(error)}}
        read = sum(len(message["content"]) for message in body["messages"]) // CHARS_PER_TOKEN
        written = len(text) // CHARS_PER_TOKEN + 1
        message = {"role": "assistant", "content": text}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
            },
        }


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8377, help="port on 127.0.0.1")
    parser.add_argument("--accuracy", type=float, default=0.9, help="share of messages read right")
    options = parser.parse_args()
    with OolongStandIn(options.port, options.accuracy) as server:
        print(f"{server.url}; stop with Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
