"""What can be read of a running server: /metrics, /api/state, /api/requests."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from paceline.server.hub import Hub, hub
from paceline.server.metrics import RECENT
from paceline.server.state import state

router = APIRouter(tags=["observe"])
Whole = Annotated[Hub, Depends(hub)]
SHOWN = (
    "id",
    "at",
    "key",
    "endpoint",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "ttft_ms",
    "tokens_per_s",
    "drafted",
    "verified",
    "accepted",
    "saved_ms",
    "wasted_ms",
    "mode",
    "reasons",
)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, hub: Whole) -> Response:
    """Counters, gauges and histograms, in Prometheus' text format or OpenMetrics."""
    body, content_type = hub.metrics.render(hub, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


@router.get("/api/state")
async def whole(hub: Whole) -> dict[str, Any]:
    """How things stand, as one object; the dashboard reads it once a second."""
    return state(hub)


@router.get("/api/requests")
async def requests(hub: Whole, limit: Annotated[int, Query(ge=1, le=RECENT)] = 100) -> list[dict[str, Any]]:
    """The newest finished requests first, in numbers; nothing of what was said."""
    newest = list(hub.metrics.recent)[-limit:]
    found = [row.as_json() for row in reversed(newest)]
    return [{name: row[name] for name in SHOWN} for row in found]
