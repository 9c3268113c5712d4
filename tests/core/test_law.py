"""Laws: probabilities, draws and residuals against dense vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.core.law import Law
from paceline.core.noise import Stream, gumbel, stream_key

from . import reference
from .strategies import examples, vectors

SIZE = 5


def dense(law: Law, size: int = SIZE) -> np.ndarray:
    return law.at(np.arange(size, dtype=np.int64))


@examples(100)
@given(vectors(SIZE))
def test_dense_and_back(p):
    law = Law.of(np.array(p))
    assert dense(law) == pytest.approx(p, abs=1e-15)
    assert law.ids.tolist() == [t for t, x in enumerate(p) if x > 0]
    assert law.ids.dtype == np.int64
    assert law.probabilities.sum() == pytest.approx(1, abs=1e-14)
    assert [law.prob(t) for t in range(SIZE)] == dense(law).tolist()
    assert law.entropy() == pytest.approx(-sum(x * math.log(x) for x in p if x > 0), abs=1e-12)


def test_tokens_outside_the_support_have_probability_zero():
    law = Law.of(np.array([0, 0.5, 0, 0.5, 0]))
    assert law.at(np.array([-1, 0, 1, 2, 3, 4, 10**9])).tolist() == pytest.approx([0, 0, 0.5, 0, 0.5, 0, 0])
    assert law.prob(10**9) == law.prob(-1) == 0.0


def test_point():
    law = Law.point(7)
    assert (law.ids.tolist(), law.probabilities.tolist(), law.entropy()) == ([7], [1.0], 0.0)
    assert law.prob(7) == 1.0 and law.prob(6) == 0.0
    assert law.draw(lambda ids: pytest.fail("a point needs no noise")) == 7


def test_uniform_entropy():
    assert Law.of(np.full(8, 1 / 8)).entropy() == pytest.approx(math.log(8))


@examples(100)
@given(vectors(SIZE), st.integers(0, 2**64 - 1))
def test_draw_is_the_argmax(p, seed):
    key = stream_key(seed, 0, Stream.TARGET)
    everywhere = gumbel(key, np.arange(SIZE, dtype=np.int64)).tolist()
    assert Law.of(np.array(p)).draw(lambda ids: gumbel(key, ids)) == reference.argmax_draw(p, everywhere)


def test_ties_go_to_the_lowest_id():
    law = Law.of(np.array([0, 0.25, 0.25, 0.5, 0]))
    assert law.draw(lambda ids: np.zeros(len(ids))) == 3
    assert Law.of(np.array([0, 0.5, 0.5])).draw(lambda ids: np.zeros(len(ids))) == 1


def test_draws_follow_the_law():
    p = np.array([0.6, 0, 0.3, 0.1])
    law = Law.of(p)
    keys = (stream_key(seed, 0, Stream.TARGET) for seed in range(6000))
    counts = np.bincount([law.draw(lambda ids, key=key: gumbel(key, ids)) for key in keys], minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[p > 0], 6000 * p[p > 0]).pvalue > 1e-3


@examples(200)
@given(vectors(SIZE), vectors(SIZE), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_excess_and_residual(p, q, scale):
    one, other = Law.of(np.array(p)), Law.of(np.array(q))
    left = np.maximum(scale * np.array(p) - np.array(q), 0)
    assert one.excess(other, scale) == pytest.approx(left[one.ids], abs=1e-15)
    residual = one.without(other, scale)
    if left.sum() > 1e-12:
        assert dense(residual) == pytest.approx(left / left.sum(), abs=1e-9)
        assert residual.probabilities.sum() == pytest.approx(1, abs=1e-12)
        assert np.isfinite(residual.log_p).all()
    elif left.sum() == 0 and not one.excess(other, scale).any():
        assert residual is one


def test_default_scale_is_one():
    one, other = Law.of(np.array([0.5, 0.5])), Law.of(np.array([0.25, 0.75]))
    assert one.excess(other) == pytest.approx([0.25, 0])
    assert dense(one.without(other), 2).tolist() == [1.0, 0.0]


def test_small_residuals_are_residuals_all_the_same():
    one, other = Law.of(np.array([0.5 + 1e-9, 0.5 - 1e-9])), Law.of(np.array([0.5, 0.5]))
    assert dense(one.without(other), 2).tolist() == [1.0, 0.0]


def test_nothing_left_of_a_law_without_itself():
    law = Law.of(np.array([0.2, 0.3, 0.5]))
    assert law.without(law) is law
    assert law.without(law, 0.5) is law


def test_disjoint_supports_leave_everything():
    one, other = Law.of(np.array([0.4, 0.6, 0, 0])), Law.of(np.array([0, 0, 0.5, 0.5]))
    assert dense(one.without(other), 4) == pytest.approx([0.4, 0.6, 0, 0])
