"""Estimates of acceptance: what is seen, what is learnt from it, and how quickly it is forgotten."""

from __future__ import annotations

import random

import pytest

from paceline.core.tree import Draft
from paceline.governor import acceptance as module
from paceline.governor.acceptance import CERTAIN, FIRST, REQUESTS, Acceptance

RIGHT, WRONG = 1, 0


def guess(tokens, confidence=0.8, source="a") -> Draft:
    return Draft.chain(tokens, source, [confidence] * len(tokens))


def first(found: Acceptance, request=0, confidence=0.8, source="a") -> float:
    return found.survivals(request, guess([RIGHT], confidence, source))[0]


def test_before_anything_was_seen_the_confidence_is_believed() -> None:
    found = Acceptance()
    assert found.survivals(0, guess([1, 1, 1], 0.5)) == pytest.approx([0.5, 0.25, 0.125])
    assert found.at_depth(0, "a", 3) == pytest.approx(FIRST)
    assert found.at_depth(0, "a", 3, 0.3) == pytest.approx(0.3)
    assert first(found, confidence=1.0) == CERTAIN
    assert first(found, confidence=0.0) > 0
    assert found.calibration_error == 0


def test_always_wrong_with_confidence_one_is_soon_believed_wrong() -> None:
    found = Acceptance()
    for _ in range(20):
        found.observe(0, guess([WRONG] * 4, 1.0), (RIGHT,))
    assert first(found, confidence=1.0) < 0.15


def test_depths_are_seen_only_as_far_as_the_text_went() -> None:
    found = Acceptance()
    for _ in range(50):
        found.observe(0, guess([RIGHT, WRONG, RIGHT]), (RIGHT, RIGHT))
    assert found.at_depth(0, "a", 1) > 0.9
    assert found.at_depth(0, "a", 2) < 0.2
    assert found._counts["a", 3, module.ANY, module.WIDE].seen == 0


def test_what_was_not_verified_teaches_as_well() -> None:
    """The report's tokens are of a plain step; the draft was never in a pass."""
    found = Acceptance()
    before = first(found)
    for _ in range(10):
        found.observe(0, guess([RIGHT] * 3), (RIGHT,))
    assert first(found) > before


def test_branches_are_each_seen() -> None:
    found = Acceptance()
    tree = Draft((WRONG, RIGHT, RIGHT), (-1, -1, 1), (0.5, 0.5, 0.9), ("a", "b", "b"))
    for _ in range(30):
        found.observe(0, tree, (RIGHT, RIGHT, RIGHT))
    assert first(found, confidence=0.5, source="a") < 0.2
    assert found.survivals(0, tree)[2] > 0.8
    assert found.survivals(0, tree)[2] <= found.survivals(0, tree)[1]


def test_a_run_of_right_guesses_raises_the_next_one() -> None:
    """Bursts: half of all guesses are right, in stretches of fifty."""
    found = Acceptance()
    for step in range(600):
        found.observe(0, guess([RIGHT if step // 50 % 2 else WRONG], 0.5), (RIGHT,))
    assert first(found, confidence=0.5) > 0.9
    for _ in range(2):
        found.observe(0, guess([WRONG], 0.5), (RIGHT,))
    assert first(found, confidence=0.5) < 0.3


def test_a_request_differs_from_the_rest() -> None:
    found = Acceptance()
    for _ in range(100):
        found.observe(0, guess([RIGHT]), (RIGHT,))
        found.observe(1, guess([WRONG]), (RIGHT,))
    assert first(found, 0) > first(found, 2) > first(found, 1)
    assert first(found, 0) > 0.8
    assert first(found, 1) < 0.2


def test_what_is_not_asked_any_more_fades_to_what_is_usual() -> None:
    found = Acceptance()
    for _ in range(100):
        found.observe(0, guess([RIGHT]), (RIGHT,))
        found.observe(1, guess([WRONG]), (RIGHT,))
    usual = found.at_depth(2, "a", 1)
    low = found.at_depth(1, "a", 1)
    for _ in range(60):
        found.fade(1, "a")
    assert low < 0.25
    assert found.at_depth(1, "a", 1) == pytest.approx(usual, abs=0.15)
    found.fade(99, "a")


def test_records_of_requests_are_bounded() -> None:
    found = Acceptance()
    for request in range(3 * REQUESTS):
        found.observe(request, guess([RIGHT]), (RIGHT,))
    assert len(found._requests) == REQUESTS
    assert (3 * REQUESTS - 1, "a") in found._requests


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("skew", [1.0, 0.6])
def test_informative_confidences_end_up_calibrated(seed: int, skew: float) -> None:
    """Expected calibration error of at most 5 %, be the drafter honest or overconfident."""
    rng, found = random.Random(seed), Acceptance()
    for step in range(6000):
        sure = [rng.betavariate(1.5, 0.8) for _ in range(3)]
        tokens = [RIGHT if rng.random() < skew * chance else WRONG for chance in sure]
        taken = next((i for i, token in enumerate(tokens) if token == WRONG), 3)
        found.observe(step // 300, Draft.chain(tokens, "a", sure), (RIGHT,) * (taken + 1))
    assert found.calibration_error < 0.05
