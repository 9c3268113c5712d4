"""Weights in the forms that the CPU plugin multiplies without unpacking them.

int4  0 … 15 with a scale and a zero for every 128 along the input, two weights a byte; where the input is no multiple
      of 128, and for what answers (a decoder's head or a draft head's) unless it is to be int4 as well, int8. Smaller
      groups make a pass of many rows steep, so they are not used.
int8  symmetric, one scale a row.
bf16  rounded to nearest even.
fp32  as they are: the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel, OptionError
from paceline.models.config import ModelConfig
from paceline.models.heads import HeadsConfig

Precision = Literal["int4", "int8", "bf16", "fp32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
HeadForm = Literal["int4", "int8"]
"""Of the matrix that answers, where it is not what goes with the other weights."""
KVForm = Literal["f16", "u8"]
"""Of keys and values: fp16, or bytes with a scale and a zero for every few of a token."""
GROUP = 128
KV_GROUP = 32
"""With one scale for a whole head, single keys that are large take most of the precision from all the others."""
_HALF = np.finfo(np.float16)
_SCALE_AND_ZERO = 8
"""Bytes of two fp32 numbers."""
_FAINT = float(_HALF.smallest_subnormal) / 4
"""A group of numbers below it is zero in any scale of fp16."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [out, in] as stored."""

    kind: Precision
    data: NDArray[np.generic]
    """int4: uint8 [out, in / 2], low nibble first; int8: int8 [out, in]; bf16: uint16; fp32: float32."""
    scale: NDArray[np.float16] | None = None
    """int4: [out, in / 128]; int8: [out, 1]; else None."""
    zero: NDArray[np.uint8] | None = None
    """int4: [out, in / 128], 0 to 15, what stands for the number 0; else None."""

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """Those that it has, each of one row a row."""
        return [array for array in (self.data, self.scale, self.zero) if array is not None]

    def picked(self, ids: NDArray[np.int64]) -> Packed:
        """Return some of the rows."""
        return Packed(self.kind, *(array[ids] for array in self.arrays))

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unpack whole rows: the embeddings of tokens."""
        picked = self.data[ids]
        if self.kind == "fp32":
            return picked.astype(np.float32, copy=False)
        if self.kind == "bf16":
            return (picked.astype(np.uint32) << 16).view(np.float32)
        assert self.kind == "int8" and self.scale is not None, "tables that are looked up are never int4"
        return picked.astype(np.float32) * self.scale[ids].astype(np.float32)


def kind_of(name: str, shape: tuple[int, ...], wanted: Precision, head: HeadForm | None = None) -> Precision:
    """Return the form in which a tensor is kept when a model is asked for in `wanted`, and its head in `head`."""
    if len(shape) == 1:
        return "fp32"
    outer = name in ("embed", "head", "positions") or name.endswith(".out")
    if name == "head" and head is not None:
        wanted, outer = head, False
    if wanted == "int4" and (outer or shape[1] % GROUP):
        return "int8"
    return wanted


def packed_shapes(kind: Precision, shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Return the shape and type of each of `Packed.arrays`."""
    if kind == "int4":
        groups = (shape[0], shape[1] // GROUP)
        types = (np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.uint8))
        return list(zip(((shape[0], shape[1] // 2), groups, groups), types, strict=True))
    if kind == "int8":
        return [(shape, np.dtype(np.int8)), ((shape[0], 1), np.dtype(np.float16))]
    return [(shape, np.dtype(np.uint16 if kind == "bf16" else np.float32))]


def pack(kind: Precision, rows: NDArray[np.float32]) -> Packed:
    """Convert a piece of whole rows (or a vector, for fp32)."""
    if kind == "fp32":
        return Packed(kind, np.ascontiguousarray(rows, np.float32))
    if kind == "bf16":
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        return Packed(kind, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    if kind == "int8":
        return Packed(kind, *_by_rows(rows))
    whole, scale, zero = _fitted(rows.reshape(-1, GROUP))
    groups = len(rows), rows.shape[1] // GROUP
    return Packed(kind, _paired(whole.reshape(rows.shape)), scale.reshape(groups), zero.reshape(groups))


def joined(parts: Sequence[Packed]) -> Packed:
    """Return the rows of matrices of one kind and width, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Packed(parts[0].kind, *(np.concatenate(each) for each in zip(*(p.arrays for p in parts), strict=True)))


def _by_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Round to -127 … 127, each row by its largest number."""
    scale = _halved(_bounded(np.abs(rows).max(1, keepdims=True)) / np.float32(127))
    whole = rows / scale.astype(np.float32)
    np.rint(whole, out=whole)
    return np.clip(whole, -128, 127, out=whole).astype(np.int8), scale


def _fitted(groups: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.uint8]]:
    """Round to 0 … 15 between each group's lowest and highest number, 0 among them and kept as it is.

    The scale is then the best for the numbers so rounded, in squared error weighted by their squares: the answers show
    most what large weights lose.
    """
    high = _bounded(np.maximum(_reduced(np.maximum, groups), 0))
    low = _bounded(np.minimum(_reduced(np.minimum, groups), 0))
    step = (high - low) / 15
    there = step > _FAINT
    steps = np.divide(1, step, out=np.zeros_like(step), where=there)
    zero = np.rint(-low * steps)
    scaled = groups * steps[:, None]
    whole = _rounded(scaled, zero)
    squares = scaled * scaled
    along = np.einsum("gi,gi,gi->g", squares, scaled, whole)
    length = np.einsum("gi,gi,gi->g", squares, whole, whole)
    scale = _halved(step * np.divide(along, length, out=np.ones_like(step), where=length > 0))
    fitted = _rounded(groups * np.where(there, 1 / scale.astype(np.float32), 0)[:, None], zero)
    return (fitted + zero[:, None]).astype(np.uint8), scale, zero.astype(np.uint8)


def _rounded(scaled: NDArray[np.float32], zero: NDArray[np.float32]) -> NDArray[np.float32]:
    whole = np.rint(scaled)
    return np.clip(whole, -zero[:, None], 15 - zero[:, None], out=whole)


def _reduced(pick: np.ufunc, groups: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reduce each group, by halves first: numpy is slow at reducing short rows."""
    for width in (GROUP // 2, GROUP // 4, GROUP // 8):
        groups = pick(groups[:, :width], groups[:, width:])
    reduced: NDArray[np.float32] = pick.reduce(groups, -1)
    return reduced


def _bounded(peak: NDArray[np.float32]) -> NDArray[np.float32]:
    if not (np.abs(peak) <= _HALF.max).all():
        raise CorruptModel(
            f"the weights hold {np.abs(peak).max()}, int8 and int4 hold numbers up to {_HALF.max}; "
            "take bf16 or fp32 weights, or download the model again"
        )
    return peak


def _halved(scale: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round scales to fp16. Below its normal numbers it is so coarse that the nearest may be far too small, or nothing:
    take the next."""
    half = scale.astype(np.float16)
    return np.where(half < _HALF.tiny, np.nextafter(half, np.float16(1)), half)


def _paired(whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pairs = whole.view(np.uint16)  # little-endian: the first of two is the low byte
    return (pairs | pairs >> 4).astype(np.uint8)


def usual_head(config: ModelConfig, weights: Precision) -> HeadForm | None:
    """Return the form of the head where none is asked for: int4 beside int4 weights, a tenth of a pass for a hundredth
    of perplexity."""
    return "int4" if weights == "int4" and not config.width % GROUP else None


def settle_head(config: ModelConfig, weights: Precision, asked: HeadForm | None) -> HeadForm | None:
    """Return the form of the head where it is another than what goes with the weights.

    Raises:
        OptionError: the head cannot be kept so.
    """
    if asked is None:
        return None
    if weights in ("fp32", "bf16"):
        raise OptionError(
            f"head_weights is {asked!r} and weights is {weights!r}, which is the head's form, too; "
            "leave head_weights out, or take int4 or int8 weights"
        )
    if asked == "int4" and config.width % GROUP:
        raise OptionError(
            f"head_weights is 'int4', in groups of {GROUP}, and the model is {config.width} wide; allowed: int8"
        )
    return None if asked == "int8" else asked


def slot_shape(weights: Precision, kv: KVForm, dim: int) -> tuple[int, type[np.generic]]:
    """Return how many numbers of which type one token's keys (or values) of a head take. fp32 weights have fp32 ones.

    Raises:
        OptionError: keys and values in bytes beside weights in fp32.
    """
    if kv == "u8":
        if weights == "fp32":
            raise OptionError(
                "kv is 'u8' and weights is 'fp32', which is the reference; take kv 'f16' or other weights"
            )
        return dim + _SCALE_AND_ZERO * (dim // kv_group(dim)), np.uint8
    return dim, np.float32 if weights == "fp32" else np.float16


def kv_group(dim: int) -> int:
    """Return how many of a head's numbers share a scale where keys and values are bytes."""
    return dim if dim % KV_GROUP else KV_GROUP


def packed_bytes(config: ModelConfig | HeadsConfig, wanted: Precision, head: HeadForm | None = None) -> int:
    """Return the size of all weights once packed."""
    return sum(tensor_bytes(name, shape, wanted, head) for name, shape in stored_shapes(config, head).items())


def tensor_bytes(name: str, shape: tuple[int, ...], wanted: Precision, head: HeadForm | None = None) -> int:
    arrays = packed_shapes(kind_of(name, shape, wanted, head), shape)
    return sum(math.prod(each) * dtype.itemsize for each, dtype in arrays)


def stored_shapes(config: ModelConfig | HeadsConfig, head: HeadForm | None) -> dict[str, tuple[int, ...]]:
    """Return the tensors that are kept: a head of a form of its own is kept beside the table that it is tied to."""
    shapes = config.tensor_shapes()
    if head is not None and "head" not in shapes:
        shapes = {**shapes, "head": shapes["embed"]}
    return shapes
