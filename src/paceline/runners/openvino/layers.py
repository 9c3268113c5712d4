"""What the layers of a decoder are made of, as OpenVINO operations: attention, rotation, feed-forward, norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from paceline.models.config import ModelConfig, RopeScaling
from paceline.runners.openvino.attention import INDEX_INPUTS, Heads, caches, paged_attention, parameter
from paceline.runners.openvino.quantise import GROUP, Packed
from paceline.runners.rotary import inverse_frequencies


class Fetch(Protocol):
    """Reads tensors by name. The arrays must outlive the compiled graph, which borrows them."""

    def __call__(self, *names: str) -> Packed:
        """Return a tensor, or the rows of several one after the other."""


class Layers:
    """The parts of one graph; what they share (inputs, caches, rotations) is made once."""

    def __init__(self, config: ModelConfig, fetch: Fetch) -> None:
        self.config, self.fetch = config, fetch
        self.heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self.index = {name: parameter(name, *spec) for name, spec in INDEX_INPUTS.items()}
        self.positions = parameter("position_ids", [-1], ov.Type.i64)
        self.rows = parameter("rows", [-1], ov.Type.i32)
        self.caches: list[ov.Node] = []
        self.rotations: dict[tuple[float, RopeScaling | None], tuple[ov.Node, ov.Node]] = {}

    @property
    def inputs(self) -> list[ov.Node]:
        return [self.positions, self.rows, *self.index.values(), *self.caches]

    def wanted(self, x: ov.Node) -> ov.Node:
        """Pick the rows to answer."""
        return op.gather(x, self.rows, i32(0))

    def attention(self, x: ov.Node, layer: int) -> ov.Node:
        """Attend with the rows of x, which may be wider than the model, and cache their keys and values."""
        config, name = self.config, f"layers.{layer}."
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        query, key, value = self.parted(x, name, {"q": queries, "k": keys, "v": keys})
        local = layer in config.window_layers
        query = self.head_rows(query, f"{name}q_norm", config.heads, local)
        key = self.head_rows(key, f"{name}k_norm", config.kv_heads, local)
        cache = caches(layer, self.heads)
        self.caches += cache
        scale = config.attention_scale or config.head_dim**-0.5
        window = config.window if local and config.window else 0
        out = paged_attention([query, key, value], cache, self.index, self.heads, scale, window)
        return self.linear(op.reshape(out, i32([-1, queries]), False), f"{name}o")

    def head_rows(self, x: ov.Output, norm: str, count: int, local: bool) -> ov.Output:
        """Normalise and rotate every head of [rows, count * dim]."""
        config = self.config
        theta = config.local_rope_theta if local and config.local_rope_theta else config.rope_theta
        if theta is None and not config.query_key_norm:
            return x
        heads = op.reshape(x, i32([-1, count, 1, config.head_dim]), False)
        if config.query_key_norm:
            heads = self.norm(heads, norm)
        if theta is not None:
            heads = self.rotate(heads, theta, None if local and config.local_rope_theta else config.rope_scaling)
        return op.reshape(heads, i32([-1, count * config.head_dim]), False).output(0)

    def rotate(self, heads: ov.Node, theta: float, scaling: RopeScaling | None) -> ov.Node:
        """Turn [rows, count, 1, dim]: rotary embedding in half-split order (RoFormer, 2104.09864 §3.4.2).

        Written as the plugin knows it, to make one operation of it: four axes, and the second half times -1.
        """
        dim = self.config.rope_dim or self.config.head_dim
        rest = None
        if dim < self.config.head_dim:
            heads, rest = op.variadic_split(heads, i32(-1), i32([dim, self.config.head_dim - dim])).outputs()
        cos, sin = self.rotation(theta, scaling, dim)
        low, high = op.variadic_split(heads, i64(3), i64([dim // 2, dim // 2])).outputs()
        crossed = op.concat([op.multiply(high, f32(-1)), low], -1)
        turned = op.add(op.multiply(heads, cos), op.multiply(crossed, sin))
        return turned if rest is None else op.concat([turned, rest], -1)

    def rotation(self, theta: float, scaling: RopeScaling | None, dim: int) -> tuple[ov.Node, ov.Node]:
        """Return cosines and sines [rows, 1, 1, dim], the same nodes for every layer that turns alike."""
        if (theta, scaling) not in self.rotations:
            frequencies = op.constant(inverse_frequencies(theta, dim, scaling)[None, :])
            angles = op.multiply(op.unsqueeze(op.convert(self.positions, "f32"), i32(1)), frequencies)
            twice = op.unsqueeze(op.concat([angles, angles], -1), i32([1, 2]))
            self.rotations[theta, scaling] = (op.cos(twice), op.sin(twice))
        return self.rotations[theta, scaling]

    def feed_forward(self, x: ov.Node, name: str) -> ov.Node:
        act = op.swish if self.config.activation == "silu" else _gelu
        if not self.config.gated_ffn:
            return self.linear(act(self.linear(x, f"{name}up")), f"{name}down")
        wide = self.config.ffn_width
        gate, up = self.parted(x, name, {"gate": wide, "up": wide})
        return self.linear(op.multiply(act(gate), up), f"{name}down")

    def norm(self, x: ov.Node, name: str) -> ov.Node:
        weight = op.constant(self.fetch(name).data)
        epsilon = f32(self.config.norm_epsilon)
        if self.config.norm == "rms":
            scale = op.power(op.add(op.reduce_mean(op.multiply(x, x), i32([-1]), True), epsilon), f32(-0.5))
            return op.multiply(op.multiply(x, scale), weight)
        centred = op.mvn(x, i32([-1]), True, self.config.norm_epsilon, "inside_sqrt")
        return op.add(op.multiply(centred, weight), op.constant(self.fetch(f"{name}.bias").data))

    def linear(self, x: ov.Node, name: str) -> ov.Node:
        y = op.matmul(x, matrix(self.fetch(name)), False, True)
        return op.add(y, op.constant(self.bias(name))) if name.rpartition(".")[2] in self.config.biases else y

    def parted(self, x: ov.Node, name: str, widths: Mapping[str, int]) -> list[ov.Output]:
        """Return x times several matrices, multiplied as one: a small matrix costs more to begin than to run."""
        y = op.matmul(x, matrix(self.fetch(*(name + part for part in widths))), False, True)
        if self.config.biases & widths.keys():
            there = self.config.biases
            bias = [self.bias(name + p) if p in there else np.zeros(n, np.float32) for p, n in widths.items()]
            y = op.add(y, op.constant(np.concatenate(bias)))
        return list(op.variadic_split(y, i32(-1), i32(list(widths.values()))).outputs())

    def bias(self, name: str) -> NDArray[np.generic]:
        return self.fetch(f"{name}.bias").data


def matrix(packed: Packed) -> ov.Node:
    """A stored matrix as an f32 node [out, in] that the plugin fuses into its multiplication."""
    if packed.kind == "fp32":
        return _borrowed(packed.data, ov.Type.f32, packed.data.shape)
    if packed.kind == "bf16":
        return op.convert(_borrowed(packed.data, ov.Type.bf16, packed.data.shape), "f32")
    assert packed.scale is not None
    if packed.kind == "int8":
        whole = _borrowed(packed.data, ov.Type.i8, packed.data.shape)
        return op.convert(op.multiply(op.convert(whole, "f16"), op.constant(packed.scale)), "f32")
    assert packed.zero is not None
    out, groups = packed.scale.shape
    whole = op.convert(_borrowed(packed.data, ov.Type.u4, (out, groups, GROUP)), "f16")
    scale, zero = (op.constant(array[..., None]) for array in (packed.scale, packed.zero))
    scaled = op.multiply(op.subtract(whole, op.convert(zero, "f16")), scale)
    return op.convert(op.reshape(scaled, i32([out, groups * GROUP]), False), "f32")


def _borrowed(data: NDArray[np.generic], kind: ov.Type, shape: Sequence[int]) -> ov.Node:
    """A constant over the array's own memory, so that weights are not held twice."""
    return ov.op.Constant(ov.Tensor(data, ov.Shape(list(shape)), kind))


def _gelu(x: ov.Node) -> ov.Node:
    return op.gelu(x, "tanh")


def i32(value: int | Sequence[int]) -> ov.Node:
    return op.constant(np.asarray(value, np.int32))


def i64(value: int | Sequence[int]) -> ov.Node:
    return op.constant(np.asarray(value, np.int64))


def f32(value: float) -> ov.Node:
    return op.constant(np.asarray(value, np.float32))
