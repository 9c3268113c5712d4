"""From one run at a known length to all shorter ones and to larger batches. Numbers in, numbers out.

A step that drafted eight tokens and had five accepted says what steps that draft two would have done there: accept two
and add one, accept two and add one. So a run at the deepest length is cut into the steps of every shorter one. What
they take comes from the cost curve, scaled to what the run's own passes took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000
WORTH = 1.02
"""Ratio from which on speculation is worth its trouble."""
Seconds = Callable[[int], float]
"""Rows of a pass -> what it takes."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One prompt's answer, decoded plainly and at the deepest length."""

    category: str
    plain_s: float
    """A token, decoded plainly."""
    trace: tuple[tuple[int, int], ...]
    """(verified, accepted) of each step."""
    draft_s: float
    """All of the answer's drafting, what was read first included."""
    verify_s: float
    """All of its target passes."""
    other_s: float
    """All of the rest."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a drafter takes.

    Args:
        token_s: a token that it drafts.
        step_s: a step in which it is asked, whatever comes of it.
    """

    token_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """A ratio to plain decoding, with a 95 % interval by bootstrap over prompts."""

    ratio: float
    low: float
    high: float


def cut(trace: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the steps that drafts of at most so many tokens would have made of the same text.

    Whoever had so many guesses at the start of a step would have had as many in its middle.
    """
    found = []
    for verified, accepted in trace:
        left = accepted
        while left >= 0:
            taken = min(left, length)
            found.append((min(verified, length), taken))
            left -= taken + 1
    return found


def ratio(seen: Observed, length: int, curve: Seconds, drafting: Drafting) -> float:
    """Return how many times as fast drafts of a length are on one prompt."""
    steps = cut(seen.trace, length)
    tokens = sum(accepted + 1 for _, accepted in steps)
    scale = seen.verify_s / sum(curve(1 + verified) for verified, _ in seen.trace)
    passes = scale * sum(curve(1 + verified) for verified, _ in steps)
    drafted = sum(verified for verified, _ in seen.trace)
    at_first = max(0.0, seen.draft_s - drafting.token_s * drafted - drafting.step_s * len(seen.trace))
    drafts = at_first + drafting.token_s * sum(verified for verified, _ in steps) + drafting.step_s * len(steps)
    rest = seen.other_s / len(seen.trace) * len(steps)
    return seen.plain_s * tokens / (passes + drafts + rest)


def predicted(
    seen: Sequence[Observed], length: int, curve: Seconds, drafting: Drafting, seed: int = 0
) -> dict[str, Predicted]:
    """Return each category's ratio."""
    logs: dict[str, list[float]] = {}
    for each in seen:
        logs.setdefault(each.category, []).append(math.log(ratio(each, length, curve, drafting)))
    rng = np.random.default_rng(seed)
    found = {}
    for category, values in logs.items():
        draws = np.exp(rng.choice(values, (DRAWS, len(values))).mean(1))
        low, high = np.quantile(draws, [0.025, 0.975])
        found[category] = Predicted(float(np.exp(np.mean(values))), float(low), float(high))
    return found


def over_all(by_category: Mapping[str, Predicted]) -> float:
    """Return the geometric mean over categories."""
    return math.exp(sum(math.log(each.ratio) for each in by_category.values()) / len(by_category))


def at_batch(
    seen: Sequence[Observed], length: int, batch: int, curve: Seconds, drafting: Drafting, draft_growth: float
) -> float:
    """Return the ratio over all prompts when so many of them run together.

    Args:
        draft_growth: how many times longer a drafter's pass takes for so many.
    """
    logs = []
    for each in seen:
        steps = cut(each.trace, length)
        tokens = sum(accepted + 1 for _, accepted in steps) / len(steps)
        verified = sum(v for v, _ in steps) / len(steps)
        scale = each.verify_s / sum(curve(1 + v) for v, _ in each.trace)
        rest = each.other_s / len(each.trace) * batch
        plain = max(each.plain_s - scale * curve(1), 0.0) * batch + scale * curve(batch)
        drafts = draft_growth * (drafting.token_s * verified + drafting.step_s)
        logs.append(math.log(tokens * plain / (scale * curve(round(batch * (1 + verified))) + drafts + rest)))
    return math.exp(sum(logs) / len(logs))
