"""A server that says what a test wants it to: the dashboard's side of every route that it reads, in a few lines."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from paceline.server import pages, refusals
from paceline.server.headers import SecurityHeaders

MIB = 2**20
NOW = 1_900_000_000.0


def fresh() -> dict[str, Any]:
    """A server that has just begun: nothing is known yet."""
    return {
        "version": "0.5.0",
        "model": {"id": "qwen2.5-1.5b-instruct", "runner": "openvino", "weights": "int4", "context": 8192},
        "draft_model": None,
        "uptime_s": 3.0,
        "now": NOW,
        "speculation": {
            "mode": "auto",
            "ceiling": "auto",
            "why": "as the server was started",
            "by": "start",
            "since": NOW,
            "drafters": ["prediction", "suffix", "lookup", "recycle"],
            "max_draft": 16,
        },
        "rate": {"tokens_per_s": 0.0, "plain_tokens_per_s": None, "saved_ms_per_s": 0.0},
        "busy": {"share": 0.0, "useful_share": 0.0, "wasted_share": 0.0},
        "batch": {"running": 0, "waiting": 0, "limit": 8},
        "acceptance": {"length": 0.0, "rate": 0.0, "by_depth": [], "by_drafter": {}},
        "lengths": [],
        "series": [],
        "memory": {
            "weights_bytes": 994 * MIB,
            "kv_bytes": 448 * MIB,
            "kv_used_bytes": 0,
            "draft_bytes": 0,
            "process_bytes": 1702 * MIB,
        },
        "reasons": {},
        "alarms": [],
        "latency": dict.fromkeys(("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms")),
        "audit": {"share": 0.002, "done": 0, "equal": 0, "near_ties": 0, "different": 0},
        "journal": {"file": None, "rows": 0, "dropped": 0, "bytes": 0, "failure": None},
    }


def busy() -> dict[str, Any]:
    """A server at work, with a good share of guesses that hold."""
    state = fresh()
    state |= {
        "draft_model": {"id": "qwen2.5-0.5b-instruct", "weights": "int8"},
        "uptime_s": 93_784.0,
        "rate": {"tokens_per_s": 52.4, "plain_tokens_per_s": 31.7, "saved_ms_per_s": 641.0},
        "busy": {"share": 0.97, "useful_share": 0.8, "wasted_share": 0.17},
        "batch": {"running": 3, "waiting": 1, "limit": 8},
        "reasons": {"nothing_to_draft": 4210, "low_acceptance": 988, "batch_compute_bound": 312, "probing": 97},
        "latency": {"ttft_p50_ms": 182.0, "ttft_p95_ms": 640.0, "tpot_p50_ms": 19.4, "tpot_p95_ms": 33.8},
        "audit": {"share": 0.002, "done": 118, "equal": 117, "near_ties": 1, "different": 0},
        "journal": {"file": "paceline.db", "rows": 61_230, "dropped": 0, "bytes": 9 * MIB, "failure": None},
        "series": [_point(i) for i in range(300)],
        "lengths": [_lengths(i) for i in range(120)],
    }
    state["speculation"]["drafters"].append("model")
    state["memory"] |= {"kv_used_bytes": 131 * MIB, "draft_bytes": 521 * MIB, "process_bytes": 2230 * MIB}
    state["acceptance"] = {
        "length": 2.31,
        "rate": 0.61,
        "by_depth": [9120, 6804, 4511, 3020, 2204, 1380, 902, 411, 120, 36],
        "by_drafter": {
            "model": {"drafted": 21_410, "verified": 19_903, "accepted": 12_870, "draft_ms": 92_310.0},
            "suffix": {"drafted": 9_800, "verified": 6_120, "accepted": 4_022, "draft_ms": 310.0},
            "lookup": {"drafted": 5_214, "verified": 3_980, "accepted": 1_644, "draft_ms": 88.0},
            "recycle": {"drafted": 18_120, "verified": 2_900, "accepted": 610, "draft_ms": 204.0},
        },
    }
    return state


def collapsed() -> dict[str, Any]:
    """All busy, hardly a token: most of the work goes into drafts that are rejected."""
    state = busy()
    state["rate"] = {"tokens_per_s": 2.1, "plain_tokens_per_s": 9.8, "saved_ms_per_s": -790.0}
    state["busy"] = {"share": 1.0, "useful_share": 0.19, "wasted_share": 0.81}
    state["alarms"] = [
        {
            "name": "acceptance_collapse",
            "text": "model: 3 of 160 guesses came true, 64% before, in 5 of the 5 requests of late",
            "since": NOW - 40,
            "runbook": "collapse",
        }
    ]
    return state


def _point(i: int) -> dict[str, Any]:
    plain = 31 + 2 * math.sin(i / 41) - (6 if 140 < i < 190 else 0)
    fast = plain * (1.62 + 0.25 * math.sin(i / 9) * math.sin(i / 31))
    share = 0.95 + 0.05 * math.sin(i / 13)
    return {
        "t": NOW - 299 + i,
        "tokens_per_s": fast,
        "plain_tokens_per_s": plain,
        "busy": share,
        "wasted": 0.17 + 0.08 * math.sin(i / 17),
        "running": 2 + round(1.4 * math.sin(i / 23)),
    }


def _lengths(i: int) -> dict[str, Any]:
    drafted = 3.2 + 1.5 * math.sin(i / 11) + 0.5 * math.sin(i / 3)
    return {
        "t": NOW - 119 + i,
        "drafted_per_step": drafted,
        "accepted_per_step": drafted * (0.55 + 0.1 * math.sin(i / 7)),
    }


def request(**given: Any) -> dict[str, Any]:
    found = {
        "id": "chatcmpl-7f3a92c1d0",
        "at": NOW - 12,
        "key": "team-a",
        "endpoint": "chat",
        "prompt_tokens": 412,
        "completion_tokens": 256,
        "finish_reason": "stop",
        "ttft_ms": 201.3,
        "tokens_per_s": 48.2,
        "drafted": 402,
        "verified": 318,
        "accepted": 171,
        "saved_ms": 3120.0,
        "wasted_ms": 410.0,
        "mode": "auto",
        "reasons": {"nothing_to_draft": 31, "low_acceptance": 4},
    }
    return found | given


Chunk = tuple[list[tuple[str, str | None]], list[tuple[str, str, int]]]
STORY: list[Chunk] = [
    ([("A line", None)], []),
    ([(" of", "model"), (" riders", "model"), (" took", None)], [(" rode", "model", 3)]),
    ([(" turns", "lookup"), (" in the", "suffix"), (" wind.", None)], [(" front", "suffix", 3), (".", "suffix", 4)]),
    ([(" Everyone", None)], [(" They", "recycle", 1)]),
    ([(" went", "recycle"), (" faster", "prediction"), (" for it.", None)], []),
]


@dataclass(slots=True)
class World:
    """What the fake server says, and what it was asked."""

    state: dict[str, Any] = field(default_factory=busy)
    requests: list[dict[str, Any]] = field(default_factory=lambda: [request()])
    chunks: list[Chunk] = field(default_factory=lambda: deepcopy(STORY))
    pause_s: float = 0.0
    """Between two chunks of an answer."""
    key: str | None = None
    admin: bool = True
    is_down: bool = False
    posted: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    def refuse(self, request: Request) -> refusals.Refusal | None:
        if self.is_down:
            return refusals.Refusal(503, "the engine has stopped")
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return refusals.Refusal(401, "this needs an API key")
        if request.url.path.startswith("/admin") and not self.admin:
            return refusals.Refusal(403, "this needs an admin key")
        return None


def app(world: World) -> FastAPI:
    made = FastAPI()
    refusals.install(made)
    made.include_router(pages.router)
    made.add_middleware(SecurityHeaders)

    @made.get("/api/state")
    async def state(request: Request) -> Any:
        return _refused(world, request) or world.state

    @made.get("/api/requests")
    async def requests(request: Request) -> Any:
        return _refused(world, request) or JSONResponse(world.requests)

    @made.post("/admin/speculation")
    async def switch(request: Request) -> Any:
        if refused := _refused(world, request):
            return refused
        asked = await request.json()
        world.posted.append(asked)
        world.state["speculation"] |= {"mode": asked["mode"], "ceiling": asked["mode"], "why": "by the operator"}
        return world.state["speculation"]

    @made.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        if refused := _refused(world, request):
            return refused
        world.asked.append(await request.json())
        return StreamingResponse(_answer(world), media_type="text/event-stream")

    return made


def _refused(world: World, request: Request) -> JSONResponse | None:
    found = world.refuse(request)
    return found and JSONResponse(found.body, found.status)


async def _answer(world: World) -> AsyncIterator[str]:
    sent = False
    try:
        for tokens, rejected in world.chunks:
            yield _event(
                choices=[{"index": 0, "delta": {"content": "".join(text for text, _ in tokens)}}],
                paceline={
                    "tokens": [{"id": 1, "text": text, "source": source} for text, source in tokens],
                    "rejected": [{"text": text, "source": source, "depth": depth} for text, source, depth in rejected],
                },
            )
            await asyncio.sleep(world.pause_s)
        speculation = {"acceptance_length": 2.4, "saved_ms": 84.0, "wasted_ms": 9.0, "reasons": {"nothing_to_draft": 1}}
        yield _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        yield _event(choices=[], usage={"speculation": speculation})
        yield "data: [DONE]\n\n"
        sent = True
    finally:
        world.cancelled += not sent


def _event(**chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


@contextmanager
def served(made: Any) -> Iterator[str]:
    """Serve an application in a thread, at an address that is free."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(made, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
