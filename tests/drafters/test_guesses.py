"""What logits guess, against sorting everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.rows import HostRow
from paceline.core.sampling import RowChoice, law
from paceline.core.types import SamplingParams
from paceline.drafters.guesses import APART, best, draw, follows_target
from paceline.drafters.shaped import Head
from tests.core.strategies import examples, logits, narrowed, requests

from .views import View

VOCAB = 12


def view(shaping: Any, output: list[int], rule: Any) -> View:
    seq = View([1, 2, 3], params=shaping.params, rule=rule)
    seq.shaping = shaping
    seq.tokens += output
    return seq


@given(logits(VOCAB), requests(VOCAB), st.sampled_from(["coupled", "ratio"]), st.integers(1, 5), st.data())
@examples(200)
def test_the_best_are_the_highest_by_law_and_noise(
    some: Any, request: Any, rule: Any, width: int, data: st.DataObject
) -> None:
    shaping, output = request
    names = np.array(data.draw(st.permutations(range(VOCAB))), np.int64)[: len(some)]
    seq, drafted = view(shaping, output, rule), data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
    tokens, chances = best(Head(VOCAB, names), some, seq, drafted, width)
    temperature = shaping.params.temperature
    plain = shaping.params if temperature else replace(shaping.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    whole = np.full(VOCAB, -np.inf, np.float32)
    whole[names] = some
    q = law(whole, replace(shaping, params=plain), [*output, *drafted])
    noisy = temperature > 0 and rule == "coupled"
    scores = q.log_p + (seq.noise.target(len(seq.tokens) + len(drafted))(q.ids) if noisy else 0)
    ranked = sorted(zip(-scores, q.ids.tolist(), strict=True))[:width]
    assert tokens == [token for _, token in ranked]
    spread = np.exp((scores - scores.max()) * (temperature or 1) / APART)
    near = {"rtol": 1e-9, "atol": 1e-300} if temperature else {"rtol": 1e-4, "atol": 1e-35}  # float32 will do there
    np.testing.assert_allclose(chances, sorted(spread / spread.sum(), reverse=True)[:width], **near)
    assert len(set(tokens)) == len(tokens) and set(tokens) <= set(names.tolist())


@given(logits(VOCAB), requests(VOCAB), st.sampled_from(["coupled", "typical", "ratio", "block"]))
@examples(150)
def test_a_draw_is_of_the_law_with_the_rules_noise(some: Any, request: Any, rule: Any) -> None:
    shaping, output = request
    seq, head = view(shaping, output, rule), Head(VOCAB, np.arange(len(some), dtype=np.int64))
    drawn = draw(head, some, seq, [4, 5])
    q = head.law(some, shaping, [*output, 4, 5])
    start = len(seq.tokens)
    noise = seq.noise.target(start + 2) if follows_target(rule) else seq.noise.draft(start, 2)
    assert drawn.token == q.draw(noise)
    assert (drawn.law is None) == follows_target(rule)
    if drawn.law is not None:
        np.testing.assert_array_equal(drawn.law.ids, q.ids)
    assert 0 < drawn.confidence <= 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_confidence_of_a_draw_says_nothing_of_its_token(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    some = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    head = Head(3, np.arange(3, dtype=np.int64))
    found = [draw(head, some, View([1], params=params, rule="ratio", seed=seed), []) for seed in range(40)]
    assert len({drawn.token for drawn in found}) == (3 if temperature else 1)
    [sure] = {drawn.confidence for drawn in found}
    assert sure == pytest.approx(0.75 if temperature else 0.5)


@given(logits(VOCAB), requests(VOCAB), st.permutations(range(VOCAB)), st.integers(1, 4))
@examples(200)
def test_of_unlikely_tokens_nothing_is_guessed(some: Any, request: Any, order: list[int], width: int) -> None:
    """Whatever the order of the columns: likely tokens are ranked as they would be among all, with their own noise."""
    shaping, output = request
    head = Head(VOCAB, np.array(order[: len(some)], np.int64))
    seq = view(shaping, output, "coupled")
    with narrowed():
        near = head.near(some, shaping, output).ids if shaping.params.temperature else head.ids
        tokens, chances = best(head, some, seq, [], width)
    whole, _ = best(head, some, seq, [], VOCAB)
    assert tokens == [token for token in whole if token in near][:width]
    assert all(0 <= chance <= 1 for chance in chances) and chances == sorted(chances, reverse=True)


@given(logits(VOCAB), st.integers(0, 1000), st.sampled_from([0.7, 1.2]))
@examples(200)
def test_a_drafter_with_the_targets_logits_is_right_unless_an_unlikely_token_comes(
    some: Any, seed: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature)
    seq = View([1, 2, 3], params=params, seed=seed)
    with narrowed():
        near = HostRow(some).near(temperature)
        token = RowChoice(HostRow(some), seq.shaping, ()).draw(seq.noise.target(3))
        guess = draw(Head(len(some), np.arange(len(some), dtype=np.int64)), some, seq, [])
    assert guess.token in near.ids
    assert (guess.token == token) is (token in near.ids)


@given(logits(VOCAB), st.sampled_from(["ratio", "block"]), st.integers(0, 1000))
@examples(100)
def test_a_law_that_is_kept_is_the_one_that_was_drawn_from(some: Any, rule: Any, seed: int) -> None:
    seq = View([1, 2, 3], params=SamplingParams(temperature=1.2), rule=rule, seed=seed)
    head = Head(len(some), np.arange(len(some), dtype=np.int64))
    with narrowed():
        near, drawn = HostRow(some).near(1.2), draw(head, some, seq, [])
    assert drawn.law is not None
    np.testing.assert_array_equal(drawn.law.ids, near.ids)
    assert drawn.law.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert np.ptp(drawn.law.log_p - near.log_p) < 1e-9
    assert drawn.token == drawn.law.draw(seq.noise.draft(3, 0))
