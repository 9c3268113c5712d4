"""A law over tokens: the target's `p` or a drafter's `q` at one position, after all shaping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.noise import TargetNoise

Noise = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Gumbel noise for token ids; keyed elsewhere."""


class Choice(Protocol):
    """What may come at a position."""

    def draw(self, noise: TargetNoise) -> int: ...

    def law(self) -> Law:
        """Return the law that `draw` draws from; it may cost far more than a draw."""


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The support of a law and its log-probabilities; tokens that are not in `ids` have probability 0."""

    ids: NDArray[np.int64]
    """[support], ascending."""
    log_p: NDArray[np.float64]
    """[support], natural logarithms that sum to one in probability."""

    @classmethod
    def point(cls, token: int) -> Law:
        return cls(np.array([token], np.int64), np.zeros(1))

    @classmethod
    def of(cls, probabilities: NDArray[np.float64]) -> Law:
        """Build from a dense vector [vocabulary] that sums to 1."""
        ids = np.flatnonzero(probabilities).astype(np.int64)
        return cls(ids, np.log(probabilities[ids]))

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[support]"""
        return np.exp(self.log_p)

    def at(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of each of `tokens`."""
        place = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        return np.where(self.ids[place] == tokens, np.exp(self.log_p[place]), 0.0)

    def prob(self, token: int) -> float:
        return float(self.at(np.array([token], np.int64))[0])

    def draw(self, noise: Noise) -> int:
        """Return argmax(log p + g), a draw from the law; a tie goes to the lowest id."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        return int(self.ids[np.argmax(self.log_p + noise(self.ids))])

    def law(self) -> Law:
        return self

    def without(self, other: Law, scale: float = 1.0) -> Law:
        """Return the residual law proportional to (scale · p - q)+, or this law where nothing is left.

        Nothing is left only when p <= q everywhere, and then the residual is drawn from with probability 0
        (Leviathan et al. 2211.17192 §2.3; with scale = w, Sun et al. 2403.10444 eq. 4).
        """
        left = self.excess(other, scale)
        total = left.sum()
        if total <= 0:
            return self
        keep = left > 0
        return Law(self.ids[keep], np.log(left[keep] / total))

    def excess(self, other: Law, scale: float = 1.0) -> NDArray[np.float64]:
        """Return (scale · p - q)+ over this law's support; q adds nothing outside it."""
        return np.maximum(scale * self.probabilities - other.at(self.ids), 0.0)

    def entropy(self) -> float:
        """In nats."""
        return float(-(self.probabilities * self.log_p).sum())
