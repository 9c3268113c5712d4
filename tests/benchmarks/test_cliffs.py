"""The best lengths of injected curves, and what is held against them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.benchmarks.scripts import found, script

cliffs = script("cliffs")


def setting(curve, chance, draft=0.0, other=0.0, most=16):
    return cliffs.Setting(curve, chance, draft, other, most)


@pytest.mark.parametrize(
    ("curve", "chance", "draft", "best"),
    [
        ("flat", 0.5, 0.0, 16),
        ("linear", 0.9, 0.0, 0),
        ("cliff", 0.6, 0.0, 0),
        ("cliff", 0.9, 0.0, 16),
        ("stairs", 0.9, 0.0, 7),
        ("flat", 0.5, 1.0, 0),
    ],
)
def test_the_best_length(curve, chance, draft, best):
    assert setting(curve, chance, draft).best == best


def test_the_pace_is_that_of_a_long_run():
    """Steps of one length with independent guesses: tokens and time add up to what the formula says."""
    rng, mine = np.random.default_rng(0), setting("stairs", 0.8, 0.1, 0.05)
    for length in (0, 3, 9):
        hits = rng.random((20000, length)) < 0.8
        tokens = 1 + np.cumprod(hits, axis=1).sum(1).mean()
        seconds = cliffs.CURVES["stairs"](1 + length) + 0.05 + 0.1 * length
        assert mine.pace(length) == pytest.approx(tokens / seconds, rel=0.02)


def test_what_counts_as_the_best():
    cliff, flat = setting("cliff", 0.9), setting("flat", 0.5)
    assert cliff.is_best(15) and not cliff.is_best(9) and not cliff.is_best(0)
    assert flat.is_best(9), "so far out it hardly matters"
    assert not flat.is_best(2)


def test_the_usual_length():
    assert cliffs.usual(Counter({0: 5, 8: 3})) == 0
    assert cliffs.usual(Counter({0: 3, 8: 3, 9: 1, 1: 1})) == 8
    assert cliffs.usual(Counter()) == 0


def test_the_drafter_is_right_as_often_as_it_says():
    drafter = cliffs.Known(0.7, 0.0, 100, tuple(range(5, 5 + 4000)))
    assert np.mean([drafter._guess(place) == drafter.text[place] for place in range(4000)]) == pytest.approx(
        0.7, abs=0.03
    )


def test_cells_on_a_toy(tmp_path):
    shown, result = found(
        "cliffs",
        tmp_path / "out.json",
        *("--curves", "cliff,flat", "--chances", "0.3", "--drafts", "0", "--unit", "2", "--max-tokens", 80),
        *("--settle", 20, "--plot", tmp_path / "cliffs.png"),
    )
    assert all(c["text_identical"] for c in result["cells"])
    assert {c["curve"]: c["best"] for c in result["cells"]} == {"cliff": 0, "flat": 16}
    assert all(sum(c["lengths"].values()) > 5 for c in result["cells"])
    assert (tmp_path / "cliffs.png").read_bytes().startswith(b"\x89PNG")
    assert "never 1 to 3 on the cliff" in shown
