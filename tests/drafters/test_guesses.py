"""What logits guess, against sorting everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.sampling import law
from paceline.core.types import SamplingParams
from paceline.drafters.guesses import APART, best, draw, follows_target
from paceline.drafters.shaped import Head
from tests.core.strategies import examples, logits, requests

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
    np.testing.assert_allclose(chances, sorted(spread / spread.sum(), reverse=True)[:width], rtol=1e-9, atol=1e-300)
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
