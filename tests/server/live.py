"""A live server in a thread of this process, on a free port."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from paceline.config import Config
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.server.app import create_app
from paceline.server.hub import Hub
from paceline.server.run import Server, bind, url

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Live:
    """A server that answers; `url` is its root, without a slash at the end."""

    url: str
    hub: Hub
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def llm(self) -> LLM:
        return self.hub.llm

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def call(self, f: Callable[[Engine], T]) -> T:
        """Run something on the engine thread."""
        return self.wait(self.hub.worker.call(f))

    def client(self, **given: Any) -> httpx.Client:
        return httpx.Client(**({"base_url": self.url, "timeout": 60.0} | given))

    def settle(self) -> None:
        """Wait until nothing runs, and check that no slot and no block was lost."""

        async def settled() -> None:
            while not self.hub.worker.idle:
                await asyncio.sleep(0.01)

        self.wait(settled())
        self.call(whole)


def whole(engine: Engine) -> None:
    """Assert that an engine in which nothing runs has all that it began with."""
    engine.pool.check()
    assert engine.idle
    assert engine.pool.available == engine.pool.num_blocks
    assert not engine.scheduler.running and not engine.scheduler.waiting


@contextmanager
def live(llm: LLM, tables: Mapping[str, Any] | None = None) -> Iterator[Live]:
    """Serve a model until the end of the block.

    Args:
        tables: of the configuration; the port is a free one.
    """
    given = dict(tables or {})
    config = Config.of(given | {"server": {"port": 0, "drain_s": 5.0, **given.get("server", {})}})
    app = create_app(llm, config)
    server = Server(app, config.server, note=lambda line: None)
    listener = bind(config.server, bool(app.state.hub.keys))
    loop = asyncio.new_event_loop()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.serve([listener]))
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server does not start"
            time.sleep(0.01)
        yield Live(url(listener), app.state.hub, server, loop)
    finally:
        server.handle_exit(2, None)
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"
