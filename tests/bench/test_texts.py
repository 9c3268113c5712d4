"""Where answers part, and by how much plain decoding preferred its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.bench.texts import Parting, parting

OFF = SpeculationParams("off")


@pytest.fixture(scope="module")
def llm():
    return LLM("toy:ngram", keep_costs=False)


def answered(llm, **sampling):
    request = llm.request("abc", SamplingParams(**({"max_tokens": 20, "ignore_eos": True} | sampling)), OFF)
    return request, llm.run([request])[0]


def changed(done, at, token):
    ids = list(done.token_ids)
    ids[at] = token
    return replace(done, token_ids=tuple(ids))


def test_equal_answers_do_not_part(llm):
    request, plain = answered(llm)
    assert parting(llm, request, plain, plain) is None


@pytest.mark.parametrize("at", [0, 7, 19])
def test_the_gap_is_that_of_the_logits_where_they_part(llm, at):
    request, plain = answered(llm)
    _, told = answered(llm, logprobs=3)
    [(best, first), (second, next_one), _] = told.logprobs[at].top
    assert best == plain.token_ids[at]
    found = parting(llm, request, plain, changed(plain, at, second))
    assert found.position == at and found.gap == pytest.approx(first - next_one, abs=1e-4)
    assert found.is_near_tie(first - next_one + 1e-3) and not found.is_near_tie(first - next_one - 1e-2)


def test_a_drawn_token_has_its_noise_in_the_gap(llm):
    request, plain = answered(llm, temperature=1.0, seed=11)
    gaps = []
    for other in range(97, 123):
        if other != plain.token_ids[5]:
            gaps.append(parting(llm, request, plain, changed(plain, 5, other)).gap)
    known = np.array([gap for gap in gaps if gap is not None])
    assert len(known) and (known >= 0).all(), "the token that was drawn won"


def test_one_that_ends_early_parts_at_its_end(llm):
    request, plain = answered(llm)
    short = replace(plain, token_ids=plain.token_ids[:5])
    assert parting(llm, request, plain, short) == parting(llm, request, short, plain) == Parting(5, None)
    assert not Parting(5, None).is_near_tie()
