"""One line for each request, of numbers and names alone: no prompt, no text, no key."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core.types import Completion, Request
from paceline.governor.base import StepReport
from paceline.server.answer import Ticket
from paceline.server.refusals import refusal, render

log = logging.getLogger(__name__)
NUMBERS = "numbers"
"""Attribute of a log record that has its numbers by name."""


def say(level: int, what: str, numbers: Mapping[str, Any]) -> None:
    shown = " ".join(f"{name}={_short(value)}" for name, value in numbers.items())
    log.log(level, "%s %s", what, shown, extra={NUMBERS: {"what": what, **numbers}})


class Answered:
    """A watcher: a line for each request that has been in the engine, or waited for it."""

    def stepped(self, step: StepReport) -> None:
        pass

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        counts, times = completion.speculation, completion.timings
        numbers = {
            "id": ticket.id,
            "key": ticket.key,
            "streaming": ticket.streaming,
            "finish_reason": completion.finish_reason,
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": len(completion.token_ids),
            "ttft_ms": times.time_to_first_token_ms,
            "decode_ms": times.decode_ms,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "saved_ms": counts.saved_ms,
        }
        say(logging.DEBUG if ticket.background else logging.INFO, ticket.endpoint or "request", numbers)


class Refused:
    """A line for each request that got no answer; what nobody expected is answered here, and never shown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            answer = render(refusal(error))  # which logs it
            if status:
                raise
            await answer(scope, receive, sending)
        if status >= 400:
            caller = scope.get("paceline.caller")
            numbers = {"status": status, "method": scope["method"], "ms": (time.monotonic() - begin) * 1e3}
            say(logging.INFO, "refused", numbers | {"key": caller.name if caller else ""})


class JsonLines(logging.Formatter):
    """A record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        numbers = getattr(record, NUMBERS, None)
        found: dict[str, Any] = {"at": round(record.created, 3), "level": record.levelname, "from": record.name}
        found |= numbers if numbers is not None else {"message": record.getMessage()}
        if record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


class Short(logging.Formatter):
    """For people: the time, what it is if it is more than information, and the line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line if record.levelno <= logging.INFO else f"{record.levelname}: {line}"


def _short(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value) or "-"
