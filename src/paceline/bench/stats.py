"""Ratios with intervals, and what may be concluded from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 4000


def geometric(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean and its 95 % interval, by bootstrap over the values."""
    logs = np.log(np.asarray(ratios, np.float64))
    draws = np.exp(np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(1))
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"ratio": float(np.exp(logs.mean())), "low": float(low), "high": float(high)}
