"""The OpenVINO runner: a compiled graph, its KV blocks, and the packing of a ragged batch into its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from typing import Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from paceline.errors import OutOfMemory
from paceline.models import cache
from paceline.models.cache import Progress
from paceline.models.weights import Checkpoint
from paceline.runners.base import Output, RunnerInfo, Span, Want
from paceline.runners.openvino import batching
from paceline.runners.openvino.attention import BLOCK_SIZE
from paceline.runners.openvino.batching import Part
from paceline.runners.openvino.graph import build
from paceline.runners.openvino.quantise import GROUP, Packed, Precision
from paceline.runners.openvino.store import open_weights

Numerics = Literal["fast", "invariant"]
"""With "invariant" the results of a stepwise row do not depend, in any bit, on how many rows run beside it, and trees
are not verified as trees (they round differently, too). "fast" takes the fastest kernels for every pass."""


class OpenVINORunner:
    """A decoder on the CPU.

    Args:
        weights: the form of the matrices; fp32 is the reference, with keys and values in fp32 too (else fp16).
        numerics: see `Numerics`.
        vocabulary: ids that the head answers, ascending, or None for all: the columns of the logits (a drafter's
            head may be cut to frequent tokens without changing any text).
        taps: layers whose hidden states may be wanted.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Precision = "int8",
        numerics: Numerics = "invariant",
        vocabulary: NDArray[np.int64] | None = None,
        taps: Sequence[int] = (),
        progress: Progress = cache.silent,
    ) -> None:
        config = checkpoint.config
        fetch = open_weights(checkpoint, weights, progress)
        self._config, self._taps = config, tuple(taps)
        self._invariant = numerics == "invariant"
        self._embed = fetch("embed")
        self._learned = fetch("positions") if config.rope_theta is None else None
        head = _rows_of(fetch("embed" if config.tied_head else "head"), vocabulary) if vocabulary is not None else None
        progress("compiling the graph", 0, 1)
        exact = weights == "fp32"
        # The graph borrows the arrays that it was built from: whoever owns them must live as long.
        self._borrowed = (fetch, head)
        self._compiled = _core().compile_model(
            build(config, fetch, self._taps, head),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": "f32" if exact else "f16",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP if weights in ("int4", "int8") else 0),
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        progress("compiling the graph", 1, 1)
        self._request = self._compiled.create_infer_request()
        self._kv_type: Any = np.float32 if exact else np.float16
        self._kv = np.zeros(0, self._kv_type)
        self._companion = Part(0, 1, np.zeros(1, np.int32))
        self.info = RunnerInfo(
            vocab_size=config.vocab_size,
            layers=config.layers,
            context=config.context,
            block_size=BLOCK_SIZE,
            block_bytes=int(np.prod(self._kv_shape(1))) * np.dtype(self._kv_type).itemsize,
            name="openvino",
            weights=weights,
            tree_context=0 if self._invariant else config.window if config.window_layers else None,
        )

    def allocate(self, blocks: int) -> None:
        try:
            self._kv = np.zeros(self._kv_shape(blocks + 1), self._kv_type)
        except MemoryError:
            raise OutOfMemory(
                f"{blocks} KV blocks need {blocks * self.info.block_bytes >> 20} MiB, which the system refuses; "
                "lower the context or the number of sequences"
            ) from None
        # A lone row gets company, so that its kernel is that of many; what the companion writes is never read.
        self._companion = Part(0, 1, np.array([blocks], np.int32))
        for layer in range(self._config.layers):
            for i, kind in enumerate(("key", "value")):
                self._request.set_tensor(
                    f"{kind}_cache.{layer}", ov.Tensor(self._kv[2 * layer + i], shared_memory=True)
                )

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        parts = batching.parts(spans, self._invariant)
        tokens = [span.tokens for span in spans]
        positions = [span.row_positions for span in spans]
        if self._invariant and len(parts) == 1 and parts[0].rows == 1:
            parts.append(self._companion)
            tokens.append(np.zeros(1, np.int64))
            positions.append(np.zeros(1, np.int64))
        first = batching.begins([len(span.tokens) for span in spans])
        wanted = np.concatenate([span.wanted + begin for span, begin in zip(spans, first[:-1], strict=True)])
        places = np.concatenate(positions)
        inputs = {
            "embeds": self._embeddings(np.concatenate(tokens), places),
            "position_ids": places,
            "rows": wanted.astype(np.int32),
            **batching.index(parts),
        }
        for name, value in inputs.items():
            self._request.set_tensor(name, ov.Tensor(value))
        self._request.infer()
        answers = [self._request.get_output_tensor(i).data for i in range(1 + len(self._taps))]
        logits, *tapped = (answer.reshape(len(wanted), answer.shape[-1]) for answer in answers)
        return Output(logits, {layer: tapped[self._taps.index(layer)] for layer in want.hidden})

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        (from_block, from_offset), (to_block, to_offset) = divmod(source, BLOCK_SIZE), divmod(target, BLOCK_SIZE)
        self._kv[:, to_block, :, to_offset] = self._kv[:, from_block, :, from_offset]

    def _kv_shape(self, blocks: int) -> tuple[int, ...]:
        """[key and value of every layer, blocks, heads, slots of a block, dim]"""
        return (2 * self._config.layers, blocks, self._config.kv_heads, BLOCK_SIZE, self._config.head_dim)

    def _embeddings(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        found = self._embed.rows(tokens)
        if self._config.embedding_scale != 1:
            found = found * np.float32(self._config.embedding_scale)
        if self._learned is not None:
            found = found + self._learned.rows(positions)
        return np.ascontiguousarray(found, np.float32)


@once
def _core() -> ov.Core:
    """Return the one core of this process.

    Each core's CPU plugin puts the thread on a signal stack of its own and takes it away again when it goes; of two
    that go in the order they came, the second leaves the first's freed stack behind, and the next signal crashes.
    """
    return ov.Core()


def _rows_of(packed: Packed, ids: NDArray[np.int64]) -> Packed:
    return Packed(packed.kind, packed.data[ids], packed.scale[ids] if packed.scale is not None else None)
