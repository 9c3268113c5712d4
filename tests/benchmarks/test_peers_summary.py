"""Figures of made-up measurements against those by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.benchmarks.scripts import script

summary = script("peers.summary")


def measured(name, category, prompt, tokens, seconds, turn=0, **more):
    row = {"configuration": name, "category": category, "prompt": prompt, "round": turn, "tokens": tokens + 1}
    rest = {"first_tokens": 1, "decode_s": seconds, "first_s": 0.5, "peak_mib": 100.0, "prompt_tokens": 7}
    return row | rest | more


def result_of(*measurements, left_out=()):
    names = dict.fromkeys(each["configuration"] for each in measurements)
    return {
        "arguments": {"threads": 2},
        "processes": {name: name for name in names},
        "left_out": dict.fromkeys(left_out, "why"),
        "measurements": measurements,
        "batches": [],
    }


SOME = (
    *(measured("paceline:auto", "a", prompt, 20, 1.0) for prompt in (0, 1)),
    *(measured("paceline:plain", "a", prompt, 10, 1.0) for prompt in (0, 1)),
    *(measured("genai:plain", "a", prompt, 8, 1.0, first_s=0.1 + prompt) for prompt in (0, 1)),
    *(measured("genai:draft", "a", prompt, 16, 1.0) for prompt in (0, 1)),
    measured("paceline:auto", "b", 2, 40, 10.0),
    measured("paceline:plain", "b", 2, 40, 8.0, peak_mib=300.0),
    measured("genai:plain", "b", 2, 30, 7.5, prompt_tokens=9),
    measured("genai:draft", "b", 2, 30, 15.0),
)


def test_figures_against_those_by_hand():
    found = summary.summarise(result_of(*SOME))
    auto, plain, genai = (found["configurations"][n] for n in ("paceline:auto", "paceline:plain", "genai:plain"))
    assert auto["by_category"] == {"a": 20.0, "b": 4.0}
    assert auto["tokens_per_s"] == pytest.approx(math.sqrt(80))
    assert plain["peak_mib"] == 300 and genai["first_ms"] == 500
    assert plain["tokens_an_answer"] == pytest.approx((11 + 11 + 41) / 3)
    a, b = found["categories"]["a"], found["categories"]["b"]
    assert (a["best_peer"], b["best_peer"], a["prompts"]) == ("genai:draft", "genai:plain", 2)
    assert a["auto_over_best"] == pytest.approx({"ratio": 1.25, "low": 1.25, "high": 1.25})
    assert b["auto_over_plain"]["ratio"] == pytest.approx(0.8)
    overall = {name: cell["ratio"] for name, cell in found["all"].items()}
    assert overall == {
        "paceline:auto / the best peer of each category": pytest.approx(math.sqrt(1.25 * 1.0)),
        "paceline:auto / paceline:plain": pytest.approx(math.sqrt(2 * 0.8)),
        "paceline:plain / genai:plain": pytest.approx(math.sqrt(1.25 * 1.25)),
    }
    assert found["prompt_tokens_differ"] == {"genai:plain": 1}


def test_rounds_add_up_and_a_first_burst_is_no_decoding():
    rows = [measured("paceline:plain", "a", 0, 10, 1.0), measured("paceline:plain", "a", 0, 10, 3.0, turn=1)]
    assert summary.summarise(result_of(*rows))["configurations"]["paceline:plain"]["tokens_per_s"] == pytest.approx(5.0)
    burst = measured("paceline:plain", "a", 0, 10, 1.0, first_tokens=5)
    assert summary.summarise(result_of(burst))["configurations"]["paceline:plain"]["tokens_per_s"] == pytest.approx(6.0)


def test_only_prompts_that_all_have_answered_count():
    late = measured("paceline:auto", "a", 5, 1000, 1.0)
    short = [measured(name, "a", 6, 0, 0.0) for name in {each["configuration"] for each in SOME}]
    crashed = measured("hf:plain", "a", 0, 999, 1.0)
    expected = summary.summarise(result_of(*SOME))
    assert summary.summarise(result_of(*SOME, late, *short, crashed, left_out=["hf:plain"])) == expected
    assert summary.summarise(result_of(*SOME, crashed))["prompts"] == 1
    assert summary.summarise(result_of(late, crashed)) == {}


def test_the_interval_is_of_pairs_and_against_a_plain_bootstrap():
    rng = np.random.default_rng(5)
    slow = rng.uniform(1, 4, 30)
    theirs = np.stack([np.full(30, 50.0), slow], 1)
    ours = np.stack([np.full(30, 50.0), slow / 1.5], 1)
    found = {"x": {"a": ours}, "y": {"a": theirs}}
    tight = summary.compared(found, "x", {"a": "y"})
    assert tight["low"] == pytest.approx(1.5) == tight["high"], "prompts differ, ratios do not: pairs are drawn"
    ours[:, 1] = rng.uniform(1, 3, 30)
    cell = summary.compared(found, "x", {"a": "y"})
    draws = []
    for _ in range(4000):
        pick = rng.integers(30, size=30)
        draws.append(theirs[pick, 1].sum() / ours[pick, 1].sum())
    assert [cell["low"], cell["high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]), rel=0.03)


def test_batches_sum_up_over_rounds():
    rows = [{"batch": 4, "configuration": "x", "tokens": 30, "seconds": s} for s in (1.0, 2.0)]
    assert summary.paces(rows) == {4: {"x": 20.0}}
