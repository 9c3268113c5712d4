"""Ratio and block give the target's law: by enumeration to 1e-12, by chi-square, and not when broken on purpose."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from paceline.core import tree
from paceline.core.law import Law
from paceline.core.tree import Draft
from paceline.core.verify import Randomness, acceptance, block_acceptance, block_weights, verify

from . import reference
from .strategies import World, examples, worlds

EXACT = 1e-12


def spread(found: dict, kept: tuple[int, ...], law: Law, chance: float) -> None:
    for token, p in zip(law.ids.tolist(), law.probabilities.tolist(), strict=True):
        found[(*kept, token)] = found.get((*kept, token), 0.0) + chance * p


def ratio_outcomes(draft: Draft, p: list[Law], chance: float, found: dict) -> None:
    for i, token in enumerate(draft.tokens):
        q = draft.laws[i] or Law.point(token)
        taken = acceptance(p[i], q, token)
        spread(found, draft.tokens[:i], p[i].without(q), chance * (1 - taken))
        chance *= taken
    spread(found, draft.tokens, p[-1], chance)


def block_outcomes(draft: Draft, p: list[Law], chance: float, found: dict) -> None:
    n, weights = len(draft), block_weights(draft, p)
    q = [*(draft.laws[i] or Law.point(token) for i, token in enumerate(draft.tokens)), None]
    taken = [block_acceptance(weights, i, p[i], q[i]) for i in range(1, n + 1)]
    assert all(0 <= h <= 1 for h in taken)
    for outcome in itertools.product([False, True], repeat=n):
        so = math.prod(h if ok else 1 - h for h, ok in zip(taken, outcome, strict=True))
        kept = max((i + 1 for i, ok in enumerate(outcome) if ok), default=0)
        law = p[n] if kept == n else p[kept].without(q[kept], weights[kept])
        spread(found, draft.tokens[:kept], law, chance * so)


def emissions(world: World, rule: str) -> dict[tuple[int, ...], float]:
    """Tokens of one step -> probability, from the functions that verification is made of: every draft with its
    probability under q, every outcome of the accept numbers, every token of the law that the step ends with."""
    found: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(world.vocabulary), repeat=world.depth):
        chance = math.prod(world.q(tokens[:i])[x] for i, x in enumerate(tokens))
        if chance > 0:
            p = [world.p_law(tokens[:i]) for i in range(world.depth + 1)]
            (ratio_outcomes if rule == "ratio" else block_outcomes)(world.draft(tokens), p, chance, found)
    return found


def distance(one: dict, other: dict) -> float:
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


def length_of(emitted: dict) -> float:
    return sum(chance * (len(tokens) - 1) for tokens, chance in emitted.items())


def check_world(world: World) -> None:
    n = world.depth + 1
    plain = reference.plain_law(world.p, world.vocabulary, n)
    lengths = {}
    for rule in ("ratio", "block"):
        emitted = emissions(world, rule)
        assert sum(emitted.values()) == pytest.approx(1, abs=EXACT)
        assert distance(reference.completed(emitted, world.p, world.vocabulary, n), plain) < EXACT
        closed_form = reference.emission_law(world.p, world.q, world.vocabulary, world.depth, rule)
        assert distance(emitted, closed_form) < EXACT
        lengths[rule] = length_of(emitted)
        expected = reference.accepted_length(world.p, world.q, world.vocabulary, world.depth, rule)
        assert lengths[rule] == pytest.approx(expected, abs=EXACT)
    assert lengths["block"] >= lengths["ratio"] - EXACT


@examples(120)
@given(worlds())
def test_the_law_of_the_text_is_the_targets(world):
    check_world(world)


@pytest.mark.long
@examples(3000)
@given(worlds())
def test_the_law_of_the_text_is_the_targets_at_length(world):
    check_world(world)


@examples(60)
@given(worlds(one_hot=True))
def test_deterministic_drafts_are_the_same_under_both_rules(world):
    """And the same as drawing from p and keeping the nodes that carry the draw."""
    ratio, block = emissions(world, "ratio"), emissions(world, "block")
    assert distance(ratio, block) < EXACT
    (drafted,) = [t for t in itertools.product(range(world.vocabulary), repeat=world.depth) if likely(world, t)]
    drawn: dict[tuple[int, ...], float] = {}
    for text, chance in reference.plain_law(world.p, world.vocabulary, world.depth + 1).items():
        same = next((i for i, x in enumerate(drafted) if text[i] != x), world.depth)
        drawn[text[: same + 1]] = drawn.get(text[: same + 1], 0.0) + chance
    assert distance(ratio, drawn) < EXACT


def likely(world: World, tokens: tuple[int, ...]) -> bool:
    return all(world.q(tokens[:i])[x] > 0 for i, x in enumerate(tokens))


def test_block_keeps_more_where_ratio_throws_away():
    """The survey's point: a token that p likes more than q makes up for one before it that p likes less."""
    world = World(2, 2, ((0.25, 0.75),), ((0.5, 0.5),), 0)
    ratio, block = (length_of(emissions(world, rule)) for rule in ("ratio", "block"))
    assert ratio == pytest.approx(0.75 + 0.75**2)
    assert block == pytest.approx(0.75 + 0.625)


