"""The keyed noise of `core.noise` on tensors: the same key gives the same number on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.core.noise import hash_bits


def uniform(key: int, index: Tensor) -> Tensor:
    """Return fp64 numbers in (0, 1), bit for bit those of `core.noise.uniform`, one for each int64 of `index`."""
    bits: Tensor = (hash_bits(key, index) >> 12) & (2**52 - 1)
    return (bits.to(torch.float64) + 0.5) * 2.0**-52


def gumbel(key: int, index: Tensor) -> Tensor:
    """Return standard Gumbel noise in fp64; it may differ from `core.noise.gumbel` in the last bit of a logarithm."""
    return -torch.log(-torch.log(uniform(key, index)))
