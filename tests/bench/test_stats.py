"""Intervals hold what they promise: by simulation of turns with noise, and of machines that hiccup."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.bench import stats
from paceline.bench.result import ALL
from paceline.bench.stats import MARGIN, Ratio, compare, geometric, student
from paceline.bench.summary import compared, noise, reach

Groups = dict[str, list[list[float]]]


def measured(
    dice: np.random.Generator,
    effects: Sequence[float],
    sizes: Sequence[int],
    turns: int,
    between: float,
    within: float,
    hiccups: float = 0.05,
) -> Groups:
    """Return the ratios of a synthetic run: log-normal between groups and turns, and now and then far off."""
    found: Groups = {}
    for number, (effect, groups) in enumerate(zip(effects, sizes, strict=True)):
        logs = effect + dice.normal(0, between, (groups, 1)) + dice.normal(0, within, (groups, turns))
        off = dice.random((groups, turns)) < hiccups
        logs = logs + off * dice.choice([-1, 1], (groups, turns)) * dice.exponential(0.3, (groups, turns))
        found[str(number)] = np.exp(logs).tolist()
    return found


def covered(sizes: Sequence[int], turns: int, between: float, within: float, runs: int) -> float:
    dice = np.random.default_rng(7)
    effects = dice.normal(0.2, 0.2, len(sizes))
    truth, held = math.exp(effects.mean()), 0
    for _ in range(runs):
        found = compare(measured(dice, effects, sizes, turns, between, within))
        held += found.low <= truth <= found.high
    return held / runs


WORLDS = [
    ((3, 3, 3, 3), 4, 0.02, 0.025),
    ((2, 2, 2), 2, 0.05, 0.02),
    ((2, 3, 5, 8), 4, 0.1, 0.02),
    ((8, 8), 2, 0.1, 0.03),
    ((5, 5, 5, 5), 4, 0.0, 0.03),
    ((4, 6, 8), 4, 0.03, 0.03),
]


def test_the_interval_covers_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 1000)
    assert 0.93 <= np.mean([covered(*world, runs=300) for world in WORLDS]) <= 0.98


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_interval_covers_the_truth_in_each_world(world: tuple[tuple[int, ...], int, float, float]) -> None:
    assert 0.93 <= covered(*world, runs=2000) <= 0.98


def test_an_interval_that_is_not_widened_covers_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 1000)
    monkeypatch.setattr(stats.math, "sqrt", lambda _: 1.0)
    monkeypatch.setattr(stats, "student", lambda _: stats._Z)
    assert covered((3, 3, 3, 3), 4, 0.02, 0.025, runs=300) < 0.9
    assert covered((2, 2, 2), 2, 0.05, 0.02, runs=300) < 0.85


def verdicts(effect: float, runs: int = 200) -> Counter[str]:
    """Of benchmarks/verdicts.py: four categories of three prompts, four turns, 3 % of noise a turn."""
    dice = np.random.default_rng(1)
    shape = ((3, 3, 3, 3), 4, 0.0, 0.03)
    return Counter(compare(measured(dice, [effect] * 4, *shape)).verdict() for _ in range(runs))


def test_plain_against_plain_is_the_same() -> None:
    assert verdicts(0.0)["same"] >= 0.95 * 200


@pytest.mark.parametrize(("effect", "expected"), [(-0.03, "slower"), (0.03, "faster")])
def test_three_percent_are_found(effect: float, expected: str) -> None:
    found = verdicts(effect)
    assert found[expected] >= 0.95 * 200 and set(found) <= {expected, "same"}, found


def test_a_hiccup_does_not_move_a_group() -> None:
    steady = {"a": [[1.1, 1.1, 1.1, 1.1]] * 4}
    shaken = {"a": [[1.1, 1.1, 1.1, 9.0], *steady["a"][1:]]}
    assert compare(shaken) == compare(steady)
    assert compare(steady) == Ratio(pytest.approx(1.1), pytest.approx(1.1), pytest.approx(1.1))


def test_categories_count_alike_whatever_their_size() -> None:
    found = compare({"many": [[2.0, 2.0]] * 8, "few": [[0.5, 0.5]] * 2})
    assert (found.ratio, found.low, found.high) == pytest.approx((1, 1, 1))


def test_a_group_alone_is_drawn_from_its_turns() -> None:
    found = compare({"a": [[1.0, 1.1, 1.2, 1.3]]})
    assert found.low < 1.05 and found.high > 1.25
    assert compare({"a": [[1.2]]}) == Ratio(pytest.approx(1.2), pytest.approx(1.2), pytest.approx(1.2))


def test_a_category_of_two_groups_that_is_most_of_the_variance_is_not_hidden_by_another() -> None:
    shaky, steady = [[0.9], [1.1]], [[1.0], [1.001]] * 20
    both, without = compare({"a": shaky, "b": steady}), compare({"a": shaky, "b": [[1.0], [1.001]]})
    assert math.log(both.high / both.low) == pytest.approx(math.log(without.high / without.low), rel=0.1)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (10**6, 1.96)]
)
def test_students_quantile_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert student(freedom) == pytest.approx(expected, rel=0.01)


def test_the_geometric_mean() -> None:
    found = geometric([0.5, 2.0, 1.0, 1.0])
    assert found["ratio"] == pytest.approx(1) and 0.5 <= found["low"] < 1 < found["high"] <= 2


@pytest.mark.parametrize(
    ("low", "high", "floor", "expected"),
    [
        (1.0 + MARGIN + 1e-6, 1.1, 0.0, "faster"),
        (1.0 + MARGIN - 1e-6, 1.1, 0.0, "same"),
        (0.9, 1.0 - MARGIN - 1e-6, 0.0, "slower"),
        (0.9, 1.0 - MARGIN + 1e-6, 0.0, "same"),
        (0.9, 1.1, 0.0, "same"),
        (1.02, 1.1, 0.03, "same"),
        (1.04, 1.1, 0.03, "faster"),
        (0.9, 0.98, 0.03, "same"),
        (0.9, 0.96, 0.03, "slower"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_margin_and_noise(
    low: float, high: float, floor: float, expected: str
) -> None:
    assert Ratio((low * high) ** 0.5, low, high).verdict(floor) == expected


def test_categories_know_the_noise_floor_and_all_of_them_do_not() -> None:
    off = {"a": [[0.95], [1.05]], "b": [[0.96], [1.04]]}
    auto = {"a": [[1.02], [1.02]], "b": [[1.02], [1.02]]}
    found = compared("w", 1, "plain", {"off": off, "auto": auto})
    of = {(c.mode, c.category): c.verdict for c in found}
    assert of["auto", "a"] == of["auto", "b"] == "same" and of["auto", ALL] == "faster"
    assert noise(found)["1"] == reach(compare(off)) > 0.02
    alone = compared("w", 1, "plain", {"auto": auto})
    assert {c.verdict for c in alone} == {"faster"} and noise(alone) == {}
