"""Weights by name, read one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.models.config import ModelConfig


class Weights(Protocol):
    """The tensors of a checkpoint under the names of `ModelConfig.tensor_shapes`."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content, for caches."""

    def read(self, name: str) -> NDArray[np.float32]:
        """Return one tensor, unpacked.

        Raises:
            CorruptModel: it is missing, truncated or of another shape.
        """

    def rows(self, name: str, at_most: int) -> Iterator[NDArray[np.float32]]:
        """Yield a matrix in pieces of whole rows, each of about `at_most` bytes once unpacked."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model as read from disk, before any runner."""

    config: ModelConfig
    weights: Weights
