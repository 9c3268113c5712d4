"""`Bench` under a clock of its own: what it compares is what the clock says, and no wrong text is overlooked."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.bench import bench as benches
from paceline.bench import trials
from paceline.bench.arrivals import Arrivals
from paceline.bench.bench import Bench
from paceline.bench.modes import listed
from paceline.bench.result import ALL, Comparison, Result
from paceline.bench.texts import Parting
from paceline.bench.trials import Ask, Turn
from paceline.errors import OptionError

from .clocked import DRAFT_S, PASS_S, ROW_S, clocked

SAMPLING = SamplingParams(24, seed=1, ignore_eos=True)
TWO_THREE = {"a": 2, "b": 3}


def silent(what: str, done: int, total: int) -> None:
    assert what and 0 <= done < total


def asks(counts: dict[str, int] = TWO_THREE) -> list[Ask]:
    return [Ask(name, (97 + i, ord(name), 99), SAMPLING) for name, count in counts.items() for i in range(count)]


def run(llm: LLM, modes: str = "plain,off,fixed:3", batches: tuple[int, ...] = (1,), **options: Any) -> Result:
    bench = Bench(llm, "toys", asks(), listed(modes), **options)
    bench.run(batches, 1, silent)
    return bench.result()


def of(result: Result, mode: str, category: str = ALL, batch: int = 1) -> Comparison:
    [found] = [c for c in result.comparisons if (c.mode, c.category, c.batch) == (mode, category, batch)]
    return found


def test_ratios_are_as_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, _):
        result = run(llm, batches=(1, 4))
    for batch in (1, 4):
        off = of(result, "off", batch=batch)
        assert (off.ratio, off.low, off.high) == pytest.approx((1, 1, 1), abs=1e-9) and off.verdict == "same"
        assert result.noise[str(batch)] == pytest.approx(0, abs=1e-9)
    found = of(result, "fixed:3")
    assert found.verdict == "faster" and found.low > 1.1
    [plain] = [c for c in result.cells if (c.mode, c.category, c.batch) == ("plain", ALL, 1)]
    assert plain.tokens_per_s == pytest.approx(1 / (PASS_S + ROW_S))
    assert plain.tokens == 5 * 2 * 24 and plain.prompts == 5 and plain.acceptance_rate is None
    assert result.text_identical == replace(result.text_identical, near_ties=0, different=0)
    assert result.text_identical.equal == result.text_identical.prompts > 0


def test_a_draft_that_costs_more_than_it_brings_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, _):
        bench = Bench(llm, "toys", asks(), listed("plain,off,fixed:3"), acceptance=[0.0])
        bench.run((1,), 1, silent)
        result = bench.result()
    # Every step has one token: a pass of four rows and three drafted ones, against a pass of one row.
    expected = (PASS_S + ROW_S) / (PASS_S + 4 * ROW_S + 3 * DRAFT_S)
    found = of(result, "fixed:3")
    assert found.verdict == "slower" and found.ratio == pytest.approx(expected, rel=0.02)
    assert result.text_identical.different == 0 and result.synthetic == (0.0,)


class Wrong:
    """Turns of which one mode's second answer is another at one token."""

    def __init__(self, mode: str) -> None:
        self.mode, self.inside, self.planted = mode, trials.take, 0

    def __call__(self, modes: Any, mode: Any, *rest: Any, **options: Any) -> Turn:
        turn = self.inside(modes, mode, *rest, **options)
        if mode.name != self.mode or turn.numbers[0] != 1:
            return turn
        self.planted += 1
        first = turn.done[0]
        tokens = (*first.token_ids[:5], (first.token_ids[5] + 1) % 256, *first.token_ids[6:])
        return replace(turn, done=(replace(first, token_ids=tokens), *turn.done[1:]))


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_one_wrong_token_is_found_and_named(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    wrong = Wrong(mode)
    monkeypatch.setattr(trials, "take", wrong)
    with clocked(monkeypatch) as (llm, _):
        result = run(llm, "plain,off,auto")
    texts = result.text_identical
    assert wrong.planted == texts.different == 2, "in both turns, also where the mode comes before the reference"
    assert texts.equal == texts.prompts - 2 and texts.near_ties == 0
    assert {(d.mode, d.category, d.prompt, d.position) for d in result.differences} == {(mode, "a", 1, 5)}
    assert all(d.gap is None or d.gap > 0.1 for d in result.differences)


def test_a_near_tie_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "take", Wrong("off"))
    monkeypatch.setattr(benches, "parting", lambda llm, request, a, b: None if a.token_ids == b.token_ids else TIE)
    with clocked(monkeypatch) as (llm, _):
        texts = run(llm, "plain,off").text_identical
    assert (texts.near_ties, texts.different) == (2, 0)


TIE = Parting(5, 0.01)


def test_requests_that_come_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, clock):
        monkeypatch.setattr(
            trials, "time", SimpleNamespace(sleep=lambda s: setattr(clock, "now", clock.now + s + 1e-9))
        )
        result = run(llm, "plain,off,fixed:3", (4,), arrivals=Arrivals("poisson", 1.0))
    assert {c.category for c in result.comparisons} == {c.category for c in result.cells} == {ALL}
    for cell in result.cells:
        assert cell.busy_share is not None and 0 < cell.busy_share < 0.9, "nobody is asked faster than they come"
    assert result.text_identical.different == 0 and result.text_identical.equal > 0


def test_who_is_interrupted_keeps_whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, _):
        bench = Bench(llm, "toys", asks(), listed("plain,auto"))

        def stop(what: str, done: int, total: int) -> None:
            if done == 7:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bench.run((1,), 1, stop)
        result = bench.result()
    assert len(bench.seen) == 7 and of(result, "auto").ratio > 0
    assert sum(c.tokens for c in result.cells if c.category == ALL) == 7 * 24


def test_what_is_written_has_the_keys_that_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, _):
        found = json.loads(json.dumps(run(llm).as_json(), allow_nan=False))
    assert found.keys() >= {"provenance", "cells", "comparisons", "text_identical"}
    assert found["provenance"].keys() >= {"argv", "versions", "machine", "model", "date"}
    assert found["provenance"]["model"] == "toy:ngram"
    cell = {
        "workload",
        "category",
        "batch",
        "mode",
        "prompts",
        "tokens",
        "tokens_per_s",
        "tpot_ms",
        "ttft_ms",
        "acceptance_length",
        "acceptance_rate",
        "peak_memory_bytes",
        "wasted_share",
    }
    assert all(each.keys() >= cell and each["tpot_ms"].keys() == {"p50", "p95"} for each in found["cells"])
    kept = {"workload", "category", "batch", "mode", "against", "ratio", "low", "high", "verdict"}
    assert all(each.keys() >= kept for each in found["comparisons"])
    assert found["text_identical"].keys() == {"equal", "prompts", "near_ties", "different"}
    assert {c["category"] for c in found["comparisons"]} == {"a", "b", ALL}
    assert all(each["peak_memory_bytes"] > 1 << 20 for each in found["cells"])


@pytest.mark.parametrize("modes", ["plain", "plain,plain", "plain,auto,auto"])
def test_modes_that_cannot_be_compared_are_refused(modes: str) -> None:
    with pytest.raises(OptionError, match="name two or more, each once"):
        Bench(LLM("toy:ngram", drafters=(), keep_costs=False), "toys", asks(), listed(modes))
