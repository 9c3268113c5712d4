"""Rotary frequencies, the same numbers for every runner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.models.config import RopeScaling


def inverse_frequencies(theta: float, dim: int, scaling: RopeScaling | None) -> NDArray[np.float32]:
    """Return the rotary frequencies [dim / 2], in radians a position."""
    frequencies: NDArray[np.float64] = theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.kind == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    if scaling.kind == "divisors":
        return (frequencies / scaling.factor / np.array(scaling.divisors, np.float64)).astype(np.float32)
    # Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended.
    turns = scaling.original_context * frequencies / (2 * np.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (frequencies * (share + (1 - share) / scaling.factor)).astype(np.float32)
