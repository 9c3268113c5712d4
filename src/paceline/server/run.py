"""The process: uvicorn around the application, and what signals do to it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from paceline.config import ServerConfig
from paceline.errors import OptionError
from paceline.server.headers import is_loopback
from paceline.server.hub import Hub
from paceline.server.keys import VARIABLE
from paceline.server.protocol import guarded

LAST_S = 5
"""For connections to close after the last answer."""


class Server(uvicorn.Server):
    """Drains at the first signal, while it goes on to tell newcomers so; a second one cancels what is left.

    Args:
        note: is told what there is to wait for.
    """

    def __init__(self, app: FastAPI, config: ServerConfig, note: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=guarded(config.header_timeout_s, config.idle_timeout_s),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=config.connections,
                timeout_graceful_shutdown=LAST_S,
            )
        )
        hub: Hub = app.state.hub
        self._worker, self._model_id = hub.worker, hub.model_id
        self._drain_s, self._note = config.drain_s, note
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.heard: list[int] = []
        """The signals, in order."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            self._note(f"{self._model_id} answers at {url(listener)}; Ctrl-C ends it")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.heard.append(sig)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, 0.0 if len(self.heard) > 1 else self._drain_s)

    @property
    def interrupted(self) -> bool:
        return bool(self.heard) and self.heard[0] == signal.SIGINT

    def _end(self, seconds: float) -> None:
        task = asyncio.ensure_future(self._drain(seconds))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _drain(self, seconds: float) -> None:
        if seconds and not self._worker.idle:
            self._note(f"finishing what runs, for up to {seconds:g} s; once more cancels it")
        await self._worker.drain(seconds)
        self.should_exit = True


def bind(config: ServerConfig, has_keys: bool) -> socket.socket:
    """Return a socket that has its address, and does not listen yet.

    Raises:
        OptionError: the address cannot be had, or is open to a network and nothing guards it.
    """
    if not (is_loopback(config.host) or has_keys or config.insecure):
        raise OptionError(
            f"host is {config.host!r}, which a network reaches, and there is no API key; "
            f"set {VARIABLE} or --api-key-file, or give --insecure if everyone may use this server"
        )
    try:
        given = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(given)  # IPv4 first: it is what localhost usually stands for
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise OptionError(
            f"host {config.host!r} and port {config.port} cannot be had ({error.strerror}); give others"
        ) from None
    return found


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
