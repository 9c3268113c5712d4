"""What an operator may do while it runs: switch speculation, and have the engine checked."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from paceline.core.types import Mode, SpeculationParams
from paceline.engine.engine import Engine
from paceline.server.hub import Hub, hub
from paceline.server.state import speculation

router = APIRouter(prefix="/admin", tags=["admin"])
Whole = Annotated[Hub, Depends(hub)]


class Ceiling(BaseModel):
    """What speculation may be at most, for all requests, those that run included."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode
    max_draft_tokens: int | None = Field(None, ge=0, le=64)
    drafters: list[str] | None = Field(None, max_length=64)


@router.get("/speculation")
async def look(hub: Whole) -> dict[str, Any]:
    """What is allowed at present, since when and why, and what was before; the newest change first."""
    history = [change.as_json() for change in reversed(hub.rollback.switch.history)]
    return {**speculation(hub), "history": history}


@router.post("/speculation")
async def switch(ceiling: Ceiling, request: Request, hub: Whole) -> dict[str, Any]:
    """Set what is allowed; no step goes by what was before when this answers. Texts stay as they are."""
    drafters = None if ceiling.drafters is None else tuple(ceiling.drafters)
    caller = hub.keys.caller(request)
    params = SpeculationParams(ceiling.mode, ceiling.max_draft_tokens, drafters)
    await hub.rollback.operate(params, f"key {caller.name!r}" if caller.name else "the operator")
    return await look(hub)


@router.get("/check")
async def check(hub: Whole) -> dict[str, Any]:
    """Check the engine's books, between two steps: every block is free, or used by what runs."""
    return await hub.worker.call(_checked)


def _checked(engine: Engine) -> dict[str, Any]:
    try:
        engine.pool.check()
    except AssertionError as error:
        return {"ok": False, "error": str(error) or "a count of the KV pool is wrong", **_sizes(engine)}
    return {"ok": True, "error": None, **_sizes(engine)}


def _sizes(engine: Engine) -> dict[str, Any]:
    return {
        "running": len(engine.scheduler.running),
        "waiting": len(engine.scheduler.waiting),
        "blocks": engine.pool.num_blocks,
        "free_blocks": engine.pool.available,
    }
