"""What a client is told when it does not get what it asked for: OpenAI's error object."""

from __future__ import annotations

import difflib
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from paceline.errors import OptionError, PacelineError, RequestError
from paceline.server.schemas import PARAMETERS

log = logging.getLogger(__name__)

Kind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "overloaded_error",
    "server_error",
]
_KINDS: Mapping[int, Kind] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPTION = re.compile(r"(\w+) (?:is|are|has) ")
_TAG = re.compile(r"(?:list|dict|literal|function|nullable)\W.*|[A-Z]\w*|str|int|float|bool")
"""Of a location in a body, the parts that name a branch of a type and not a field."""
MOST_TOLD = 3
"""Mistakes of one body that are named; the rest are counted."""
LONGEST = 500
"""Characters of a message: what was given may be long."""


class ErrorObject(BaseModel):
    message: str
    type: Kind
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorObject


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "What is wrong with the request, or with its key"},
    "5XX": {"model": ErrorBody, "description": "The server cannot answer at present, or has failed"},
}
"""What the OpenAPI document has of all routes."""


class Refusal(PacelineError):
    """An answer that is not one: a status and OpenAI's error object.

    Args:
        kind: OpenAI's `type`; None goes by the status.
        retry_after: seconds after which asking again may help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: Kind | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after
        self.type: Kind = kind or _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}


def refusal(error: BaseException) -> Refusal:
    """Return what a client is told of an error; of an unexpected one an id, under which the log has the rest."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestError | OptionError):
        message = _cut(str(error))
        option = _OPTION.match(message)
        return Refusal(400, message, param=option[1] if option and option[1] in PARAMETERS else None)
    if isinstance(error, RequestValidationError):
        return invalid(error.errors())
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, _cut(str(error.detail)))
    name = secrets.token_hex(4)
    log.error("error %s", name, exc_info=error)
    return Refusal(500, f"something went wrong here; the server's log has it under error {name}")


def invalid(errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """Return the refusal of a body that does not fit: its unknown parameters by name, or its first mistakes."""
    unknown = sorted({_place(error) for error in errors if error["type"] == "extra_forbidden"})
    if unknown:
        return Refusal(400, _cut(_unknown(unknown)), param=unknown[0], code="unknown_parameter")
    mistakes = _mistakes(errors)
    told = "; ".join(f"{place}: {said}" if place else said for place, said in list(mistakes.items())[:MOST_TOLD])
    more = f"; and {len(mistakes) - MOST_TOLD} more" if len(mistakes) > MOST_TOLD else ""
    return Refusal(400, _cut(told) + more, param=next(iter(mistakes)) or None, code="invalid_value")


def render(refused: Refusal) -> Response:
    return Response(encode(refused.body), refused.status, refused.headers, "application/json")


def encode(value: Any) -> bytes:
    """Return JSON in UTF-8; half a surrogate pair, which a client may have sent, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def install(app: FastAPI) -> None:
    """Have every error answered by OpenAI's error object."""

    async def answer(request: Request, error: Exception) -> Response:
        return render(refusal(error))

    for kind in (PacelineError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _mistakes(errors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what is wrong by place; of several branches of a type that is told which fitted longest."""
    furthest: dict[str, tuple[tuple[int, ...], str, str]] = {}
    for error in errors:
        place = _place(error)
        head = place.partition(".")[0]
        reached = (len(error["loc"]), *(part for part in error["loc"] if isinstance(part, int)))
        if reached > furthest.get(head, ((), "", ""))[0]:
            furthest[head] = (reached, place, _said(error))
    return {place: said for _, place, said in furthest.values()}


def _place(error: Mapping[str, Any]) -> str:
    """Return where a mistake is, as a path such as messages.0.content."""
    first, *rest = error["loc"] or ("",)
    parts = rest if first == "body" else [first, *rest]
    if error["type"] == "json_invalid":
        return ""
    return ".".join(str(part) for part in parts if isinstance(part, int) or not _TAG.fullmatch(part))


def _said(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON ({error.get('ctx', {}).get('error', 'it cannot be read')})"
    if error["type"] == "missing" and not _place(error):
        return "there is no body; send a JSON object, with Content-Type: application/json"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _unknown(names: Sequence[str]) -> str:
    hints = [_hint(name) for name in names[:MOST_TOLD]]
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return f"unknown parameter{'s' if len(names) > 1 else ''} {', '.join(hints)}{more}; leave it out, or see the docs"


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name.rpartition(".")[2][:64], PARAMETERS, 1)
    return f"'{_short(name)}'" + (f" (did you mean '{near[0]}'?)" if near else "")


def _short(text: str) -> str:
    return text if len(text) <= 64 else text[:64] + "…"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " …"
