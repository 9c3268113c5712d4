"""Ratio and block through the whole engine: another text, the same law.

The target's law hangs on two tokens, so every token of a long text is one more draw from a known law: how often each
token follows each pair is held against it. Seeds are fixed, so these tests cannot fail by chance; and each is shown
to find a bias that is put in on purpose.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.core.noise import Stream, stream_key, uniform
from paceline.core.sampling import Shaping, law
from paceline.core.types import Rule, SamplingParams, SpeculationParams
from paceline.core.verify import Randomness

from .rig import Known, ask, make, model

TOKENS, TEXT, BATCH = 6, 40, 64
TARGET = Known(TOKENS, order=2, spread=0.7, seed=21)
SHAPED = {"temperature": 0.8, "top_p": 0.93, "top_k": 5, "logit_bias": {0: 0.7, 3: -0.5}}
FAIR, BIASED = 0.01, 1e-6
"""Of the tests that should pass the least probable one, after Holm's correction; of the others the most."""

Triples = Counter[tuple[int, ...]]


def sample(rule: Rule, requests: int = 256, noise: float = 0.6, length: int = 3, **given: Any) -> Triples:
    """How often which three tokens stand in a row."""
    seen: Triples = Counter()
    verified = 0
    rig = make(
        {"model": model(TARGET, noise=noise, blocks=20 * BATCH, **given.pop("drafter", {}))},
        TARGET,
        length=length,
        sequences=BATCH,
        blocks=16 * BATCH,
        prefill_rows=2000,
        eos=(),
    )
    engine = rig.engine  # its state is checked elsewhere; here it only has to be quick
    wish = SpeculationParams(rule=rule)
    dice = random.Random(rule)
    for _ in range(requests):
        prompt = dice.choices(range(TOKENS), k=2)
        engine.add(ask(prompt, wish, seed=dice.getrandbits(64), max_tokens=TEXT, **{"temperature": 1.0} | given))
    while not engine.idle:
        for event in engine.step():
            if event.finish_reason:
                done = engine.completion(event.request_id)
                verified += done.speculation.verified
                seen.update(zip(done.token_ids, done.token_ids[1:], done.token_ids[2:], strict=False))
    assert verified > requests * TEXT / 2
    return seen


def p_value(seen: Triples, **given: Any) -> float:
    """Pearson's test of every pair's successors, rare ones of a pair in one cell."""
    shaping = Shaping(SamplingParams(**{"temperature": 1.0} | given))
    statistic, freedom = 0.0, 0
    for pair in {triple[:2] for triple in seen}:
        observed = np.array([seen[*pair, token] for token in range(TOKENS)], float)
        p = law(TARGET.logits(pair), shaping, ()).at(np.arange(TOKENS))
        assert not observed[p == 0].any()
        expected = p * observed.sum()
        common = expected >= 5
        cells = [*zip(observed[common], expected[common], strict=True), (observed[~common].sum(), expected[~common].sum())]
        cells = [(o, e) for o, e in cells if e > 1]
        statistic += sum((o - e) ** 2 / e for o, e in cells)
        freedom += max(0, len(cells) - 1)
    return float(stats.chi2.sf(statistic, freedom))


def holm(values: Sequence[float]) -> float:
    """The least p-value of several tests, corrected for their number."""
    return min(1.0, min(values) * len(values))


def bias(how: str, patch: pytest.MonkeyPatch) -> None:
    """Let two numbers that should be independent be the same."""

    def accept(self: Randomness, start: int, depth: int) -> float:
        key = stream_key(self.seed, start, Stream.DRAFT, depth)
        return float(uniform(key, np.zeros(1, np.int64))[0])

    if how == "draft noise is target noise":
        patch.setattr(Randomness, "draft", lambda self, start, depth: self.target(start + depth))
    if how == "accept noise is draft noise":
        patch.setattr(Randomness, "accept", accept)
    if how == "every draw is accepted half the time":
        patch.setattr("paceline.core.verify.acceptance", lambda p, q, token: 0.5)
        patch.setattr("paceline.core.verify.block_acceptance", lambda weights, i, p, q: 0.5)


BIASES = ("draft noise is target noise", "accept noise is draft noise", "every draw is accepted half the time")


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_the_law_is_the_targets(rule: Rule) -> None:
    plain, shaped = sample(rule), sample(rule, length=5, noise=1.0, **SHAPED)
    assert holm([p_value(plain), p_value(shaped, **SHAPED)]) > FAIR


@pytest.mark.parametrize("how", BIASES)
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_bias_is_found_out(rule: Rule, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bias(how, monkeypatch)
    assert p_value(sample(rule)) < BIASED


def test_a_lossy_rule_is_found_out() -> None:
    assert p_value(sample("typical", 64)) < BIASED


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("length", [1, 2, 4, 8])
@pytest.mark.parametrize("rule", ["ratio", "block", "coupled"])
def test_the_law_is_the_targets_with_good_drafters_and_bad(rule: Rule, length: int, noise: float) -> None:
    seen = sample(rule, 1024, noise, length), sample(rule, 1024, noise, length, **SHAPED)
    assert holm([p_value(found, **given) for found, given in zip(seen, ({}, SHAPED), strict=True)]) > FAIR


@pytest.mark.long
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_drafter_of_fewer_tokens_draws_no_other_law(rule: Rule) -> None:
    for given in ({}, SHAPED):
        seen = sample(rule, 1024, drafter={"vocabulary": np.array([0, 1, 3, 4])}, **given)
        assert p_value(seen, **given) > FAIR
