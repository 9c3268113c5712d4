"""Turns made by hand, whose sums are known."""

from __future__ import annotations

import pytest

from paceline import SamplingParams
from paceline.bench.result import ALL
from paceline.bench.summary import STRETCHES, Seen, Summary, noise, pace
from paceline.bench.trials import Ask, Step, Turn
from paceline.core.types import Completion, SpeculationReport, Timings

ASKS = [Ask(category, (1,), SamplingParams(8)) for category in ("a", "a", "b")]


def done(tokens: int, ttft: float, decode: float, **counts: float) -> Completion:
    report = SpeculationReport(**{"steps": tokens, "verify_ms": decode, **counts})  # type: ignore[arg-type]
    timings = Timings(ttft, decode, ttft)
    return Completion(0, "", tuple(range(tokens)), "length", 1, 1, report, timings)


def turn(mode: str, number: int, a_token_s: float, tokens: int = 5, waited: float = 0.0, **counts: float) -> Turn:
    """One prompt: a step that reads it, and steps that decode."""
    steps = [Step(0.1, 0.1, 1, 3, 1, 1)]
    for i in range(1, tokens):
        steps.append(Step(0.1 + i * a_token_s, a_token_s, 1, 0, 2, 1))
    answer = done(tokens, 100.0, (tokens - 1) * a_token_s * 1e3, **counts)
    return Turn(mode, 1, (number,), (answer,), (waited,), tuple(steps))


def both(fast: float = 0.005) -> list[Seen]:
    turns = [turn(mode, n, fast if mode == "auto" else 0.01) for n in (0, 1, 2) for mode in ("plain", "auto") * 2]
    return [Seen(each, 1000 + i) for i, each in enumerate(turns)]


def test_what_a_cell_sums_up() -> None:
    seen = [Seen(turn("auto", 0, 0.01, accepted=6, verified=8, drafted=10, wasted_ms=4.0, steps=2), 10)]
    seen += [Seen(turn("auto", 1, 0.02, waited=0.05), 30)]
    [a, whole] = Summary("w", ASKS, "plain").cells(seen)
    assert (a.category, whole.category, whole.prompts, whole.tokens) == ("a", ALL, 2, 10)
    assert whole.tokens_per_s == pytest.approx(8 / (4 * 0.01 + 4 * 0.02)), "the step that read the prompt apart"
    assert whole.tpot_ms.p50 == pytest.approx(15.0) and whole.ttft_ms.p95 == pytest.approx(150.0, rel=0.02)
    assert whole.acceptance_length == pytest.approx((6 + 7) / 7) and whole.acceptance_rate == pytest.approx(6 / 8)
    assert whole.coverage == pytest.approx(10 / 13) and whole.peak_memory_bytes == 30
    assert whole.wasted_share == pytest.approx(4.0 / (40 + 80)) and whole.busy_share == pytest.approx(1.0)


def test_ratios_by_category_and_over_all() -> None:
    found = {c.category: c for c in Summary("w", ASKS, "plain").comparisons(both())}
    assert found.keys() == {"a", "b", ALL}
    for each in found.values():
        assert (each.ratio, each.low, each.high) == pytest.approx((2.0, 2.0, 2.0)) and each.verdict == "faster"


def test_a_category_must_be_beyond_the_noise() -> None:
    seen = both(fast=0.0098)
    seen += [Seen(turn("off", n, 0.01 * (1 + 0.03 * (n - 1))), 1) for n in (0, 1, 2) for _ in range(2)]
    found = Summary("w", ASKS, "plain").comparisons(seen)
    by = {(c.mode, c.category): c.verdict for c in found}
    assert noise(found)["1"] > 0.02
    assert by["auto", "a"] == by["auto", "b"] == "same" and by["auto", ALL] == "faster"


def test_requests_that_come_by_themselves_are_compared_whole() -> None:
    turns = [turn("plain", 0, 0.01, waited=0.2), turn("auto", 0, 0.01, waited=0.0)]
    summary = Summary("w", ASKS, "plain", open_loop=True)
    [found] = summary.comparisons([Seen(each, 1) for each in turns])
    latency = 0.1 + 4 * 0.01
    assert found.category == ALL and found.ratio == pytest.approx((latency + 0.2) / latency)


def test_paces_add_up_to_the_tokens() -> None:
    turns = [turn("auto", n, 0.01) for n in (0, 1)]
    found = pace(1, "auto", turns)
    assert len(found.tokens_per_s) == len(found.verified_per_step) == STRETCHES
    assert sum(found.tokens_per_s) * found.stretch_s == pytest.approx(10)
    assert max(found.verified_per_step) == 1.0
