"""The common block formats of GGUF, unpacked by whole arrays: several times as fast as the gguf library, which is the
reference in the tests, to the bit, and unpacks what is rarer.

Formats are ggml's: a block is a few scales and 32 or 256 packed numbers ("K" formats: 256, with a scale for every 16 or
32 of them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_Kind = GGMLQuantizationType


def unpack(data: NDArray[Any], kind: GGMLQuantizationType) -> Floats:
    """Return rows of blocks [rows, bytes] as numbers [rows, n].

    Raises:
        NotImplementedError: the format is not known.
    """
    values = _BLOCKS.get(kind)
    if values is None:
        return np.asarray(dequantize(data, kind), np.float32)
    size = GGML_QUANT_SIZES[kind][1]
    return values(data.view(np.uint8).reshape(-1, size)).reshape(len(data), -1)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _scaled(_shifted(_nibbles(blocks[:, 2:], 16), 8), _halves(blocks, 0, 2))


def _q5_0(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 6:], 16).reshape(-1, 32)
    whole |= np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    return _scaled(_shifted(whole, 16), _halves(blocks, 0, 2))


def _q8_0(blocks: Bytes) -> Floats:
    return _scaled(blocks[:, 2:].view(np.int8), _halves(blocks, 0, 2))


def _q4_k(blocks: Bytes) -> Floats:
    return _above_least(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32)
    for i in range(8):
        whole[:, i] |= (blocks[:, 16:48] >> i & 1) << 4
    return _above_least(blocks, whole)


def _q6_k(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, :128], 64).reshape(-1, 2, 4, 32)
    upper = blocks[:, 128:192].reshape(-1, 2, 32)
    for i in range(4):
        whole[:, :, i] |= (upper >> 2 * i & 3) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _scaled(_shifted(whole, 32), _halves(blocks, 208, 210) * scales.astype(np.float32))


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Return the low halves of each run of bytes, then its high halves: [blocks, runs, 2, run]."""
    runs = packed.reshape(len(packed), -1, run)
    out = np.empty((*runs.shape[:2], 2, run), np.uint8)
    np.bitwise_and(runs, 15, out=out[:, :, 0])
    np.right_shift(runs, 4, out=out[:, :, 1])
    return out


def _shifted(whole: Bytes, zero: int) -> NDArray[np.int8]:
    signed = whole.view(np.int8)
    signed -= np.int8(zero)
    return signed


def _halves(blocks: Bytes, start: int, stop: int) -> Floats:
    """Return fp16 numbers that lie within each block."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(np.float16).astype(np.float32)


def _scaled(whole: NDArray[np.int8], scales: Floats) -> Floats:
    """Multiply, given a scale [blocks, n] for every n-th part of a block."""
    values: Floats = whole.reshape(scales.size, -1).astype(np.float32)
    values *= scales.reshape(-1, 1)
    return values


def _above_least(blocks: Bytes, whole: Bytes) -> Floats:
    """Of Q4_K and Q5_K: every 32 numbers have a scale and a least value, of six bits each, in units of the block's.

    Twelve bytes hold the eight pairs: four scales, four least values, and four bytes with the low halves of the others,
    of which the upper bits lie above the first ones.
    """
    unit = _halves(blocks, 0, 4)
    first, second, low = (blocks[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, (low & 15) | (first >> 2 & 48)], axis=1)
    least = np.concatenate([second & 63, (low >> 4) | (second >> 2 & 48)], axis=1)
    values = whole.reshape(-1, 32).astype(np.float32)
    values *= (unit[:, :1] * scales).reshape(-1, 1)
    values -= (unit[:, 1:] * least).reshape(-1, 1)
    return values


_BLOCKS: dict[GGMLQuantizationType, Callable[[Bytes], Floats]] = {
    _Kind.F32: _f32,
    _Kind.F16: _f16,
    _Kind.BF16: _bf16,
    _Kind.Q4_0: _q4_0,
    _Kind.Q5_0: _q5_0,
    _Kind.Q8_0: _q8_0,
    _Kind.Q4_K: _q4_k,
    _Kind.Q5_K: _q5_k,
    _Kind.Q6_K: _q6_k,
}
