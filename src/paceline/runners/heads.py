"""Draft heads run beside the target, on its hidden states: two protocols, one for each way of guessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.runners.base import Span

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """Answers of one pass of a head that guesses token by token. Valid until its next forward."""

    logits: Floats
    """[wanted, draft vocabulary]"""
    hidden: Floats
    """[rows, width], what the head feeds itself for the token after each row; not normalised."""


class StepHead(Protocol):
    """EAGLE-3's kind: a small decoder that reads the target's hidden states, then its own.

    Row i of a span stands for the pair (feature of position i, token at position i + 1): its keys and values are
    cached at the feature's position, and its answer guesses the token at position i + 2.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...

    def allocate(self, blocks: int) -> None:
        """Make room for this many KV blocks, dropping what was cached."""

    def fuse(self, taps: Floats) -> Floats:
        """Return features [rows, width] of the target's tapped states [rows, taps * target width], low to high.

        They are valid until the next call.
        """

    def forward(self, spans: Sequence[Span], features: Floats) -> StepOutput:
        """Run the spans' tokens on features [rows, width]: fused ones, or the head's own `hidden`."""

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy cached token slots, as `Runner.move`."""


class ParallelHead(Protocol):
    """Medusa's kind: several heads that each guess one token further, from one hidden state, at once."""

    @property
    def count(self) -> int:
        """Number of heads."""

    def forward(self, features: Floats) -> Floats:
        """Return logits [heads, rows, draft vocabulary] of the target's final hidden states [rows, width].

        They are valid until the next call.
        """
