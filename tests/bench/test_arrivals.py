"""Requests come when they are said to."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.bench.arrivals import BURST, Arrivals
from paceline.errors import OptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("closed", None),
        ("poisson:2", Arrivals("poisson", 2.0)),
        ("poisson:0.25", Arrivals("poisson", 0.25)),
        ("bursts:2", Arrivals("bursts", 2.0, BURST)),
        ("bursts:2:8", Arrivals("bursts", 2.0, 8)),
    ],
)
def test_what_is_written(text: str, expected: Arrivals | None) -> None:
    assert Arrivals.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "poisson",
        "poisson:",
        "poisson:0",
        "poisson:-1",
        "poisson:nan",
        "poisson:inf",
        "poisson:1:2",
        "closed:1",
        "bursts",
        "bursts:1:0",
        "bursts:1:1.5",
        "bursts:1:2:3",
        "uniform:1",
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"arrivals is .*; allowed: closed, poisson:RATE"):
        Arrivals.parse(text)


@pytest.mark.parametrize("arrivals", [Arrivals("poisson", 5.0), Arrivals("bursts", 5.0, 8)])
def test_times_rise_from_nought_at_the_rate_that_was_asked_for(arrivals: Arrivals) -> None:
    count = 8000
    starts = np.array(arrivals.starts(count, seed=3))
    assert len(starts) == count and starts[0] == 0 and (np.diff(starts) >= 0).all()
    waits = count / arrivals.size
    assert (count - arrivals.size) / starts[-1] == pytest.approx(5.0, rel=4 / np.sqrt(waits)), "four deviations"


def test_gaps_are_exponential() -> None:
    gaps = np.diff(Arrivals("poisson", 5.0).starts(8000))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert np.mean(gaps > 0.2) == pytest.approx(np.exp(-1), abs=0.02)


def test_a_burst_comes_at_once() -> None:
    starts = Arrivals("bursts", 2.0, 4).starts(10)
    assert [starts.count(t) for t in dict.fromkeys(starts)] == [4, 4, 2]
    assert Arrivals("bursts", 1.0, 10**30).starts(3) == (0.0, 0.0, 0.0)


def test_times_are_the_seeds() -> None:
    poisson = Arrivals("poisson", 1.0)
    assert poisson.starts(9, 1) == poisson.starts(9, 1) != poisson.starts(9, 2)
    assert poisson.starts(9)[:4] == poisson.starts(4), "and those of more requests begin alike"
