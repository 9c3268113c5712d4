"""Estimates of what is taken: by source, by agreement, in trees, held against processes whose law is known."""

from __future__ import annotations

import random

import pytest

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.governor.acceptance import CERTAIN, Acceptance

RIGHT, WRONG = 7, 8


def chain(name: str, *guesses: int, sure: float = 0.75) -> Draft:
    return Draft.chain(guesses, name, [sure] * len(guesses))


def taught(rate: float, steps: int = 2000, seed: int = 1, **options: float) -> Acceptance:
    """A drafter that is right so often, one token a step."""
    rng, found = random.Random(seed), Acceptance()
    for step in range(steps):
        right = rng.random() < rate
        found.observe(step // 50, chain("a", RIGHT if right else WRONG, **options), (RIGHT, 0))
    return found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_rate_is_learnt(rate: float) -> None:
    found = taught(rate)
    [survival] = found.survivals(10**6, chain("a", 1))
    assert survival == pytest.approx(rate, abs=0.08)
    assert found.ahead(10**6, "a", 1)[-1] == pytest.approx(rate, abs=0.08)
    assert found.calibration_error < 0.06


def test_nothing_is_certain_and_nothing_impossible() -> None:
    assert taught(1.0).survivals(10**6, chain("a", 1)) == [pytest.approx(CERTAIN, abs=0.03)]
    assert 0 < taught(0.0).survivals(10**6, chain("a", 1))[0] < 0.1


def test_a_node_is_seen_only_where_its_parent_was_taken() -> None:
    """Depth 2 is right whenever depth 1 is; counted without censoring it would seem to be right half the time."""
    found = Acceptance()
    for step in range(400):
        first = RIGHT if step % 2 else WRONG
        found.observe(step, chain("a", first, RIGHT), (RIGHT, RIGHT, 0))
    one, two = found.survivals(10**6, chain("a", 1, 1))
    assert one == pytest.approx(0.5, abs=0.1)
    assert two / one > 0.9


def test_agreement_is_worth_what_it_has_been_worth() -> None:
    """Two drafters, each right half the time alone, never wrong together."""
    rng, found = random.Random(2), Acceptance()
    for step in range(1500):
        together = rng.random() < 0.4
        if together:
            draft = tree.merge([chain("a", RIGHT, sure=0.5), chain("b", RIGHT, sure=0.5)])
        else:
            mine, theirs = (RIGHT, WRONG) if rng.random() < 0.5 else (WRONG, RIGHT)
            draft = tree.merge([chain("a", mine, sure=0.5), chain("b", theirs, sure=0.5)])
        found.observe(step, draft, (RIGHT, 0))
    apart = found.survivals(10**6, tree.merge([chain("a", 1, sure=0.5), chain("b", 2, sure=0.5)]))
    [agreed] = found.survivals(10**6, tree.merge([chain("a", 1, sure=0.5), chain("b", 1, sure=0.5)]))
    assert agreed > 0.9
    assert all(0.4 < alone < 0.85 for alone in apart)


def test_a_stranger_s_agreement_is_worth_its_better_half() -> None:
    found = taught(0.9)
    [alone] = found.survivals(10**6, chain("a", 1))
    [both] = found.survivals(10**6, tree.merge([chain("a", 1), chain("new", 1, sure=0.1)]))
    assert both == pytest.approx(alone, abs=0.01)


def test_siblings_do_not_break_a_run() -> None:
    """A drafter that hedges, right with one of two, has been right at every position."""
    hedging, plain = Acceptance(), Acceptance()
    fork = Draft((RIGHT, WRONG), (-1, -1), (0.6, 0.4), ("a", "a"))
    for step in range(300):
        hedging.observe(step // 50, fork, (RIGHT, 0))
        plain.observe(step // 50, chain("a", RIGHT, sure=0.6), (RIGHT, 0))
    assert hedging.ahead(10**6, "a", 1)[-1] == pytest.approx(plain.ahead(10**6, "a", 1)[-1])
    likely, unlikely = hedging.survivals(10**6, fork)
    assert likely > 0.9
    assert unlikely < 0.1


def test_what_is_not_verified_teaches_as_well() -> None:
    """Only what was drafted and what became of the text are looked at."""
    found = Acceptance()
    for step in range(200):
        found.observe(step, chain("a", RIGHT, RIGHT, RIGHT), (RIGHT,))
    deep = found.survivals(10**6, chain("a", 1, 1))
    assert deep[0] > 0.9
    assert deep[1] / deep[0] == pytest.approx(0.75, abs=0.01), "depth 2 was never seen: the drafter's own estimate"


def test_a_change_is_followed() -> None:
    found = taught(0.9, steps=1000)
    for step in range(1000):
        found.observe(10**5 + step // 50, chain("a", WRONG), (RIGHT, 0))
    assert found.survivals(10**6, chain("a", 1))[0] < 0.25


def test_a_request_differs_from_the_rest() -> None:
    found = taught(0.5, steps=1000)
    for _ in range(40):
        found.observe(999, chain("a", RIGHT), (RIGHT, 0))
    assert found.survivals(999, chain("a", 1))[0] > 1.2 * found.survivals(10**6, chain("a", 1))[0]
