"""The likely tokens of a row and the mass of the others: the law they make is that of the whole row."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.core import rows
from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow, HostRows, Near, hosted
from paceline.core.sampling import RowChoice, Shaping
from paceline.core.types import SamplingParams

from . import reference
from .strategies import examples, logits, narrowed

FLOOR = -math.inf
TEMPERATURES = st.sampled_from([0.05, 0.7, 1.0, 3.0, 1e6, 1e308])


def whole_law(row, temperature: float) -> list[float]:
    return reference.dense_law(row.tolist(), Shaping(SamplingParams(temperature=temperature)), ())


def check_near(row, temperature: float, reach: float, most: int) -> None:
    before = row.copy()
    near = HostRow(row).near(temperature)
    law = whole_law(row, temperature)
    assert near.ids.tolist() == reference.near_tokens(row.tolist(), temperature, reach, most)
    assert near.ids.dtype == np.int64 and near.log_p.dtype == np.float64
    assert np.exp(near.log_p) == pytest.approx([law[t] for t in near.ids], abs=1e-6)
    likely = set(near.ids.tolist())
    others = math.fsum(p for t, p in enumerate(law) if t not in likely)
    assert math.exp(near.tail) == pytest.approx(others, abs=1e-6)
    assert np.exp(near.log_p).sum() + math.exp(near.tail) == pytest.approx(1, abs=1e-12)
    assert np.array_equal(row, before), "the runner's logits are not ours to change"
    again = HostRow(row.copy()).near(temperature)
    assert np.array_equal(again.log_p, near.log_p) and (again.tail, again.norm) == (near.tail, near.norm)


@examples(400)
@given(logits(30), TEMPERATURES, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(1, 8), st.integers(1, 9))
def test_near_and_the_others_make_the_law(row, temperature, reach, most, part):
    with narrowed(reach, most, part=part):
        check_near(row, temperature, reach, most)


@examples(100)
@given(logits(30), TEMPERATURES)
def test_a_short_row_is_near_as_a_whole(row, temperature):
    near = HostRow(row).near(temperature)
    assert near.ids.tolist() == np.flatnonzero(row > FLOOR).tolist()
    assert near.tail == FLOOR
    assert np.exp(near.log_p) == pytest.approx([p for p in whole_law(row, temperature) if p > 0], abs=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_large_rows(spread, temperature):
    row = np.random.default_rng(3).normal(scale=spread, size=20_000).astype(np.float32)
    row[[7, 19_999]] += 8 * spread
    check_near(row, temperature, rows.REACH, rows.MOST)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e6])
def test_of_equals_the_lowest_ids_are_near_and_the_others_keep_their_mass(temperature):
    near = HostRow(np.full(150_000, 3, np.float32)).near(temperature)
    assert near.ids.tolist() == list(range(rows.MOST))
    assert math.exp(near.tail) == pytest.approx(1 - rows.MOST / 150_000, abs=1e-9)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30])
def test_tiny_temperatures_leave_the_highest(temperature):
    for few in (0, 100):
        with narrowed(few=few):
            near = HostRow(np.array([1, 3, -3, 3, FLOOR], np.float32)).near(temperature)
            assert near.alone().at(np.arange(5)) == pytest.approx([0, 0.5, 0, 0.5, 0])
            assert np.isfinite(near.alone().log_p).all()
            assert near.tail == FLOOR


def test_logits_of_any_size():
    row = np.array([3e38, -3e38, 0, FLOOR], np.float32)
    for temperature in (1e-3, 1.0, 1e30):
        with narrowed(few=0):
            near = HostRow(row).near(temperature)
            assert (near.ids.tolist(), near.log_p.tolist(), near.tail) == ([0], [0.0], FLOOR)
    with narrowed(few=0, most=9):
        near = HostRow(row).near(1e308)
        assert near.ids.tolist() == [0, 1, 2]
        assert np.exp(near.log_p) == pytest.approx([1 / 3] * 3)


@examples(200)
@given(logits(30), TEMPERATURES)
def test_norm_is_the_log_of_the_sum(row, temperature):
    expected = math.log(math.fsum(math.exp(float(x - row.max()) / temperature) for x in row))
    with narrowed():
        assert HostRow(row).near(temperature).norm == pytest.approx(float(row.max()) / temperature + expected, abs=1e-6)


@examples(300)
@given(logits(30), st.integers(1, 35), st.sampled_from([0.0, 0.5, 2.0, 100.0, math.inf]), st.integers(1, 9))
def test_what_a_row_answers(row, n, margin, part):
    with narrowed(part=part):
        found = HostRow(row)
        assert found.size == len(row)
        assert found.best() == row.tolist().index(max(row))
        assert [found.at(t) for t in range(len(row))] == row.tolist()
        assert found.whole() is row
        ids, values = found.within(margin)
        assert ids.tolist() == [t for t, x in enumerate(row) if x > FLOOR and x >= max(row) - margin]
        assert np.array_equal(values, row[ids])
        ids, values = found.top(n)
        least = sorted(row.tolist(), reverse=True)[:n][-1]
        assert ids.tolist() == [t for t, x in enumerate(row) if x >= least]
        assert np.array_equal(values, row[ids])


def test_rows_of_a_pass():
    given_ = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = HostRows(given_)
    assert (len(found), found[1].best(), found[0].at(1)) == (2, 2, 1.0)
    assert found.whole() is given_
    assert [row.whole().tolist() for row in hosted(list(given_))] == given_.tolist()


# The draw

PEAKS = np.array([2.0, 0.5, 1.9, -1.0, 0.4, FLOOR, 0.5, 0.0, -0.5, 1.2], np.float32)
DRAWS = 6000


def drawn(row, temperature: float, draws: int = DRAWS) -> Counter[int]:
    choice = RowChoice(HostRow(row), Shaping(SamplingParams(temperature=temperature)), ())
    with narrowed():
        return Counter(choice.draw(TargetNoise(seed, 5)) for seed in range(draws))


def p_value(counts: Counter[int], law: list[float]) -> float:
    possible = [t for t, p in enumerate(law) if p > 0]
    assert set(counts) <= set(possible)
    total = sum(counts.values())
    return float(stats.chisquare([counts[t] for t in possible], [law[t] * total for t in possible]).pvalue)


@pytest.mark.parametrize("temperature", [0.7, 1.2, 50.0])
def test_draws_follow_the_law(temperature):
    with narrowed():
        assert math.exp(HostRow(PEAKS).near(temperature).tail) > 0.1, "or the tail would not be tried"
    assert p_value(drawn(PEAKS, temperature), whole_law(PEAKS, temperature)) > 1e-3


def first_near(noise: TargetNoise) -> float:
    return float(noise(np.zeros(1, np.int64))[0])


def largest_of_its_own(noise: TargetNoise) -> float:
    return float(noise(np.array([1, 3, 4, 6, 7, 8])).max())


def by_its_win(noise: TargetNoise) -> float:
    """The tail's own noise, as a number in (0, 1): large wherever the tail has won."""
    return math.exp(-math.exp(-noise.of_tail()))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("of_tail", first_near),
        ("of_tail", largest_of_its_own),
        ("of_tail", lambda noise: FLOOR),
        ("within_tail", by_its_win),
    ],
    ids=["shared with a near token", "largest of many", "dropped", "used twice"],
)
def test_negative_control_of_the_tails_noise(name, broken, monkeypatch):
    monkeypatch.setattr(TargetNoise, name, broken)
    assert p_value(drawn(PEAKS, 1.2), whole_law(PEAKS, 1.2)) < 1e-6


