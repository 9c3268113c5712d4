"""When requests come: all as soon as there is room, at random, or in bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.errors import OptionError

BURST = 4
"""Requests of a burst that has no size of its own."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open loop: requests come whether or not earlier ones have ended."""

    kind: str
    """poisson or bursts."""
    rate: float
    """Requests a second."""
    size: int = 1
    """Of a burst."""

    @classmethod
    def parse(cls, text: str) -> Arrivals | None:
        """Return what a text such as poisson:2 or bursts:2:8 names; `closed` is None.

        Raises:
            OptionError: it is none of these.
        """
        kind, *numbers = text.split(":")
        try:
            if kind == "closed" and not numbers:
                return None
            if kind == "poisson" and len(numbers) == 1:
                return cls(kind, _positive(numbers[0]))
            if kind == "bursts" and len(numbers) in (1, 2):
                size = int(numbers[1]) if len(numbers) == 2 else BURST
                if size >= 1:
                    return cls(kind, _positive(numbers[0]), size)
        except ValueError:
            pass
        raise OptionError(
            f"arrivals is {text!r}; allowed: closed, poisson:RATE, bursts:RATE and bursts:RATE:SIZE, "
            "the rate in requests a second"
        )

    def starts(self, count: int, seed: int = 0) -> tuple[float, ...]:
        """Return when each of so many requests comes, in seconds, rising; the same for the same seed."""
        bursts = -(-count // self.size)
        gaps = np.random.default_rng(seed).exponential(self.size / self.rate, bursts)
        times = np.cumsum(gaps) - gaps[0]
        return tuple(float(t) for t in np.repeat(times, min(self.size, count))[:count])


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value
