"""Ratios with intervals, and what may be concluded from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.bench.result import Verdict

DRAWS = 4000
MARGIN = 0.005
"""A ratio that is nearer to 1 than this is the same for whoever waits; the interval must lie beyond it."""
_Z = 1.959964
Logs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    def verdict(self, noise: float = 0.0) -> Verdict:
        """Return what the interval says; one that is not beyond the noise says nothing.

        Args:
            noise: how far plain decoding against itself was seen to be from 1.
        """
        margin = max(MARGIN, noise)
        if self.low > 1 + margin:
            return "faster"
        return "slower" if self.high < 1 - margin else "same"


def geometric(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean and its 95 % interval, by bootstrap over the values."""
    logs = np.log(np.asarray(ratios, np.float64))
    draws = np.exp(np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(1))
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"ratio": float(np.exp(logs.mean())), "low": float(low), "high": float(high)}


def compare(groups: Mapping[str, Sequence[Sequence[float]]]) -> Ratio:
    """Return the geometric mean over categories, with an interval by bootstrap over groups of prompts.

    Of each group the median of its turns counts: a hiccup of the machine hits one of them. Categories are strata:
    groups are drawn within each. As few draws from few groups spread too little, their deviations are widened by
    √(n / (n − 1)), and the whole by Student's quantile (Efron and Tibshirani, An Introduction to the Bootstrap, §11.5
    and §12.5), with Satterthwaite's degrees of freedom: a category of two groups may be most of the variance. One of a
    single group is drawn from its turns.

    Args:
        groups: by category, of each group the ratios of its turns, all positive.
    """
    rng = np.random.default_rng(0)
    strata = [_stratum(turns, rng) for turns in groups.values()]
    middle = float(np.mean([stratum.middle for stratum in strata]))
    spread = np.mean([stratum.deviations for stratum in strata], axis=0)
    low, high = np.quantile(spread, [0.025, 0.975]) * student(_freedom(strata)) / _Z
    return Ratio(math.exp(middle), math.exp(middle + low), math.exp(middle + high))


@dataclass(frozen=True, slots=True)
class _Stratum:
    middle: float
    deviations: Logs
    """[DRAWS]"""
    freedom: int


def _stratum(turns: Sequence[Sequence[float]], rng: np.random.Generator) -> _Stratum:
    values = np.array([np.median(np.log(ratios)) for ratios in turns])
    if len(values) == 1:
        drawn_from = np.log(np.asarray(turns[0], np.float64))
        draws = np.median(rng.choice(drawn_from, (DRAWS, len(drawn_from))), axis=1)
    else:
        drawn_from = values
        draws = rng.choice(values, (DRAWS, len(values))).mean(1)
    n = len(drawn_from)
    widened = math.sqrt(n / (n - 1)) if n > 1 else 1.0
    return _Stratum(float(values.mean()), widened * (draws - float(values.mean())), n - 1)


def _freedom(strata: Sequence[_Stratum]) -> float:
    """Return the degrees of freedom of the variance of all, by Satterthwaite."""
    known = [(float(np.var(s.deviations)), s.freedom) for s in strata if s.freedom]
    weight = sum(variance**2 / freedom for variance, freedom in known)
    whole: float = sum(variance for variance, _ in known) ** 2
    return whole / weight if weight else 1.0


def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t, by Cornish and Fisher's expansion; within 1 % from 3 degrees on."""
    z, n = _Z, max(1.0, freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
