"""Laws over the target's tokens from logits over others: against dense vectors, and exact under ratio."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.law import Law
from paceline.core.sampling import Shaping, law, shape
from paceline.core.types import SamplingParams
from paceline.core.verify import acceptance
from paceline.drafters.shaped import Head
from tests.core.strategies import examples

SIZE = 7
"""The target's tokens."""


@st.composite
def heads(draw: st.DrawFn) -> np.ndarray:
    """The target's token of each column: any order, some none, some beyond the target's table."""
    known = draw(st.lists(st.integers(0, SIZE + 3), min_size=1, max_size=9, unique=True))
    if not any(token < SIZE for token in known):
        known = [*known, 0]
    nothing = draw(st.integers(0, 3))
    return np.array(draw(st.permutations([*known, *[-1] * nothing])), np.int64)


SHAPES = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    logit_bias=st.sampled_from([{}, {0: 2.0, SIZE - 1: -1.0}]),
)


@given(heads(), SHAPES, st.lists(st.integers(0, SIZE - 1), max_size=4), st.integers(0, 1000))
@examples(200)
def test_a_law_is_of_the_targets_tokens_alone(
    names: np.ndarray, params: SamplingParams, output: list[int], seed: int
) -> None:
    """As if the drafter had the target's table and were sure that what it cannot name never comes."""
    logits = np.random.default_rng(seed).normal(size=len(names)).astype(np.float32)
    dense = np.full(SIZE, -np.inf, np.float32)
    for column, token in enumerate(names):
        if 0 <= token < SIZE:
            dense[token] = logits[column]
    shaping = Shaping(params, (1, 2))
    found, expected = Head(SIZE, names).law(logits, shaping, output), law(dense, shaping, output)
    assert found.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(found.log_p, expected.log_p, atol=1e-6)
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert set(found.ids.tolist()) <= set(names.tolist())
    ids, before = Head(SIZE, names).shaped(logits, shaping, output)
    wide = np.full(SIZE, -np.inf, np.float32)
    wide[ids] = before
    np.testing.assert_array_equal(wide, shape(dense, shaping, output))


def test_a_whole_head_is_taken_as_it_is() -> None:
    logits = np.arange(5, dtype=np.float32)
    assert Head(5, np.arange(5)).named(logits) is logits
    assert Head(4, np.arange(5)).named(logits).tolist() == [0, 1, 2, 3]
    assert Head(9, np.array([4, -1, 2, 8, 0])).named(logits).tolist() == [4, 2, 0, 3]


def test_a_token_named_twice_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Head(5, np.array([1, 1]))


def one_token(p: Law, draws: Law, declared: Law) -> np.ndarray:
    """The law of the first token of a step under ratio: a token of `draws` is accepted as if drawn from `declared`;
    one that the target does not have is dropped, and the target draws."""
    found = np.zeros(SIZE)
    for token, chance in zip(draws.ids.tolist(), draws.probabilities, strict=True):
        if token >= SIZE:
            found[p.ids] += chance * p.probabilities
            continue
        taken = acceptance(p, declared, token)
        found[token] += chance * taken
        residual = p.without(declared)
        found[residual.ids] += chance * (1 - taken) * residual.probabilities
    return found


def uncut(names: np.ndarray, logits: np.ndarray, shaping: Shaping) -> Law:
    """The drafter's law over all it can name, what the target lacks included."""
    whole = law(logits, shaping, ())
    order = np.argsort(names)
    assert len(whole.ids) == len(names)
    return Law(names[order], whole.log_p[order])


@given(st.integers(0, 5000), st.permutations(range(SIZE + 2)))
@examples(100)
def test_a_law_cut_to_the_targets_tokens_is_exact_and_others_are_not(seed: int, order: list[int]) -> None:
    """Two biases that are put in on purpose: a law with tokens that the target lacks, and one that was cut without
    being renormalised."""
    dice = np.random.default_rng(seed)
    names, shaping = np.array(order, np.int64), Shaping(SamplingParams(temperature=1.0))
    p = law(dice.normal(size=SIZE).astype(np.float32), shaping, ())
    logits = dice.normal(size=len(names)).astype(np.float32)
    q = Head(SIZE, names).law(logits, shaping, ())
    truth = p.at(np.arange(SIZE))
    assert np.abs(one_token(p, q, q) - truth).max() < 1e-12
    whole = uncut(names, logits, shaping)
    if np.maximum(whole.at(p.ids) - p.probabilities, 0).sum() > 0.01:  # else nothing is refused, and nothing biased
        assert np.abs(one_token(p, whole, whole) - truth).max() > 1e-5
    unnormalised = Law(q.ids, whole.log_p[:SIZE])
    if np.abs(p.probabilities - q.probabilities).max() > 0.05:
        assert np.abs(one_token(p, q, unnormalised) - truth).max() > 1e-5
