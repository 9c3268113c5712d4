"""Do the rules that give another text draw from the same law?

Under `ratio` and `block` texts cannot be compared. But the target says how probable each token was that it might have
given, and whoever draws from its law takes each kind of token just as often as it says. What kinds there are may hang
on all that came before, so they are chosen where a wrong rule would show: by how much less probable a token is for the
drafter than for the target, which is what decides whether it is accepted or drawn again. Summed over the places that
were drafted for, what was taken beyond what was expected is a martingale; it is held against its covariance, a
chi-square of four degrees of freedom. That is right for any text and needs no second sample.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.bench.prove.checks import Check
from paceline.core.law import Law
from paceline.core.types import Completion, TokenLogprob
from paceline.governor.base import StepReport

KNOWN = 20
"""Likeliest tokens whose probabilities the target says."""
BOUNDS = (0.0, 0.1, 0.3, 0.6, 0.9)
"""Of the drafter's probability over the target's, between which tokens are of a kind; those above are one more."""
KINDS = len(BOUNDS) - 1
FALSE_ALARM = 1e-4
"""Probability that a right rule fails."""
LEAST = 200
"""Places drafted for, below which nothing is said."""
Odds = Mapping[int, float]
"""Token -> how probable it was for the drafter; 0 for those that are not there."""


class Laws:
    """Watches steps, and keeps what drafters held of each place that they drafted for."""

    def __init__(self) -> None:
        self._odds: dict[int, dict[int, Odds]] = defaultdict(dict)

    def stepped(self, step: StepReport) -> None:
        for outcome in step.outcomes:
            seq = outcome.seq
            begin = seq.num_tokens - seq.prompt_len - len(outcome.tokens)  # type: ignore[attr-defined]
            laws = zip(range(begin, begin + len(outcome.tokens)), outcome.verified.laws, strict=False)
            if outcome.verified.is_chain:
                self._odds[seq.id] |= {place: _likeliest(law) for place, law in laws if law is not None}

    def of(self, request: int) -> Mapping[int, Odds]:
        """Return them by the number of the token in the answer, and forget them."""
        return self._odds.pop(request, {})


def _likeliest(law: Law) -> Odds:
    """Return the likeliest tokens of a drafter's law: a whole one of 150,000 is not kept for each place."""
    best = np.argsort(-law.log_p)[: 4 * KNOWN]
    return dict(zip(law.ids[best].tolist(), np.exp(law.log_p[best]).tolist(), strict=True))


@dataclass(slots=True)
class Draws:
    """Sums over texts that were drawn at temperature 1 from whole laws, with their log-probabilities."""

    count: int = 0
    surplus: NDArray[np.float64] = field(default_factory=lambda: np.zeros(KINDS))
    """[KINDS], how often each kind was drawn beyond what was expected."""
    covariance: NDArray[np.float64] = field(default_factory=lambda: np.zeros((KINDS, KINDS)))
    verified: int = 0

    def add(self, done: Completion, odds: Mapping[int, Odds]) -> None:
        self.verified += done.speculation.verified
        for place, told in enumerate(done.logprobs):
            if place in odds:
                self._add(told, odds[place])

    def _add(self, told: TokenLogprob, odds: Odds) -> None:
        p = {token: math.exp(logprob) for token, logprob in told.top[:KNOWN]}
        kinds = {token: int(np.searchsorted(BOUNDS, odds.get(token, 0.0) / p[token], "right")) - 1 for token in p}
        expected, seen = np.zeros(KINDS), np.zeros(KINDS)
        for token, kind in kinds.items():
            if kind < KINDS:
                expected[kind] += p[token]
        if (kind := kinds.get(told.token_id, KINDS)) < KINDS:
            seen[kind] = 1.0
        self.count += 1
        self.surplus += seen - expected
        self.covariance += np.diag(expected) - np.outer(expected, expected)

    @property
    def p_value(self) -> float:
        """Probability that a right rule is as far off, or further."""
        ridge = 1e-9 * max(1.0, float(np.trace(self.covariance))) * np.eye(KINDS)
        statistic = float(self.surplus @ np.linalg.solve(self.covariance + ridge, self.surplus))
        return math.exp(-statistic / 2) * (1 + statistic / 2)


def check(rule: str, draws: Draws, again: str) -> Check:
    asked = f"tokens are drawn as often as the target says (false alarm in {FALSE_ALARM:g} of runs)"
    kinds = ", ".join(f"{surplus:+.0f}" for surplus in draws.surplus)
    found = (
        f"{draws.count:,} places drafted for, {draws.verified:,} drafted ones verified: p = {draws.p_value:.2g}; "
        f"drawn too often or too seldom, from what the drafter likes least to most: {kinds}"
    )
    fails = draws.count >= LEAST and draws.p_value < FALSE_ALARM
    return Check(f"same law: {rule}", asked, found, "fails" if fails else "holds", again)


def not_asked(rules: Sequence[str]) -> Check:
    """Return what is said of rules that nothing samples for."""
    return Check(
        f"same law: {', '.join(rules)}",
        "tokens are drawn as often as the target says",
        "no drafter here samples, so these rules draft nothing that they could accept wrongly",
        "not asked",
        "",
    )
