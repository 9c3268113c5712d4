"""Paged attention as an operation in a graph. OpenVINO calls its Python class experimental: it is named here only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op import _PagedAttentionExtension

BLOCK_SIZE = 32
"""Tokens in a block of the CPU plugin."""

INDEX_INPUTS = {
    "past_lens": ([-1], ov.Type.i32),
    "subsequence_begins": ([-1], ov.Type.i32),
    "block_indices": ([-1], ov.Type.i32),
    "block_indices_begins": ([-1], ov.Type.i32),
    "max_context_len": ([], ov.Type.i32),
    "qq_bias": ([-1], ov.Type.u8),
    "qq_bias_begins": ([-1], ov.Type.i32),
}
"""What every attention of a graph reads: the ragged batch, its block tables, and which row of a tree sees which."""


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    key_value: int
    dim: int


def parameter(name: str, shape: list[int], kind: ov.Type) -> ov.Node:
    node = op.parameter(shape, kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def caches(layer: int, heads: Heads) -> list[ov.Node]:
    """Return the key and value cache inputs of a layer; the plugin settles their shape and type."""
    found = [parameter(f"{kind}_cache.{layer}", [-1, -1, -1, -1], ov.Type.dynamic) for kind in ("key", "value")]
    for node in found:
        info = node.get_rt_info()
        info["num_kv_heads"], info["head_size"] = heads.key_value, heads.dim
    return found


def paged_attention(
    qkv: list[ov.Output], cache: list[ov.Node], index: Mapping[str, ov.Node], heads: Heads, scale: float, window: int
) -> ov.Output:
    """Attend from the new rows to what is cached and to each other.

    Args:
        qkv: query, key and value, each [rows, heads * dim].
        window: tokens that a row sees, itself included; 0 for all.
    """
    i32, f32 = _constant(np.int32), _constant(np.float32)
    no_ints, no_floats = i32(np.zeros(0)), f32(np.zeros(0))
    no_slopes, no_score_window = no_floats, no_ints
    no_rotation = [no_ints, no_ints, no_floats]  # of blocks that moved when a cache was thinned out
    no_sparsity = [no_floats, i32(0), i32(0)]
    no_sinks = f32(np.zeros((0, 0, 0, 0)))
    no_eviction = [i32(0), no_ints, no_ints, no_ints, no_ints]
    inputs = [
        *cache,
        *(index[name] for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")),
        f32(scale),
        i32(window),
        no_slopes,
        index["max_context_len"],
        no_score_window,
        *no_rotation,
        *no_sparsity,
        no_sinks,
        *no_eviction,
        index["qq_bias"],
        index["qq_bias_begins"],
    ]
    node = _PagedAttentionExtension([*qkv, *(n.output(0) for n in inputs)])
    info = node.get_rt_info()
    info["num_k_heads"] = info["num_v_heads"] = heads.key_value
    info["k_head_size"] = info["v_head_size"] = heads.dim
    return node.output(0)


def _constant(kind: type[np.generic]) -> Callable[[object], ov.Node]:
    return lambda value: op.constant(np.asarray(value, kind))
