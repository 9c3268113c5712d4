"""Weights in the forms that the CPU plugin multiplies without unpacking them.

int4  symmetric groups of 128 along the input, two weights a byte; where the input is no multiple of 128, and for
      what answers (a decoder's head or a draft head's), int8. Smaller groups make a pass of many rows steep, so they
      are not used.
int8  symmetric, one scale a row.
bf16  rounded to nearest even.
fp32  as they are: the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel
from paceline.models.config import ModelConfig
from paceline.models.heads import HeadsConfig

Precision = Literal["int4", "int8", "bf16", "fp32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
GROUP = 128
_HALF = np.finfo(np.float16)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [out, in] as stored."""

    kind: Precision
    data: NDArray[np.generic]
    """int4: uint8 [out, in / 2], low nibble first; int8: int8 [out, in]; bf16: uint16; fp32: float32."""
    scale: NDArray[np.float16] | None
    """int4: [out, in / 128]; int8: [out, 1]; else None."""

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unpack whole rows: the embeddings of tokens."""
        picked = self.data[ids]
        if self.kind == "fp32":
            return picked.astype(np.float32, copy=False)
        if self.kind == "bf16":
            return (picked.astype(np.uint32) << 16).view(np.float32)
        assert self.kind == "int8" and self.scale is not None, "embeddings are never int4"
        return picked.astype(np.float32) * self.scale[ids].astype(np.float32)


def kind_of(name: str, shape: tuple[int, ...], wanted: Precision) -> Precision:
    """Return the form in which a tensor is kept when a model is asked for in `wanted`."""
    if len(shape) == 1:
        return "fp32"
    outer = name in ("embed", "head", "positions") or name.endswith(".out")
    if wanted == "int4" and (outer or shape[1] % GROUP):
        return "int8"
    return wanted


def packed_shapes(
    kind: Precision, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], np.dtype[np.generic], tuple[int, int] | None]:
    """Return the stored shape and type of the data, and the shape of the scales."""
    if kind == "int4":
        return (shape[0], shape[1] // 2), np.dtype(np.uint8), (shape[0], shape[1] // GROUP)
    if kind == "int8":
        return shape, np.dtype(np.int8), (shape[0], 1)
    return shape, np.dtype(np.uint16 if kind == "bf16" else np.float32), None


def pack(kind: Precision, rows: NDArray[np.float32]) -> Packed:
    """Convert a piece of whole rows (or a vector, for fp32)."""
    if kind == "fp32":
        return Packed(kind, np.ascontiguousarray(rows, np.float32), None)
    if kind == "bf16":
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        return Packed(kind, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), None)
    if kind == "int8":
        whole, scale = _round(rows, rows.shape[1], 127)
        return Packed(kind, whole, scale)
    whole, scale = _round(rows, GROUP, 7)
    nibbles = whole.view(np.uint8) & 15
    return Packed(kind, nibbles[:, 0::2] | (nibbles[:, 1::2] << 4), scale)


def _round(rows: NDArray[np.float32], group: int, top: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    grouped = rows.reshape(rows.shape[0], -1, group)
    peak = np.abs(grouped).max(-1)
    if not (peak <= _HALF.max).all():
        raise CorruptModel(
            f"the weights hold {peak.max()}, int8 and int4 hold numbers up to {_HALF.max}; take bf16 or fp32 weights, "
            "or download the model again"
        )
    scale = (peak / np.float32(top)).astype(np.float16)
    # Below this, fp16 is so coarse that the nearest scale may be far too small, or nothing: take the next.
    scale = np.where(scale < _HALF.tiny, np.nextafter(scale, np.float16(1)), scale)
    whole = np.rint(grouped / scale[..., None].astype(np.float32))
    return np.clip(whole, -top - 1, top).astype(np.int8).reshape(rows.shape), scale


def packed_bytes(config: ModelConfig | HeadsConfig, wanted: Precision) -> int:
    """Return the size of all weights once packed."""
    total = 0
    for name, shape in config.tensor_shapes().items():
        stored, dtype, scales = packed_shapes(kind_of(name, shape, wanted), shape)
        total += int(np.prod(stored)) * dtype.itemsize + (int(np.prod(scales)) * 2 if scales else 0)
    return total
