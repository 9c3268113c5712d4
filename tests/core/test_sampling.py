"""From logits to laws, against a dense sampler that works one token at a time."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import sampling
from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow
from paceline.core.sampling import RowChoice, Shaping, law, likely, logprob, shape
from paceline.core.types import SamplingParams

from . import reference
from .strategies import examples, logits, narrowed, requests

FLOOR = -math.inf
UNSHAPED = {
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
}


def shaping(prompt=(), ending=(), bad=(), **params) -> Shaping:
    return Shaping(SamplingParams(**{"temperature": 1.0, **params}), prompt, ending, bad)


def dense(logits, shaping, output=()) -> list[float]:
    logits = np.array(logits, np.float32)
    return law(logits, shaping, output).at(np.arange(len(logits), dtype=np.int64)).tolist()


def agrees(row, request, output) -> None:
    before = row.copy()
    found = law(row, request, output)
    expected = reference.dense_law(row.tolist(), request, output)
    assert found.at(np.arange(len(row), dtype=np.int64)) == pytest.approx(expected, abs=1e-12)
    assert (np.diff(found.ids) > 0).all()
    assert np.isfinite(found.log_p).all()
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert np.array_equal(row, before), "the runner's logits are not ours to change"


@examples(600)
@given(st.data())
def test_law_equals_the_reference(data):
    row = data.draw(logits())
    agrees(row, *data.draw(requests(len(row))))


@pytest.mark.long
@examples(2000)
@given(st.data())
def test_law_equals_the_reference_at_length(data):
    row = data.draw(logits(30))
    agrees(row, *data.draw(requests(len(row))))


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0], ids=["equal", "flat", "usual", "sharp"])
def test_large_vocabularies(spread, top_p):
    """Flat laws need a nucleus of thousands, far beyond the first guess of it."""
    row = np.random.default_rng(1).normal(scale=spread, size=10_000).astype(np.float32)
    agrees(row, shaping(top_p=top_p, temperature=0.8), ())
    agrees(row, shaping(top_p=top_p, top_k=3000, min_p=1e-3), ())


# What a draw reads


@examples(400)
@given(st.data(), st.booleans(), st.integers(0, 2**32))
def test_a_draw_is_of_the_law_as_it_is_where_all_tokens_are_near_or_some_are_cut_off(data, narrow, seed):
    row = data.draw(logits(20))
    request, output = data.draw(requests(len(row)))
    noise, p = TargetNoise(seed, 3), request.params
    cut = p.temperature == 0 or p.top_p < 1 or p.min_p > 0 or 0 < p.top_k < len(row)
    choice = RowChoice(HostRow(row), request, output)
    with narrowed() if narrow and cut else nullcontext():
        assert choice.draw(noise) == law(row, request, output).draw(noise)
    np.testing.assert_array_equal(choice.law().log_p, law(row, request, output).log_p)


@examples(600)
@given(st.data(), st.sampled_from([0.0, 1.0, 3.0]), st.integers(1, 8), st.integers(1, 20))
def test_what_is_likely_of_a_law_that_is_cut_off_is_the_law(data, reach, most, wide):
    """The same tokens in the same order, however few of them were near."""
    row = data.draw(logits(20))
    request, _ = data.draw(requests(len(row)))
    p = replace(request.params, temperature=request.params.temperature or 1.0)
    expected = law(row, Shaping(replace(p, **UNSHAPED)), ())
    with narrowed(reach, most), mock.patch.object(sampling, "_WIDE", wide):
        found = likely(HostRow(row), p)
    if p.top_p == 1 and p.min_p == 0 and not 0 < p.top_k < len(row):
        assert set(found.ids.tolist()) <= set(expected.ids.tolist())
        return
    assert found.ids.tolist() == expected.ids.tolist()
    assert np.exp(found.log_p) == pytest.approx(expected.probabilities, abs=1e-6)
    assert found.tail == FLOOR


@pytest.mark.parametrize("params", [{"top_p": 0.5}, {"top_p": 0.99}, {"min_p": 0.3}, {"min_p": 1e-6}, {"top_k": 3}])
@pytest.mark.parametrize("spread", [0.0, 0.01, 2.0, 6.0], ids=["equal", "flat", "usual", "sharp"])
def test_what_is_likely_of_a_large_law(spread, params):
    row = np.random.default_rng(2).normal(scale=spread, size=20_000).astype(np.float32)
    p = SamplingParams(temperature=0.8, **params)
    expected = law(row, Shaping(p), ())
    for wide in (2500, 32_768):
        with mock.patch.object(sampling, "_WIDE", wide):
            found = likely(HostRow(row), p)
        assert found.ids.tolist() == expected.ids.tolist()
        assert np.exp(found.log_p) == pytest.approx(expected.probabilities, abs=1e-6)


def test_many_that_are_highest_at_a_tiny_temperature():
    row = np.repeat(np.array([1, 0], np.float32), 3000)
    assert likely(HostRow(row), SamplingParams(temperature=5e-324, top_p=0.9)).ids.tolist() == list(range(3000))


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"min_p": 0.3}, {"top_p": 0.99, "min_p": 0.01}])
def test_one_token_that_is_nearly_all_takes_no_second_look(params, monkeypatch):
    """Of a sure law a single token is near, and no other can be left."""
    monkeypatch.setattr(sampling, "_widely", lambda *given: pytest.fail("looked further"))
    row = np.zeros(5000, np.float32)
    row[9] = 20
    assert likely(HostRow(row), SamplingParams(temperature=1.0, **params)).ids.tolist() == [9]


def test_likely_tokens_are_read_of_a_row_as_it_is_unless_a_parameter_changes_it():
    class Far(HostRow):
        def whole(self):
            raise AssertionError("fetched")

    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    noise = TargetNoise(1, 2)
    for params in ({}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 0.0}):
        RowChoice(Far(row), shaping(**params), ()).draw(noise)
    logprob(Far(row), 2, 3)
    for choice in (
        RowChoice(Far(row), shaping(logit_bias={0: 1.0}), ()).draw,
        lambda _: RowChoice(Far(row), shaping(), ()).law(),
    ):
        with pytest.raises(AssertionError, match="fetched"):
            choice(noise)


@examples(200)
@given(logits(20), st.floats(0.01, 0.999), st.integers(1, 25))
def test_nucleus_does_not_hang_on_its_guess(row, top_p, guess):
    whole = law(row, shaping(), ())
    ids, log_p = sampling._nucleus(whole.ids, whole.log_p, top_p, guess)
    all_ids, all_log_p = sampling._nucleus(whole.ids, whole.log_p, top_p)
    assert np.array_equal(ids, all_ids)
    assert np.array_equal(log_p, all_log_p)


def test_nucleus_sorts_only_what_it_needs(monkeypatch):
    """A peaked law of 150,000 tokens sorts 512 of them; a flat one grows the guess sixteenfold."""
    sorted_lengths = []
    sort = np.sort
    monkeypatch.setattr(np, "sort", lambda values: sorted_lengths.append(len(values)) or sort(values))
    peaked = np.zeros(150_000, np.float32)
    peaked[5] = 30
    law(peaked, shaping(top_p=0.9), ())
    assert sorted_lengths == [512]
    law(np.zeros(150_000, np.float32), shaping(top_p=0.9), ())
    assert sorted_lengths == [512, 512, 8192, 131_072, 150_000]


def test_nucleus_whose_mass_is_lost_to_rounding_keeps_all():
    ids, log_p = np.arange(3), np.log([0.5, 0.3, 0.2 - 1e-9])
    assert sampling._nucleus(ids, log_p, 1 - 1e-12)[0].tolist() == [0, 1, 2]


def test_greedy_is_the_first_highest_token():
    found = law(np.array([1, 3, 3, 2], np.float32), shaping(temperature=0.0), ())
    assert (found.ids.tolist(), found.probabilities.tolist()) == ([1], [1.0])


def test_greedy_ignores_the_truncations():
    assert dense([1, 3, 2], shaping(temperature=0.0, top_k=2, top_p=0.1, min_p=1.0)) == [0, 1, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30])
def test_tiny_temperatures_are_greedy_with_ties_shared(temperature):
    assert dense([1, 3, -3, 3, FLOOR], shaping(temperature=temperature, top_p=0.9)) == pytest.approx(
        [0, 0.5, 0, 0.5, 0]
    )


def test_huge_temperatures_are_uniform():
    assert dense([1, 3, FLOOR, 90], shaping(temperature=1e308)) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_temperature_divides_logits():
    assert dense([0, 1], shaping(temperature=0.5)) == pytest.approx([1 / (1 + math.e**2), 1 / (1 + math.e**-2)])


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [1, 2, 3]),  # a tie with the last one stays
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.01}, [2]),
        ({"top_p": 0.66}, [1, 2, 3]),
        ({"top_p": 0.999}, [0, 1, 2, 3, 4]),
        ({"min_p": 1.0}, [2]),
        ({"min_p": 0.3}, [1, 2, 3]),
        ({"min_p": 0.4}, [2]),
        ({"min_p": 1e-9}, [0, 1, 2, 3, 4]),
        ({"top_k": 3, "top_p": 0.57}, [2]),  # after top-k the first has .576 of the mass, before it .540
        ({"top_k": 3, "top_p": 0.58}, [1, 2, 3]),
    ],
)
def test_truncations(params, kept):
    found = law(np.array([0, 1, 2, 1, -1], np.float32), shaping(**params), ())
    assert found.ids.tolist() == kept


def test_truncated_logits_never_come_back():
    found = law(np.array([FLOOR, 1, FLOOR, 0], np.float32), shaping(top_k=3, top_p=0.9999, min_p=0.0), ())
    assert found.ids.tolist() == [1, 3]


def test_truncations_that_are_off_keep_the_least_probable():
    """The mass of the first token alone rounds to 1, which is not a reason to drop the others."""
    assert law(np.array([0, -40, -50], np.float32), shaping(top_p=1.0), ()).ids.tolist() == [0, 1, 2]


def test_min_p_counts_from_the_most_probable():
    p = np.array([0.5, 0.26, 0.24])
    assert law(np.log(p).astype(np.float32), shaping(min_p=0.5), ()).ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "touches"),
    [
        ({}, False),
        ({"top_p": 0.5, "top_k": 3, "min_p": 0.1, "prompt": (1,), "ending": (1,)}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"logit_bias": {1: 1.0}}, True),
        ({"bad": ((1,),)}, True),
        ({"min_tokens": 1}, True),
    ],
)
def test_touches_logits(given, touches):
    assert shaping(**given).touches_logits is touches


def test_repetition_penalty_covers_prompt_and_output():
    row = np.array([4, -4, 4, -4, 4], np.float32)
    found = shape(row, shaping(prompt=(0, 1, 0), repetition_penalty=2.0), (2, 3, 2))
    assert found.tolist() == [2, -8, 2, -8, 4]
    assert row.tolist() == [4, -4, 4, -4, 4]
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_shaping_is_done_in_float32(dtype):
    """Whatever a runner returns: half precision could not hold the largest bias."""
    found = shape(np.array([1, 2], dtype), shaping(logit_bias={0: -1e30}), ())
    assert found.dtype == np.float32
    assert found.tolist() == [np.float32(-1e30), 2]


def test_presence_and_frequency_cover_only_the_output():
    row = np.zeros(4, np.float32)
    both = shaping(prompt=(3, 3), presence_penalty=0.5, frequency_penalty=0.25)
    assert shape(row, both, (0, 1, 1)).tolist() == [-0.75, -1.0, 0, 0]
    assert shape(row, shaping(presence_penalty=0.5), (0, 1, 1)).tolist() == [-0.5, -0.5, 0, 0]
    assert shape(row, shaping(frequency_penalty=0.25), (0, 1, 1)).tolist() == [-0.25, -0.5, 0, 0]
    assert shape(row, both, ()).tolist() == [0, 0, 0, 0]


def test_penalties_follow_the_path():
    """A row further down a draft sees the tokens of its own path, as plain decoding would."""
    request = shaping(frequency_penalty=1.0)
    after_one, after_two = (dense([0, 0], request, output) for output in [(0,), (0, 0)])
    assert after_one == pytest.approx([1 / (1 + math.e), 1 / (1 + 1 / math.e)])
    assert after_two == pytest.approx([1 / (1 + math.e**2), 1 / (1 + math.e**-2)])


def test_bias_comes_after_penalties():
    request = shaping(repetition_penalty=2.0, logit_bias={0: 4.0, 2: -1.0})
    assert shape(np.zeros(3, np.float32) + 2, request, (0,)).tolist() == [5, 2, 1]


def test_infinite_bias_bans():
    assert dense([9, 1, 1], shaping(logit_bias={0: FLOOR})) == [0, 0.5, 0.5]
    assert dense([9, 1, 1], shaping(logit_bias={0: FLOOR}, temperature=0.0)) == [0, 1, 0]
    assert dense([9, 1], shaping(logit_bias={0: FLOOR, 1: FLOOR})) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("size", [1e30, -1e30])
def test_the_largest_parameters_keep_the_law_finite(size):
    request = shaping(
        prompt=(0, 1),
        repetition_penalty=abs(size),
        presence_penalty=size,
        frequency_penalty=size,
        logit_bias={0: size, 2: size},
        top_p=0.9,
    )
    agrees(np.array([30, -30, 0, 5], np.float32), request, (1, 1, 2))


def test_min_tokens_ban_the_ending():
    request = shaping(ending=frozenset({0, 2}), min_tokens=2)
    assert dense([5, 0, 5, 0], request, ()) == [0, 0.5, 0, 0.5]
    assert dense([5, 0, 5, 0], request, (1,)) == [0, 0.5, 0, 0.5]
    assert min(dense([5, 0, 5, 0], request, (1, 1))) > 0
    assert min(dense([5, 0, 5, 0], shaping(ending=(0, 2)), ())) > 0


BAD = ((3,), (0, 1), (0, 0, 2))


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ((), {3}),
        ((1,), {3}),
        ((0,), {3, 1}),
        ((1, 0), {3, 1}),
        ((0, 0), {3, 1, 2}),
        ((1, 0, 0), {3, 1, 2}),
        ((0, 0, 1), {3}),
        ((0, 1, 0), {3, 1}),
    ],
)
def test_bad_words_follow_the_path(output, banned):
    found = law(np.zeros(5, np.float32), shaping(bad=BAD), output)
    assert set(range(5)) - set(found.ids.tolist()) == banned


def test_bad_words_look_at_the_output_only():
    assert min(dense([0, 0], shaping(prompt=(0,), bad=((0, 1),)), ())) > 0


def test_a_ban_on_everything_is_ignored():
    everything = shaping(bad=((0,), (1,), (2,)))
    assert dense([0, 0, FLOOR], everything) == pytest.approx([0.5, 0.5, 0])
    assert dense([0, 0, FLOOR], shaping(bad=((0,), (1,)))) == pytest.approx([0.5, 0.5, 0]), "the rest is -inf already"
    assert dense([0, 0], shaping(bad=((0,),), ending=(1,), min_tokens=1)) == pytest.approx([0.5, 0.5])
    assert dense([0, 0, 0], shaping(bad=((0,),), ending=(1,), min_tokens=1)) == [0, 0, 1]


@examples(200)
@given(logits(), st.integers(0, 15), st.data())
def test_logprob(row, top, data):
    token = data.draw(st.integers(0, len(row) - 1))
    found = logprob(HostRow(row), token, top)
    best = float(row.max())
    total = best + math.log(math.fsum(math.exp(float(x) - best) for x in row))
    ranked = sorted(range(len(row)), key=lambda t: (-row[t], t))[:top]
    assert found.token_id == token
    assert found.logprob == pytest.approx(float(row[token]) - total, abs=1e-12)
    assert [t for t, _ in found.top] == ranked
    assert [x for _, x in found.top] == pytest.approx([float(row[t]) - total for t in ranked], abs=1e-12)


def test_logprob_lists_the_greedy_token_first():
    """Also among ties: who reads the list must find in it the token that was drawn."""
    row = np.zeros(1000, np.float32)
    row[[700, 400]] = 1
    greedy = int(law(row, shaping(temperature=0.0), ()).ids[0])
    assert [t for t, _ in logprob(HostRow(row), greedy, 3).top] == [400, 700, 0]
    assert logprob(HostRow(row), greedy, 0).top == ()
    assert all(type(t) is int and type(x) is float for t, x in logprob(HostRow(row), greedy, 3).top)


def test_logprob_is_before_any_shaping():
    assert logprob(HostRow(np.array([0, 0], np.float32)), 1, 0).logprob == pytest.approx(-math.log(2))
