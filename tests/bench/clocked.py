"""Toys whose time is written down: passes advance a clock, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from paceline import LLM
from paceline.bench import trials
from paceline.runners.base import Output, Span, Want
from paceline.runners.toy import ToyRunner

PASS_S, ROW_S, DRAFT_S = 0.01, 0.00005, 0.0002


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def clocked(patch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[LLM, Clock]]:
    """Yield a toy pair under a clock of its own: a pass of the target takes 10 ms, a row 50 µs, a drafted pass 200 µs.

    The governor goes by the real clock, as ever: what it chooses is the same for all that a test compares.
    """
    clock = Clock()
    patch.setattr(trials, "clock", clock)
    llm = LLM("toy:ngram", **{"draft": "toy:ngram-draft", "sequences": 8, "keep_costs": False} | options)
    target, inner = llm.engine.target, ToyRunner.forward

    def forward(self: ToyRunner, spans: Sequence[Span], want: Want = Want()) -> Output:
        rows = sum(len(span.tokens) for span in spans)
        clock.now += PASS_S + ROW_S * rows if self is target else DRAFT_S
        return inner(self, spans, want)

    patch.setattr(ToyRunner, "forward", forward)
    yield llm, clock
