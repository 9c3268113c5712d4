"""Signs of life, open to all: nothing of what the server does is in them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from paceline import __version__
from paceline.server.hub import hub

router = APIRouter(tags=["health"], responses={"5XX": {"description": "It is not so; the status says why"}})


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """Whether the engine runs: 503 when it has failed, and the process should be started anew."""
    failure = hub(request).worker.snapshot.failure
    return _state("failed" if failure else "ok", bool(failure))


@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """Whether requests are taken: 503 while it shuts down, and when it has failed."""
    worker = hub(request).worker
    if worker.snapshot.failure:
        return _state("failed", True)
    return _state("draining" if worker.draining else "ready", worker.draining)


def _state(status: str, down: bool) -> JSONResponse:
    found: dict[str, Any] = {"status": status, "version": __version__}
    return JSONResponse(found, 503 if down else 200, {"Retry-After": "5"} if down else None)
