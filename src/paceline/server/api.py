"""The routes of OpenAI's API."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from paceline import __version__
from paceline.core.types import Completion
from paceline.engine.llm import LLM
from paceline.server.answer import Answer, Ticket
from paceline.server.hub import Hub
from paceline.server.hub import hub as hub_of
from paceline.server.prepare import Job, Preparer, unknown_model
from paceline.server.refusals import Refusal, encode
from paceline.server.replies import Choice, Head, choices, objects, usage
from paceline.server.schemas import ChatBody, CompletionBody
from paceline.server.sse import EventStream, Out, gone
from paceline.server.worker import SHUTTING_DOWN

log = logging.getLogger(__name__)
router = APIRouter()

GONE = "the client has gone"
_KINDS = {"chat": ("chatcmpl", "chat.completion"), "completions": ("cmpl", "text_completion")}
"""Of each endpoint what its ids begin with, and what its objects are called."""
_STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""What the OpenAPI document has beside JSON."""


@router.post("/v1/chat/completions", responses=_STREAMS)
async def chat_completions(request: Request, body: ChatBody) -> Response:
    hub = hub_of(request)
    caller = hub.keys.caller(request)
    job = await run_sync(_preparer(hub).chat, body, caller.name)
    return await _respond(request, hub, job, "chat", caller.name)


@router.post("/v1/completions", responses=_STREAMS)
async def completions(request: Request, body: CompletionBody) -> Response:
    hub = hub_of(request)
    caller = hub.keys.caller(request)
    job = await run_sync(_preparer(hub).completion, body, caller.name)
    return await _respond(request, hub, job, "completions", caller.name)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(hub_of(request))]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    hub = hub_of(request)
    if name != hub.model_id:
        raise unknown_model(name, hub.model_id)
    return _model(hub)


def _model(hub: Hub) -> dict[str, Any]:
    return {
        "id": hub.model_id,
        "object": "model",
        "created": int(hub.started),
        "owned_by": "paceline",
        "max_model_len": hub.llm.engine.context,
    }


def _preparer(hub: Hub) -> Preparer:
    return Preparer(hub.llm, hub.config.server, hub.model_id)


@lru_cache(maxsize=4)
def fingerprint(llm: LLM) -> str:
    """Return what changes where the same request and seed may give another text."""
    options = llm.chosen.options
    named = (__version__, llm.chosen.runner, llm.chosen.weights, llm.chosen.head, options.kv, options.numerics)
    return "fp_" + blake2b(repr((options.model, named)).encode(), digest_size=6).hexdigest()


async def _respond(request: Request, hub: Hub, job: Job, endpoint: str, key: str) -> Response:
    prefix, kind = _KINDS[endpoint]
    head = Head(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), hub.model_id, fingerprint(hub.llm))
    made = choices(job, hub.llm.tokenizer, endpoint == "chat", head)
    answers = await _open(hub, job, Ticket(head.id, key, endpoint, job.streams))
    if job.streams:
        chunk = f"{kind}.chunk" if endpoint == "chat" else kind
        return EventStream(partial(_stream, job, head, chunk, made, answers), partial(_cancel, answers))
    try:
        await _collect(request, made, answers)
    finally:
        _cancel(answers)
    done = [_completed(answer) for answer in answers]
    told = head.object(kind, [choice.whole() for choice in made], usage=usage(done, job.choices), seed=job.seed)
    return Response(encode(told), media_type="application/json")


async def _open(hub: Hub, job: Job, ticket: Ticket) -> list[Answer]:
    """Line all requests of a job up, or none; each has an id of its own."""
    answers: list[Answer] = []
    try:
        for i, request in enumerate(job.requests):
            name = f"{ticket.id}-{i}" if i else ticket.id
            answers.append(await hub.worker.open(request, Ticket(name, ticket.key, ticket.endpoint, ticket.streaming)))
    except BaseException:
        _cancel(answers)
        raise
    return answers


def _cancel(answers: Sequence[Answer]) -> None:
    """End what still runs, for nobody reads it any more."""
    for answer in answers:
        answer.cancel(GONE)


async def _collect(request: Request, made: Sequence[Choice], answers: Sequence[Answer]) -> None:
    """Read all answers to their ends; when the client leaves they end at once."""

    async def watch() -> None:
        await gone(request.receive)
        _cancel(answers)

    async def read(choice: Choice, answer: Answer) -> None:
        async for event in answer:
            choice.push(event)

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        async with anyio.create_task_group() as reading:
            for choice, answer in zip(made, answers, strict=True):
                reading.start_soon(read, choice, answer)
        watching.cancel_scope.cancel()


async def _stream(job: Job, head: Head, kind: str, made: Sequence[Choice], answers: Sequence[Answer], out: Out) -> None:
    """Send all answers as they come, and at the end what they took.

    Raises:
        Refusal: one of them failed; the others end with it.
    """
    done: dict[int, Completion] = {}
    failed: list[Refusal] = []

    async def read(index: int) -> None:
        async for event in answers[index]:
            if event.finish_reason in ("error", "abort"):
                break
            for value in objects(head, kind, made[index].push(event), job.shows_usage):
                await out(value)
        try:
            done[index] = _completed(answers[index])
        except Refusal as error:
            failed.append(error)
            reading.cancel_scope.cancel()

    async with anyio.create_task_group() as reading:
        for index in range(len(answers)):
            reading.start_soon(read, index)
    if failed:
        raise failed[0]
    if job.shows_usage:
        counts = usage([done[index] for index in range(len(answers))], job.choices)
        await out(head.object(kind, [], usage=counts, seed=job.seed))


def _completed(answer: Answer) -> Completion:
    """Return an answer's completion; raises Refusal where it is none."""
    found = answer.completion
    if found.finish_reason == "error":
        raise failed(answer.ticket, found.error or "")
    if found.finish_reason == "abort":
        why = found.error or "the request was cancelled"
        raise Refusal(503 if why == SHUTTING_DOWN else 504, why, code="cancelled")
    return found


def failed(ticket: Ticket, error: str) -> Refusal:
    """Return what a client is told of an error in the engine: what it can do about it, and nothing of the inside."""
    kind, _, message = error.partition(": ")
    if kind == "RequestError":
        return Refusal(400, message)
    log.error("request %s failed in the engine: %s", ticket.id, error)
    return Refusal(500, f"the request failed in the engine; the server's log has it under {ticket.id}")
