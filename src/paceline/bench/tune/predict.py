"""From one run at a known length to all shorter ones and to larger batches. Numbers in, numbers out.

A step that drafted eight tokens and had five accepted says what steps that draft two would have done there: accept two
and add one, accept two and add one. So a run at the deepest length is cut into the steps of every shorter one. What
they take comes from the cost curve, scaled to what the run's own passes took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.stats import Ratio, geometric

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
    plain_pass_s: float
    """The target's pass of it."""
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
    steps, passes = cut(seen.trace, length), scaled(seen, curve)
    tokens = sum(accepted + 1 for _, accepted in steps)
    rest = seen.other_s / len(seen.trace) * len(steps)
    took = sum(passes(1 + verified) for verified, _ in steps) + drafts(seen, steps, drafting) + rest
    return seen.plain_s * tokens / took


def scaled(seen: Observed, curve: Seconds) -> Seconds:
    """Return a curve that agrees with the passes that were seen, plain ones and those of the deepest drafts.

    Between the two what they took beyond the curve (rows that change from pass to pass, above all) grows with the rows.
    """
    least, most = 1, 1 + max(verified for verified, _ in seen.trace)
    low = seen.plain_pass_s / curve(1)
    high = seen.verify_s / sum(curve(1 + verified) for verified, _ in seen.trace)

    def seconds(rows: int) -> float:
        share = min(1.0, (rows - least) / (most - least)) if most > least else 1.0
        return curve(rows) * (low + (high - low) * share)

    return seconds


def drafts(seen: Observed, steps: Sequence[tuple[int, int]], drafting: Drafting) -> float:
    """Return what drafting would have taken; what was read at first is paid once, whatever the length."""
    drafted = sum(verified for verified, _ in seen.trace)
    left = max(0.0, seen.draft_s - drafting.step_s * len(seen.trace))
    token_s = min(drafting.token_s, left / drafted) if drafted else 0.0
    at_first = left - token_s * drafted
    return at_first + token_s * sum(verified for verified, _ in steps) + drafting.step_s * len(steps)


def predicted(seen: Sequence[Observed], length: int, curve: Seconds, drafting: Drafting) -> dict[str, Ratio]:
    """Return each category's ratio."""
    ratios: dict[str, list[float]] = {}
    for each in seen:
        ratios.setdefault(each.category, []).append(ratio(each, length, curve, drafting))
    return {category: Ratio(**geometric(values)) for category, values in ratios.items()}


def over_all(by_category: Mapping[str, Ratio]) -> float:
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
        steps, passes = cut(each.trace, length), scaled(each, curve)
        tokens = sum(accepted + 1 for _, accepted in steps) / len(steps)
        verified = sum(v for v, _ in steps) / len(steps)
        rest = each.other_s / len(each.trace) * batch
        alone = each.plain_pass_s / curve(1)
        plain = max(each.plain_s - each.plain_pass_s, 0.0) * batch + alone * curve(batch)
        drafting_s = draft_growth * (drafting.token_s * verified + drafting.step_s)
        logs.append(math.log(tokens * plain / (passes(round(batch * (1 + verified))) + drafting_s + rest)))
    return math.exp(sum(logs) / len(logs))
