"""A compiled graph and the keys and values that it works on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache as once
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from paceline.errors import OutOfMemory
from paceline.runners.openvino.attention import BLOCK_SIZE, Heads
from paceline.runners.openvino.quantise import GROUP, KVForm, Precision, kv_group, slot_shape

_NONE = Heads(0, 0, 0)
_KV: Mapping[type[np.generic], str] = {np.float32: "f32", np.float16: "f16", np.uint8: "u8"}


class Program:
    """A graph that is ready to run.

    Args:
        weights: what the graph's matrices are kept in; with fp32, keys and values are fp32 too (else fp16).
        layers: number of layers that attend, each with caches of its own.
        heads: of one such layer.
        kv: the form of keys and values.

    Raises:
        OptionError: keys and values cannot be kept in this form beside these weights.
    """

    def __init__(
        self, graph: ov.Model, weights: Precision, layers: int = 0, heads: Heads = _NONE, kv: KVForm = "f16"
    ) -> None:
        self._slot, self._type = slot_shape(weights, kv, heads.dim)
        group = str(kv_group(heads.dim) if kv == "u8" else 0)
        compiled = _core().compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": _KV[self._type],
                # Scales of a whole block, the default for keys, would change with each token that comes in.
                "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
                "VALUE_CACHE_QUANT_MODE": "BY_TOKEN",
                "KEY_CACHE_GROUP_SIZE": group,
                "VALUE_CACHE_GROUP_SIZE": group,
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP if weights in ("int4", "int8") else 0),
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        self._request = compiled.create_infer_request()
        self._outputs = len(graph.outputs)
        self._place = {name: i for i, node in enumerate(compiled.inputs) for name in node.get_names()}
        """Of each input: by name the request would look through all of them."""
        self._given: dict[str, tuple[ov.Tensor, NDArray[Any]]] = {}
        """The tensor of each input, and its memory."""
        self._layers, self._heads = layers, heads
        self._kv: NDArray[Any] = np.zeros(0, self._type)

    @property
    def block_bytes(self) -> int:
        """Memory of one KV block, all layers."""
        return math.prod(self._shape(1)) * np.dtype(self._type).itemsize

    def allocate(self, blocks: int, spare: int = 0) -> None:
        """Make room for this many KV blocks, and for spare ones after them.

        Raises:
            OutOfMemory: there is not that much memory.
        """
        try:
            self._kv = np.zeros(self._shape(blocks + spare), self._type)
        except (MemoryError, ValueError):  # a ValueError: more than an array may have
            raise OutOfMemory(
                f"{blocks} KV blocks need {blocks * self.block_bytes >> 20} MiB, which the system refuses; "
                "lower the context or the number of sequences"
            ) from None
        for layer in range(self._layers):
            for i, kind in enumerate(("key", "value")):
                self._request.set_tensor(
                    f"{kind}_cache.{layer}", ov.Tensor(self._kv[2 * layer + i], shared_memory=True)
                )

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return the graph's outputs; they are valid until the next run."""
        for name, value in inputs.items():
            self._set(name, value)
        self.infer()
        return [self._request.get_output_tensor(i).data for i in range(self._outputs)]

    def _set(self, name: str, value: NDArray[Any]) -> None:
        """Write an input where the last one of its shape was: telling the request of a new tensor costs more."""
        given = self._given.get(name)
        if given is not None and given[1].shape == value.shape:
            given[1][...] = value
            return
        tensor = ov.Tensor(value)
        self._given[name] = tensor, tensor.data
        self._request.set_input_tensor(self._place[name], tensor)

    def infer(self) -> None:
        """Run with the inputs that are set."""
        self._request.infer()

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy cached token slots, as `Runner.move`."""
        (from_block, from_offset), (to_block, to_offset) = divmod(source, BLOCK_SIZE), divmod(target, BLOCK_SIZE)
        self._kv[:, to_block, :, to_offset] = self._kv[:, from_block, :, from_offset]

    def _shape(self, blocks: int) -> tuple[int, ...]:
        """[key and value of every layer, blocks, heads, slots of a block, numbers of a slot]"""
        return (2 * self._layers, blocks, self._heads.key_value, BLOCK_SIZE, self._slot)


@once
def _core() -> ov.Core:
    """Return the one core of this process.

    Each core's CPU plugin puts the thread on a signal stack of its own and takes it away again when it goes; of two
    that go in the order they came, the second leaves the first's freed stack behind, and the next signal crashes.
    """
    return ov.Core()
