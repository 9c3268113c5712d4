"""The Runner protocol: one forward pass over a ragged batch. No sampling, no loops, no policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.rows import HostRows, Logits, Rows
from paceline.core.tree import Draft, ancestor_mask, depths


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What the engine needs to know of a model."""

    vocab_size: int
    layers: int
    context: int
    """Most tokens of a sequence, prompt included."""
    block_size: int
    """Token positions in a KV block."""
    block_bytes: int
    """Memory of one KV block, all layers, keys and values."""
    can_rewind: bool = True
    """False where a rejected token cannot be taken back out of the state (recurrent and hybrid models)."""
    tree_context: int | None = None
    """Trees are exact only while a sequence, drafted rows included, is no longer than this; None is always."""
    least_rows: int = 1
    """Rows that a pass has at least, some of which may answer nothing."""
    fills_up: bool = False
    """Whether a pass is filled up to `Want.rows`."""
    name: str = ""
    """The runner's name: openvino, torch, toy."""
    weights: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The rows of one sequence in a batch."""

    tokens: NDArray[np.int64]
    """[rows], the tokens whose keys and values this pass adds to the cache, at slots cached … cached + rows - 1."""
    cached: int
    """Token positions of this sequence that are in the cache already."""
    blocks: NDArray[np.int32]
    """Block table; block i holds slots i * block_size …; at least ceil((cached + rows) / block_size) long."""
    wanted: NDArray[np.int32]
    """Rows of this span to answer, ascending."""
    positions: NDArray[np.int64] | None = None
    """[rows], or None for cached, cached + 1, …"""
    mask: NDArray[np.bool_] | None = None
    """[rows, rows], which row sees which; None is causal. Every row sees all that is cached (within its window)."""
    stepwise: bool = False
    """Rows that plain decoding would run one at a time: where a runner can, their results are then the same in every
    bit as if it had."""

    @classmethod
    def causal(
        cls,
        tokens: Sequence[int],
        cached: int,
        blocks: NDArray[np.int32],
        wanted: Sequence[int],
        stepwise: bool = False,
    ) -> Span:
        return cls(np.asarray(tokens, np.int64), cached, blocks, np.asarray(wanted, np.int32), stepwise=stepwise)

    @classmethod
    def drafted(cls, pending: int, draft: Draft, cached: int, blocks: NDArray[np.int32]) -> Span:
        """The pending token and a draft after it; every row is answered."""
        tokens = np.array([pending, *draft.tokens], np.int64)
        wanted = np.arange(len(tokens), dtype=np.int32)
        if draft.is_chain:
            return cls(tokens, cached, blocks, wanted, stepwise=True)
        positions = cached + np.array([0, *depths(draft.parents)], np.int64)
        return cls(tokens, cached, blocks, wanted, positions, ancestor_mask(draft.parents), stepwise=True)

    @property
    def row_positions(self) -> NDArray[np.int64]:
        if self.positions is not None:
            return self.positions
        return np.arange(self.cached, self.cached + len(self.tokens), dtype=np.int64)

    @property
    def row_mask(self) -> NDArray[np.bool_]:
        if self.mask is not None:
            return self.mask
        return np.tri(len(self.tokens), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Want:
    """What a forward pass returns beside the logits of the wanted rows."""

    hidden: tuple[int, ...] = ()
    """Layers after which the hidden state of every row of the pass is returned (0 is the first layer); the number of
    layers stands for what the head reads, the state after the final norm."""
    rows: int = 0
    """Rows to run at least: where passes of a new number of rows have to be prepared, a runner fills up to this with
    rows that answer nothing. Others may run what is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Answers for the wanted rows of all spans, in order. Valid until the runner's next forward."""

    answers: Logits | Rows
    """[wanted, vocabulary], logits in memory or wherever they lie"""
    hidden: dict[int, NDArray[np.float32]]
    """layer -> [rows, width], all rows of all spans in order"""

    @property
    def rows(self) -> Rows:
        """The wanted rows' answers, one by one; of what lies on a device only what is asked for is fetched."""
        return HostRows(self.answers) if isinstance(self.answers, np.ndarray) else self.answers

    @property
    def logits(self) -> Logits:
        """[wanted, vocabulary]; fetches all."""
        return self.rows.whole()


class Runner(Protocol):
    """A model that can run. Keys and values live in blocks that the caller numbers."""

    @property
    def info(self) -> RunnerInfo: ...

    def allocate(self, blocks: int) -> None:
        """Make room for this many KV blocks, dropping what was cached.

        Raises:
            OutOfMemory: there is not that much memory.
        """

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        """Run all spans in one pass; their tokens' keys and values are then cached."""

    def embed(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows [tokens, width] of the table of token embeddings, before any scaling: draft heads read it."""

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy cached token slots (block * block_size + offset); every source is read before any target is written."""
