"""The OpenVINO runner: a compiled decoder and the packing of a ragged batch into its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.errors import OptionError
from paceline.models import cache
from paceline.models.cache import Progress
from paceline.models.weights import Checkpoint
from paceline.runners.base import Output, RunnerInfo, Span, Want
from paceline.runners.openvino import batching
from paceline.runners.openvino.attention import BLOCK_SIZE, Heads
from paceline.runners.openvino.batching import Part
from paceline.runners.openvino.graph import build
from paceline.runners.openvino.program import Program
from paceline.runners.openvino.quantise import HeadForm, KVForm, Precision, settle_head
from paceline.runners.openvino.store import open_weights

Numerics = Literal["fast", "invariant"]
"""With "invariant" the results of a stepwise row do not depend, in any bit, on how many rows run beside it, and trees
are not verified as trees (they round differently, too). "fast" takes the fastest kernels for every pass."""

FINE, COARSE = 16, 8
"""Passes of more rows than the first have a multiple of the second. The plugin makes kernels for each number of rows
and keeps them: over a megabyte for every one that there ever was, so prompts of all lengths would fill the memory."""


class OpenVINORunner:
    """A decoder on the CPU.

    Args:
        weights: the form of the matrices; fp32 is the reference, with keys and values in fp32 too (else fp16).
        numerics: see `Numerics`.
        vocabulary: ids that the head answers, ascending, or None for all: the columns of the logits (a drafter's
            head may be cut to frequent tokens without changing any text).
        taps: layers whose hidden states may be wanted, as `Want.hidden`.
        head: the form of the matrix that answers, if not what goes with `weights`.
        kv: the form of keys and values.

    Raises:
        OptionError: there is no such layer to tap; weights, head and kv do not go together.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Precision = "int8",
        numerics: Numerics = "invariant",
        vocabulary: NDArray[np.int64] | None = None,
        taps: Sequence[int] = (),
        progress: Progress = cache.silent,
        head: HeadForm | None = None,
        kv: KVForm = "f16",
    ) -> None:
        config = checkpoint.config
        self._config, self._taps = config, _taps(taps, config.layers)
        head = settle_head(config, weights, head)
        fetch = open_weights(checkpoint, weights, progress, head)
        self._invariant = numerics == "invariant"
        self._embed = fetch("embed")
        self._learned = fetch("positions") if config.rope_theta is None else None
        answers = fetch("embed" if config.tied_head and head is None else "head")
        if vocabulary is not None:
            answers = answers.picked(vocabulary)
        progress("compiling the graph", 0, 1)
        # The graph borrows the arrays that it was built from: whoever owns them must live as long.
        self._borrowed = (fetch, answers)
        heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._program = Program(build(config, fetch, self._taps, answers), weights, config.layers, heads, kv)
        progress("compiling the graph", 1, 1)
        self._companion = Part(0, 1, np.zeros(1, np.int32))
        self.info = RunnerInfo(
            vocab_size=config.vocab_size,
            layers=config.layers,
            context=config.context,
            block_size=BLOCK_SIZE,
            block_bytes=self._program.block_bytes,
            least_rows=2 if self._invariant else 1,
            fills_up=True,
            name="openvino",
            weights=weights,
            tree_context=0 if self._invariant else config.window if config.window_layers else None,
        )

    def allocate(self, blocks: int) -> None:
        # A lone row gets company, so that its kernel is that of many; and a pass may be filled up to the number of rows
        # of the one before. What companions write is never read.
        self._program.allocate(blocks, spare=1)
        self._companion = Part(0, 1, np.array([blocks], np.int32))
        # At the first pass the plugin lays the matrices out anew; the originals are not read again.
        with self._borrowed[0].draining():
            self.forward([Span.causal([0], 0, self._companion.blocks, [0])])

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        parts = batching.parts(spans, self._invariant)
        tokens = [span.tokens for span in spans]
        positions = [span.row_positions for span in spans]
        rows = sum(len(span.tokens) for span in spans)
        companions = _size(max(want.rows, rows + int(self._invariant and rows == 1))) - rows
        if companions > 0:
            parts += [self._companion] * companions
            tokens.append(np.zeros(companions, np.int64))
            positions.append(np.zeros(companions, np.int64))
        wanted, places = batching.wanted(spans), np.concatenate(positions)
        inputs: dict[str, NDArray[Any]] = {
            "embeds": self._embeddings(np.concatenate(tokens), places),
            "position_ids": places,
            "rows": wanted,
            **batching.index(parts),
        }
        logits, *tapped = self._program.run(inputs)
        states = {layer: tapped[self._taps.index(layer)] for layer in want.hidden}
        return Output(
            logits.reshape(len(wanted), logits.shape[-1]),
            # what companions say is no answer
            {layer: state.reshape(-1, self._config.width)[:rows] for layer, state in states.items()},
        )

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self._program.move(source, target)

    def embed(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        found = np.ascontiguousarray(self._embed.rows(tokens), np.float32)
        self._borrowed[0].looked_up(len(tokens))
        return found

    def _embeddings(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        found = self.embed(tokens)
        if self._config.embedding_scale != 1:
            found = found * np.float32(self._config.embedding_scale)
        if self._learned is not None:
            found = found + self._learned.rows(positions)
        return found


def _size(rows: int) -> int:
    """Return the least number of rows, from this one on, of which the plugin may keep kernels."""
    return rows + -rows % COARSE if rows > FINE else rows


def _taps(wanted: Sequence[int], layers: int) -> tuple[int, ...]:
    wrong = [tap for tap in wanted if not 0 <= tap <= layers]
    if wrong:
        raise OptionError(f"taps={list(wanted)}; allowed: 0 to {layers}, the number of the model's layers")
    return tuple(dict.fromkeys(wanted))
