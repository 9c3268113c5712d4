"""Noise keyed by (seed, position, stream, salt, token): the only source of randomness.

A counter-based hash: the same key gives the same number, whoever asks, in whatever order. `hash_bits` uses only
operations on signed 64-bit integers that wrap, so the same line runs on numpy arrays and on torch tensors.
Draft, accept and target noise are separate streams: sharing one under the ratio rule biases the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Stream(IntEnum):
    """What a number is used for."""

    TARGET = 1
    """Draws from the target's law or a residual of it; under the coupled rule the drafter's too."""
    DRAFT = 2
    ACCEPT = 3
    TAIL = 4
    """Whether the unlikely tokens of the target's law have it together, and which of them."""


def _signed(word: int) -> int:
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _mix(word: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014) on a Python integer."""
    word = ((word ^ (word >> 30)) * _MIX_1) % _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) % _WORD
    return word ^ (word >> 31)


def stream_key(seed: int, position: int, stream: Stream, salt: int = 0) -> int:
    """Fold a key into one 64-bit word."""
    word = _mix(seed % _WORD)  # unmixed, small seeds and positions would cancel each other
    for part in (position, int(stream), salt):
        word = _mix((word + _GOLDEN) % _WORD ^ part)
    return word


def hash_bits(key: int, index: Any) -> Any:
    """Return 64 hashed bits for each int64 of `index` (numpy array or torch tensor), as int64 of the same shape."""
    x = index * _signed(_GOLDEN) + _signed(key)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(_MIX_1)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(_MIX_2)
    return x ^ ((x >> 31) & (2**33 - 1))


def uniform(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return numbers in the open interval (0, 1), on a grid of 2^-52, one for each index."""
    bits: NDArray[np.int64] = (hash_bits(key, index) >> 12) & (2**52 - 1)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52  # with 53 bits the largest would round to 1


def gumbel(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return standard Gumbel noise, one for each index; argmax(log p + gumbel) is a draw from p."""
    noise: NDArray[np.float64] = -np.log(-np.log(uniform(key, index)))
    return noise


@dataclass(frozen=True, slots=True)
class TargetNoise:
    """The noise of the target's draw at one position; called with token ids it gives each its Gumbel noise."""

    seed: int
    position: int

    def __call__(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return gumbel(stream_key(self.seed, self.position, Stream.TARGET), ids)

    def of_tail(self) -> float:
        """Return the Gumbel noise of the unlikely tokens' common mass."""
        return float(gumbel(self._tail_key, np.zeros(1, np.int64))[0])

    def within_tail(self) -> float:
        """Return a number in (0, 1) that says which of the unlikely tokens it is; of a key of its own."""
        return float(uniform(self._tail_key, np.ones(1, np.int64))[0])

    @property
    def _tail_key(self) -> int:
        return stream_key(self.seed, self.position, Stream.TAIL)