@examples(150)
@given(logits(20), st.sampled_from([0.7, 1.2, 20.0]), st.integers(0, 2**32))
def test_a_draw_is_the_plain_one(row, temperature, seed):
    noise = TargetNoise(seed, 7)
    with narrowed():
        found = RowChoice(HostRow(row), Shaping(SamplingParams(temperature=temperature)), ()).draw(noise)
    assert found == reference.two_level_draw(row.tolist(), temperature, noise, 1.0, 4)
    assert row[found] > FLOOR


@examples(200)
@given(logits(20), st.sampled_from([0.7, 1.2, 1e6]), st.integers(1, 9))
def test_every_unlikely_token_has_its_share_of_the_others(row, temperature, part):
    """By enumeration: the shares at which one token gives way to the next are those of the law."""
    law = whole_law(row, temperature)
    with narrowed(part=part):
        found = HostRow(row)
        near = found.near(temperature)
        others = [t for t, p in enumerate(law) if p > 0 and t not in near.ids]
        mass, start = math.fsum(law[t] for t in others), 0.0
        for token in others:
            end = start + law[token] / mass
            if end - start > 1e-5:
                for share in (start + 2e-6, (start + end) / 2, end - 2e-6):
                    assert found.beyond(near.ids, temperature, share) == token
            start = end
        if others:
            assert found.beyond(near.ids, temperature, 1 - 2**-53) in others


def test_a_share_that_rounding_leaves_over_goes_to_a_token_that_has_mass():
    """Parts are summed pairwise and walked through step by step: the two may differ in the last bit."""
    row = np.concatenate([[20.0], np.log(np.linspace(0.1, 1, 5000)), np.full(50, FLOOR)]).astype(np.float32)
    with narrowed(reach=1.0, part=10_000):
        found = HostRow(row)
        near = found.near(1.0)
        tokens = {found.beyond(near.ids, 1.0, share) for share in (1 - 2**-53, 1 - 2**-52, 1 - 2**-51)}
    assert near.ids.tolist() == [0]
    assert tokens == {5000}


def test_one_token_that_is_all_needs_no_noise():
    assert Near(np.array([7]), np.zeros(1)).draw(None) == 7


def test_ties_of_a_draw_go_to_the_lowest_id_and_not_to_the_others():
    class Flat(TargetNoise):
        def __call__(self, ids):
            return np.zeros(len(ids))

        def of_tail(self):
            return 0.0

    half = math.log(0.25)
    assert Near(np.array([3, 5]), np.full(2, half), math.log(0.5)).draw(Flat(0, 0)) is None
    assert Near(np.array([3, 5, 8]), np.full(3, half), half).draw(Flat(0, 0)) == 3
