"""Packed weights: made once, a piece of whole rows at a time, then mapped from the cache.

Unpacking and quantising hold at most a few times `PIECE` in memory. fp32 and bf16 are not cached: reading them again
costs no more than reading the copy would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paceline.models import cache
from paceline.models.cache import Progress
from paceline.models.config import ModelConfig
from paceline.models.weights import Checkpoint
from paceline.runners.openvino.layers import Fetch
from paceline.runners.openvino.quantise import Packed, Precision, kind_of, pack, packed_shapes

PIECE = 32 << 20
"""Bytes of unpacked weights that are in memory at a time."""
_VERSION, _ALIGN = 1, 64


def open_weights(checkpoint: Checkpoint, wanted: Precision, progress: Progress = cache.silent) -> Fetch:
    """Return a checkpoint's weights in the wanted form, converting and caching them if need be."""
    if wanted in ("fp32", "bf16"):
        return _Direct(checkpoint, wanted).fetch
    layout = _layout(checkpoint.config, wanted)
    path = cache.directory() / checkpoint.weights.fingerprint[:32] / f"weights-{wanted}-{_VERSION}.bin"
    cache.cached(path, lambda file: _convert(file, checkpoint, layout, progress), lambda p: _is_whole(p, layout))
    return _Mapped(path, layout).fetch


class _Direct:
    def __init__(self, checkpoint: Checkpoint, wanted: Precision) -> None:
        self._weights, self._wanted = checkpoint.weights, wanted
        self._shapes = checkpoint.config.tensor_shapes()
        self._kept: dict[str, Packed] = {}

    def fetch(self, name: str) -> Packed:
        if name not in self._kept:
            kind = kind_of(name, self._shapes[name], self._wanted)
            self._kept[name] = pack(kind, self._weights.read(name))
        return self._kept[name]


class _Entry:
    """Where one tensor lies in the file: data, then scales."""

    def __init__(self, name: str, shape: tuple[int, ...], wanted: Precision, offset: int) -> None:
        self.name, self.kind = name, kind_of(name, shape, wanted)
        self.shape, self.dtype, self.scales = packed_shapes(self.kind, shape)
        self.offset = offset
        self.scale_offset = _aligned(offset + int(np.prod(self.shape)) * self.dtype.itemsize)
        self.end = _aligned(self.scale_offset + (2 * int(np.prod(self.scales)) if self.scales else 0))


def _layout(config: ModelConfig, wanted: Precision) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    offset = _ALIGN
    for name, shape in config.tensor_shapes().items():
        entries[name] = _Entry(name, shape, wanted, offset)
        offset = entries[name].end
    return entries


def _header(layout: dict[str, _Entry]) -> bytes:
    """A digest of the layout; a file whose header differs was made by another version."""
    summary = json.dumps([_VERSION, [(e.name, e.kind, e.shape, e.offset) for e in layout.values()]])
    return b"paceline " + blake2b(summary.encode(), digest_size=16).hexdigest().encode().ljust(_ALIGN - 9)


def _is_whole(path: Path, layout: dict[str, _Entry]) -> bool:
    end = list(layout.values())[-1].end
    if not path.is_file() or path.stat().st_size != end:
        return False
    with path.open("rb") as file:
        return file.read(_ALIGN) == _header(layout)


def _convert(file: BinaryIO, checkpoint: Checkpoint, layout: dict[str, _Entry], progress: Progress) -> None:
    shapes = checkpoint.config.tensor_shapes()
    total, done = sum(int(np.prod(s)) for s in shapes.values()), 0
    file.write(_header(layout))
    for entry in layout.values():
        for start, rows in _pieces(checkpoint, entry.name):
            packed = pack(entry.kind, rows)
            per_row = packed.data.nbytes // len(rows)
            file.seek(entry.offset + start * per_row)
            file.write(packed.data.tobytes())
            if packed.scale is not None:
                file.seek(entry.scale_offset + start * packed.scale.nbytes // len(rows))
                file.write(packed.scale.tobytes())
            done += rows.size
            progress("converting weights", done, total)
    file.truncate(list(layout.values())[-1].end)


def _pieces(
    checkpoint: Checkpoint, name: str
) -> Iterator[tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    start = 0
    for rows in checkpoint.weights.rows(name, PIECE):
        yield start, rows
        start += len(rows)


class _Mapped:
    def __init__(self, path: Path, layout: dict[str, _Entry]) -> None:
        self._map = np.memmap(path, np.uint8, "r")
        self._layout = layout

    def fetch(self, name: str) -> Packed:
        entry = self._layout[name]
        size = int(np.prod(entry.shape)) * entry.dtype.itemsize
        data = self._map[entry.offset : entry.offset + size].view(entry.dtype).reshape(entry.shape)
        if entry.scales is None:
            return Packed(entry.kind, data, None)
        size = int(np.prod(entry.scales)) * 2
        scale = self._map[entry.scale_offset : entry.scale_offset + size].view(np.float16).reshape(entry.scales)
        return Packed(entry.kind, data, scale)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN
