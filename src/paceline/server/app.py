"""The application: its parts, what stands before them, and its life from start to end."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from paceline import __version__
from paceline.config import Config
from paceline.engine.llm import LLM
from paceline.server import admin, api, health, observe, pages, refusals
from paceline.server.access import Answered, Refused
from paceline.server.audit import Auditor
from paceline.server.headers import SameOrigin, SecurityHeaders, is_loopback, names_of
from paceline.server.hub import Hub
from paceline.server.journal import Journal
from paceline.server.keys import Gate, Keyring
from paceline.server.limits import Limits
from paceline.server.metrics import Metrics
from paceline.server.rollback import Rollback
from paceline.server.tracing import Tracing
from paceline.server.worker import Watcher, Worker


def create_app(llm: LLM, config: Config) -> FastAPI:
    """Return the application; it owns the engine from its start to its end.

    Raises:
        OptionError: a key, the ceiling or the journal is wrong.
        MissingExtra: traces are asked for, and OpenTelemetry is not installed.
    """
    trusting = is_loopback(config.server.host)
    keys = Keyring.load(config.keys, config.server.keys_file, os.environ, trusting)
    llm.engine.limit(config.speculation)
    hub = _hub(llm, config, keys)
    app = FastAPI(
        title="paceline",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=_life,
        responses=refusals.RESPONSES,
    )
    app.state.hub = hub
    refusals.install(app)
    for router in (health.router, api.router, observe.router, admin.router, pages.router):
        app.include_router(router)
    _guard(app, config, keys)
    return app


def _hub(llm: LLM, config: Config, keys: Keyring) -> Hub:
    server, model_id = config.server, llm.chosen.target.source.id
    metrics, auditor, rollback = Metrics(model_id), Auditor(config.audit), Rollback(config.targets)
    journal = Journal.open(config.journal) if config.journal.file is not None else None
    watchers: list[Watcher] = [Answered(), metrics, auditor, rollback]
    tracing = Tracing.of(os.environ, model_id)
    watchers += [watcher for watcher in (journal, tracing) if watcher is not None]
    worker = Worker(
        llm,
        queue=server.queue,
        watchers=watchers,
        request_timeout_s=server.request_timeout_s,
        idle_timeout_s=server.idle_timeout_s,
    )
    return Hub(llm, worker, config, keys, metrics, journal, auditor, rollback, time.time(), model_id)


def _guard(app: FastAPI, config: Config, keys: Keyring) -> None:
    """Put what checks a request before the routes; what is added last comes first."""
    server = config.server
    app.add_middleware(Limits, max_bytes=server.max_body_bytes, timeout_s=server.body_timeout_s)
    app.add_middleware(Gate, keys=keys)
    app.add_middleware(SameOrigin, origins=server.cors_origins, names=names_of(server.host, bool(keys)))
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(Refused)
    app.add_middleware(SecurityHeaders)


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    hub: Hub = app.state.hub
    hub.worker.start()
    hub.auditor.start(hub)
    hub.rollback.start(hub)
    try:
        yield
    finally:
        await hub.worker.drain(0)
        await hub.rollback.close()
        await hub.auditor.close()
        await anyio.to_thread.run_sync(hub.worker.stop)
        if hub.journal is not None:
            await anyio.to_thread.run_sync(hub.journal.close)