def test_equal_models_reject_nothing():
    world = World(3, 3, ((0.2, 0.3, 0.5),), ((0.2, 0.3, 0.5),), 0)
    for rule in ("ratio", "block"):
        assert length_of(emissions(world, rule)) == pytest.approx(3)


def test_disjoint_models_accept_nothing():
    world = World(4, 3, ((0.5, 0.5, 0, 0),), ((0, 0, 0.5, 0.5),), 0)
    for rule in ("ratio", "block"):
        assert length_of(emissions(world, rule)) == 0


# The whole walk with its noise


def shares(*weights: int) -> tuple[float, ...]:
    return tuple(w / sum(weights) for w in weights)


WORLD = World(3, 2, (shares(14, 6, 1), shares(10, 5, 6), shares(2, 7, 12)), (shares(1, 18, 3), shares(13, 5, 4)), 10)
START = 40


def step(rule: str, seed: int, draw=Randomness.draft, prune=lambda draft: draft) -> tuple[int, ...]:
    """Draft, verify, and go on plainly to a full length."""
    noise = Randomness(seed)
    tokens: tuple[int, ...] = ()
    for i in range(WORLD.depth):
        tokens += (WORLD.q_law(tokens).draw(draw(noise, START, i)),)
    draft = prune(WORLD.draft(tokens))
    verdict = verify(rule, draft, lambda row, said: WORLD.p_law(said), noise, START)
    return (*(draft.tokens[n] for n in verdict.path), verdict.token)


def finish(text: tuple[int, ...], seed: int, length: int) -> tuple[int, ...]:
    while len(text) < length:
        text += (WORLD.p_law(text).draw(Randomness(seed).target(START + len(text))),)
    return text[:length]


def p_value(seen: list, law: dict) -> float:
    counts = Counter(seen)
    assert not [text for text in counts if law.get(text, 0) == 0], "a text that cannot be"
    keys = [text for text, chance in law.items() if chance * len(seen) >= 5]
    rare = [text for text, chance in law.items() if 0 < chance * len(seen) < 5]
    observed = [*(counts[k] for k in keys), sum(counts[k] for k in rare)]
    expected = [*(law[k] * len(seen) for k in keys), sum(law[k] * len(seen) for k in rare)]
    if not rare:
        observed, expected = observed[:-1], expected[:-1]
    return stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue


def test_the_test_knows_a_wrong_law():
    law = {(0,): 0.5, (1,): 0.5}
    assert p_value([(0,)] * 1000 + [(1,)] * 1010, law) > 0.5
    assert p_value([(0,)] * 1000 + [(1,)] * 1500, law) < 1e-6


def check_walk(rule: str, seeds: range) -> None:
    emitted = [step(rule, seed) for seed in seeds]
    assert p_value(emitted, reference.emission_law(WORLD.p, WORLD.q, 3, 2, rule)) > 1e-3
    texts = [finish(text, seed, 3) for text, seed in zip(emitted, seeds, strict=True)]
    assert p_value(texts, reference.plain_law(WORLD.p, 3, 3)) > 1e-3


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_the_walk_follows_the_law(rule):
    check_walk(rule, range(6000))


@pytest.mark.long
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_the_walk_follows_the_law_at_length(rule):
    check_walk(rule, range(10**6, 10**6 + 60_000))


def biased(rule: str, length: int, seeds: int = 4000, **how) -> float:
    """The p-value of the first `length` tokens against the target's law."""
    texts = [finish(step(rule, seed, **how), seed, length) for seed in range(seeds)]
    return p_value(texts, reference.plain_law(WORLD.p, 3, length))


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_negative_control_noise_shared_by_draft_and_residual(rule):
    """Where the draft is rejected, its token had the highest noise, and the residual would see that noise again."""
    assert biased(rule, 1, 10_000, draw=lambda noise, start, depth: noise.target(start + depth)) < 1e-6


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_negative_control_pruning_a_sampled_token_by_its_own_probability(rule):
    """The draft then says nothing of the tokens that q was unsure of, and p is drawn from afresh for those only."""

    def prune(draft: Draft) -> Draft:
        unsure = [i for i, token in enumerate(draft.tokens) if draft.laws[i].prob(token) < 0.35]
        return tree.truncate(draft, unsure[0] if unsure else len(draft))

    assert biased(rule, 2, prune=prune) < 1e-6


def test_negative_control_residual_of_block_without_its_weight(monkeypatch):
    """(p − q)+ in place of (w · p − q)+: the residual of ratio under the acceptance of block."""
    without = Law.without
    monkeypatch.setattr(Law, "without", lambda self, other, scale=1.0: without(self, other))
    assert biased("block", 2, 10_000) < 1e-6
    plain = reference.plain_law(WORLD.p, 3, 3)
    assert distance(reference.completed(emissions(WORLD, "block"), WORLD.p, 3, 3), plain) > 1e-3


def test_positive_control_pruning_that_looks_at_earlier_tokens_only():
    """Stopping by what came before the token is free: whether a draft goes on may hang on anything but the token."""

    def prune(draft: Draft) -> Draft:
        return tree.truncate(draft, 1 if draft.tokens[0] == 1 else 2)

    assert biased("ratio", 3, prune=prune) > 1e-3
    assert biased("block", 3, prune=prune) > 1e-3
