"""What a request body may be: so large, so soon there, so deep."""

from __future__ import annotations

import asyncio
import re

import anyio.to_thread
import numpy as np
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.refusals import Refusal, render

DEEPEST = 64
"""Objects and lists within each other that a body may have."""
LARGE = 1 << 16
"""Bytes from which on a body is looked at beside the event loop."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""Also one that does not end, so that no byte is looked at twice."""
_OPENING, _CLOSING = np.frombuffer(b"[{", np.uint8), np.frombuffer(b"]}", np.uint8)


class Limits:
    """Reads each body whole before anything is done with it, and hands it on.

    Args:
        timeout_s: from the head of the request to the end of its body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._body(Headers(scope=scope).get("content-length"), receive)
            if body is None:
                return
            await check_depth(body)
        except Refusal as refused:
            response = render(refused)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    async def _body(self, announced: str | None, receive: Receive) -> bytes | None:
        """Return the body, None where the client has gone before its end."""
        if announced is not None and (not announced.isdecimal() or int(announced[:20]) > self._max_bytes):
            raise self._too_large()
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_bytes:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, f"the body was not there after {self._timeout_s:g} s", code="body_timeout") from None

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._max_bytes} bytes", code="body_too_large")


async def check_depth(body: bytes) -> None:
    """Raise Refusal where a body nests deeper than any request has to."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    found = depth(body) if len(body) < LARGE else await anyio.to_thread.run_sync(depth, body)
    if found > DEEPEST:
        raise Refusal(400, f"the body nests {found} levels deep; allowed: {DEEPEST}", code="body_too_deep")


def depth(body: bytes) -> int:
    """Return how many objects and lists are open at a time, at most, in what may or may not be JSON."""
    marks = np.frombuffer(_STRING.sub(b"", body), np.uint8)
    steps = np.isin(marks, _OPENING).astype(np.int64) - np.isin(marks, _CLOSING)
    return int(np.cumsum(steps).max(initial=0))


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what hands a body out once, and then what comes after it: the news that the client has gone."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return whole.pop() if whole else await receive()

    return receiving
