"""Ratio and block through the whole engine: another text, the same law.

The target's law hangs on two tokens, so every token of a long text is one more draw from a known law: how often each
token follows each pair is held against it. Seeds are fixed, so these tests cannot fail by chance; and each is shown
to find a bias that is put in on purpose.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.core.noise import Stream, stream_key, uniform
from paceline.core.sampling import Shaping, law
from paceline.core.types import Rule, SamplingParams, SpeculationParams
from paceline.core.verify import Randomness
from tests.core.strategies import narrowed

from .rig import Known, ask, make, model

TEXT, BATCH = 40, 64
FAIR, BIASED = 0.01, 1e-6
"""Of the tests that should pass the least probable one, after Holm's correction; of the others the most."""
SHAPED = {"temperature": 0.8, "top_p": 0.93, "top_k": 5, "logit_bias": {0: 0.7, 3: -0.5}}


@dataclass(frozen=True, slots=True)
class Turning:
    """A law that the last token turns round."""

    shares: tuple[float, ...]

    @property
    def vocab_size(self) -> int:
        return len(self.shares)

    def logits(self, context: Sequence[int]) -> Any:
        return np.log(np.roll(self.shares, context[-1])).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a drafter."""

    target: Any
    drafter: Any

    def logits(self, seen: tuple[int, ...]) -> Any:
        return self.target.logits(seen)


def toys(noise: float) -> Pair:
    target = Known(vocab_size=6, order=2, spread=0.7, seed=21)
    return Pair(target, replace(target, noise=noise))


TWICE_DRAWN = Pair(Turning((0.351, 0.644, 0.005)), Turning((0.02, 0.427, 0.553)))
"""Noise of a draw that is used again for the residual shows most where that is of a token that the drafter likes, too,
and of one that it does not."""
TWICE_WEIGHED = Pair(Turning((0.173, 0.177, 0.65)), Turning((0.345, 0.386, 0.269)))
"""Noise of a draw that is used again to accept it shows most where much is refused."""

Triples = Counter[tuple[int, ...]]


def sample(rule: Rule, pair: Pair, length: int, requests: int = 192, kept: Any = None, **given: Any) -> Triples:
    """How often which three tokens stand in a row."""
    rig = make(
        {"model": model(pair.drafter, noise=0, blocks=20 * BATCH, vocabulary=kept)},
        pair.target,
        length=length,
        sequences=BATCH,
        blocks=16 * BATCH,
        prefill_rows=2000,
        eos=(),
    )
    engine = rig.engine  # its state is checked elsewhere; here it only has to be quick
    wish, dice = SpeculationParams(rule=rule), random.Random(length)
    for _ in range(requests):
        prompt = dice.choices(range(pair.target.vocab_size), k=2)
        engine.add(ask(prompt, wish, seed=dice.getrandbits(64), max_tokens=TEXT, **{"temperature": 1.0} | given))
    seen: Triples = Counter()
    verified = 0
    while not engine.idle:
        for event in engine.step():
            if event.finish_reason:
                done = engine.completion(event.request_id)
                verified += done.speculation.verified
                seen.update(zip(done.token_ids, done.token_ids[1:], done.token_ids[2:], strict=False))
    assert verified > requests * TEXT / 3
    return seen


def p_value(seen: Triples, pair: Pair, **given: Any) -> float:
    """Pearson's test of what follows each two tokens, the rare in one cell."""
    shaping = Shaping(SamplingParams(**{"temperature": 1.0} | given))
    statistic, freedom, ids = 0.0, 0, np.arange(pair.target.vocab_size)
    for two in {triple[:2] for triple in seen}:
        observed = np.array([seen[*two, token] for token in ids], float)
        p = law(pair.target.logits(two), shaping, ()).at(ids)
        assert not observed[p == 0].any()
        expected = p * observed.sum()
        rare = expected < 5
        cells = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
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
    close, far = toys(noise=0.6), toys(noise=1.0)
    found = [
        p_value(sample(rule, close, 3), close),
        p_value(sample(rule, far, 5, **SHAPED), far, **SHAPED),
        *(p_value(sample(rule, pair, 1, 128), pair) for pair in (TWICE_DRAWN, TWICE_WEIGHED)),
    ]
    assert holm(found) > FAIR


@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
def test_the_law_is_the_targets_where_most_tokens_are_unlikely(rule: Rule) -> None:
    """The drafter then draws from a law without them, and says so."""
    pair = toys(noise=0.6)
    with narrowed(reach=1.0, most=2):
        assert p_value(sample(rule, pair, 3), pair) > FAIR


@pytest.mark.parametrize("how", BIASES)
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_bias_is_found_out(rule: Rule, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bias(how, monkeypatch)
    pair = TWICE_WEIGHED if "accept noise" in how else TWICE_DRAWN
    assert p_value(sample(rule, pair, 1, 128), pair) < BIASED


def test_a_lossy_rule_is_found_out() -> None:
    assert p_value(sample("typical", toys(0.6), 3, 64), toys(0.6)) < BIASED


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("noise", [0.3, 3.0])
@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("rule", ["ratio", "block", "coupled"])
def test_the_law_is_the_targets_with_good_drafters_and_bad(rule: Rule, length: int, noise: float) -> None:
    pair = toys(noise)
    found = [p_value(sample(rule, pair, length, 640, **given), pair, **given) for given in ({}, SHAPED)]
    assert holm(found) > FAIR


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_drafter_of_fewer_tokens_draws_no_other_law(rule: Rule) -> None:
    pair = toys(0.6)
    for given in ({}, SHAPED):
        assert p_value(sample(rule, pair, 3, 640, np.array([0, 1, 3, 4]), **given), pair, **given) > FAIR
