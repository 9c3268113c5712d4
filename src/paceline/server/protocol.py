"""Connections that do not hurry: a head that never ends, a reader that takes nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 1 << 16
"""Bytes of a request's line and headers."""
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the timers that it lacks.

    Args:
        header_timeout_s: from the first byte of a head, or the begin of a connection, to the end of the head.
        stall_timeout_s: how long a full buffer may wait for a reader.
    """

    def __init__(self, *args: Any, header_timeout_s: float, stall_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout_s, self._stall_timeout_s = header_timeout_s, stall_timeout_s
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            self._head_bytes = 0
            return
        self._watch_head()
        self._head_bytes += len(data)
        if self._head_bytes > LONGEST_HEAD and not self._is_answering:
            self._hang_up(TOO_LONG)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unwatch_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._unwatch_stall()
        super().resume_writing()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        if self._is_answering:  # stray bytes behind a request do not end its answer
            self._watch_head()
        else:
            self._hang_up(TOO_SLOW)

    def _hang_up(self, why: bytes) -> None:
        self._unwatch()
        if not self.transport.is_closing():
            self.transport.write(why)
            self.transport.close()

    def _unwatch(self) -> None:
        self._unwatch_head()
        self._unwatch_stall()

    def _unwatch_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _unwatch_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def guarded(header_timeout_s: float, stall_timeout_s: float) -> Any:
    """Return what uvicorn takes for a protocol class."""
    return partial(GuardedProtocol, header_timeout_s=header_timeout_s, stall_timeout_s=stall_timeout_s)
