"""A server that speaks each dialect: what it says of its speculation is told to it beforehand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fake:
    pieces: Sequence[str] = ("one", " two", " three", " four")
    """Of each answer."""
    tokens: int = 8
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] | None = None
    owner: str = "someone"
    pages: list[str] = field(default_factory=list)
    """What /metrics says, one reading after the other; the last one stays. None: there is none."""
    tail: bytes = b"data: [DONE]\n\n"
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self) -> Iterator[bytes]:
        for piece in self.pieces:
            yield event({"choices": [{"delta": {"content": piece}}]})
        end: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": self.tokens, **self.usage}}
        if self.timings is not None:
            end["timings"] = self.timings
        yield event(end)
        yield self.tail


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@contextmanager
def served(fake: Fake) -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.keys.append(self.headers.get("Authorization"))
            if self.path == "/v1/models":
                self.say(200, json.dumps({"data": [{"id": "fake", "owned_by": fake.owner}]}).encode())
            elif self.path == "/metrics" and fake.pages:
                self.say(200, (fake.pages.pop(0) if len(fake.pages) > 1 else fake.pages[0]).encode())
            else:
                self.say(404, b"")

        def do_POST(self) -> None:
            fake.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if fake.status != 200:
                self.say(fake.status, json.dumps({"error": {"message": "not today"}}).encode())
            else:
                self.say(200, b"".join(fake.answer()))

        def say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
