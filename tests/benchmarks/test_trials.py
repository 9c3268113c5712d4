"""What trials come to: medians, ratios, intervals, counts, and texts that differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Completion
from paceline.core.types import SpeculationReport, Timings
from tests.benchmarks.scripts import script
from tests.core.strategies import examples

common, trials = script("common"), script("trials")


def done(ms: float, tokens=(1, 2, 3), **report) -> Completion:
    counts = SpeculationReport(**{"steps": len(tokens), **report})
    return Completion(0, "", tuple(tokens), "length", 5, 0, counts, Timings(0.0, ms, 0.0))


def trial(category="a", **by_mode):
    found = trials.Trial(category)
    for mode, runs in by_mode.items():
        found.done[mode] += runs
    return found


def test_times_are_medians_of_tokens_after_the_first():
    found = trial(plain=[done(20), done(40), done(1000)], auto=[done(10)])
    assert found.seconds("plain") == pytest.approx(0.02)
    assert found.ratio("auto") == pytest.approx(4)
    assert trial(plain=[done(7, (1,))]).seconds("plain") == pytest.approx(0.007), "no second token, no division by zero"


def test_texts_are_compared_over_all_runs():
    assert trial(plain=[done(1), done(1)], auto=[done(2)]).is_same("auto")
    assert not trial(plain=[done(1), done(1)], auto=[done(2), done(2, (1, 2, 4))]).is_same("auto")
    assert not trial(plain=[done(1), done(1, (1, 2))], auto=[done(2)]).is_same("auto")


def test_a_cell_sums_up_and_names_reasons():
    some = [
        trial(plain=[done(40)], auto=[done(20, drafted=6, verified=4, accepted=2, steps=1, reasons={"probing": 2})]),
        trial(plain=[done(40)], auto=[done(10, (1, 9), drafted=2, verified=1, steps=2, reasons={"probing": 1})]),
    ]
    found = trials.cell("a", "auto", some)
    assert found["reasons"] == {"probing": 3}
    assert found["acceptance_length"] == pytest.approx(5 / 3)
    assert found["verified_a_step"] == pytest.approx(5 / 3)
    assert found["acceptance_rate"] == pytest.approx(2 / 5)
    assert found["text_identical"] == 1
    assert found["tokens_per_s"] == pytest.approx(3 / 0.030)
    assert found["ratio"] == pytest.approx(2.0)
    assert trials.grouped([trial("a"), trial("b"), trial("a")]).keys() == {"a", "b", "all"}


@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=12))
@examples(50)
def test_the_interval_holds_the_geometric_mean(ratios):
    found = common.geometric(ratios)
    assert found["ratio"] == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert found["low"] <= found["ratio"] * (1 + 1e-9) and found["high"] >= found["ratio"] * (1 - 1e-9)
    assert min(ratios) * (1 - 1e-9) <= found["low"] and found["high"] <= max(ratios) * (1 + 1e-9)
    double = common.geometric([2 * ratio for ratio in ratios])
    assert double["low"] == pytest.approx(2 * found["low"])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    import numpy as np

    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        interval = common.geometric(np.exp(rng.normal(0.1, 0.3, 40)))
        covered += interval["low"] <= math.exp(0.1) <= interval["high"]
    assert 175 <= covered <= 199
