"""Server-sent events, to a client that may leave at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.server.refusals import encode, refusal

Out = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one object; returns when the client's connection has taken it."""
Produce = Callable[[Out], Awaitable[None]]


class EventStream(Response):
    """What `produce` sends, each object as an event, then [DONE].

    An error after the beginning is sent as OpenAI's error object, without a [DONE] after it. When the client leaves,
    `produce` is cancelled where it stands; `close` is called in any case.
    """

    media_type = "text/event-stream"

    def __init__(self, produce: Produce, close: Callable[[], None]) -> None:
        self._produce, self._close = produce, close
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._stream(send)
                tasks.cancel_scope.cancel()
        finally:
            self._close()

    async def _stream(self, send: Send) -> None:
        turn = anyio.Lock()

        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def out(value: Mapping[str, Any]) -> None:
            async with turn:
                await write(b"data: " + encode(value) + b"\n\n")

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._produce(out)
            await write(b"data: [DONE]\n\n")
        except Exception as error:
            await out(refusal(error).body)
        await write(b"", more=False)


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await gone(receive)
    scope.cancel()


async def gone(receive: Receive) -> None:
    """Return when the client has left; its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
