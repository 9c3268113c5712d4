"""Requests put to a live server's worker, without the API before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from paceline.core.types import Completion, Request, SamplingParams, SpeculationParams
from paceline.server.answer import Ticket

from .live import Live

ALWAYS = SpeculationParams("always", 4)
_numbers = count()


def ask(
    server: Live,
    prompt: str | Sequence[int] = "abcabcabc",
    tokens: int = 24,
    speculation: SpeculationParams = ALWAYS,
    **sampling,
) -> Completion:
    """Have a request answered; by default one that speculates in every step."""
    return server.wait(answered(server, prompt, tokens, speculation, **sampling))


async def answered(
    server: Live,
    prompt: str | Sequence[int] = "abcabcabc",
    tokens: int = 24,
    speculation: SpeculationParams = ALWAYS,
    **sampling,
) -> Completion:
    given = SamplingParams(max_tokens=tokens, **({"ignore_eos": True} | sampling))
    request = Request(tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt), given, speculation)
    answer = await server.hub.worker.open(request, Ticket(f"test-{next(_numbers)}", endpoint="completions"))
    async for _ in answer:
        pass
    return answer.completion


def wait_for(found: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
