"""Packed weights: made once, a piece of whole rows at a time, then mapped from the cache.

Unpacking and quantising are done by as many threads as there are cores; each holds a few times `PIECE`, which is little
enough to stay in its core's cache. fp32 and bf16 are not cached: reading them again costs no more than reading the copy
would.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.models import cache
from paceline.models.cache import Progress
from paceline.models.config import ModelConfig
from paceline.models.weights import Checkpoint
from paceline.runners.openvino.quantise import (
    HeadForm,
    Packed,
    Precision,
    joined,
    kind_of,
    pack,
    packed_shapes,
    stored_shapes,
)

PIECE = 1 << 19
"""Bytes of unpacked weights that a thread works on at a time."""
_VERSION, _ALIGN = 5, 64
_FAMILIES = (("q", "k", "v"), ("gate", "up"))
_SHOW_SECONDS, _DRAIN_SECONDS = 0.1, 0.02
LOOK_UPS = 256
"""Rows of tables that are read before their memory is given back: the system maps up to 64 KiB around each."""


class Store(Protocol):
    """A `Fetch`."""

    def __call__(self, *names: str) -> Packed:
        """Return a tensor's packed form, or the rows of several one after the other."""

    def draining(self) -> AbstractContextManager[None]:
        """Keep giving back the memory of what is read meanwhile; what is read again comes from the file."""

    def looked_up(self, rows: int) -> None:
        """Note that so many rows were read, each with pages around it; now and then their memory is given back."""


def open_weights(
    checkpoint: Checkpoint, wanted: Precision, progress: Progress = cache.silent, head: HeadForm | None = None
) -> Store:
    """Return a checkpoint's weights in the wanted form, converting and caching them if need be.

    Args:
        head: the form of what answers, if not what goes with `wanted`; then it is the tensor "head" also where it is
            tied to the embeddings, which stay as they are.
    """
    if wanted in ("fp32", "bf16"):
        return _Direct(checkpoint, wanted)
    layout = _layout(checkpoint.config, wanted, head)
    form = wanted if head is None else f"{wanted}-head-{head}"
    path = cache.directory() / checkpoint.weights.fingerprint[:32] / f"weights-{form}-{_VERSION}.bin"
    cache.cached(path, lambda file: _convert(file, checkpoint, layout, progress), lambda p: _is_whole(p, layout))
    return _Mapped(path, layout)


class _Direct:
    def __init__(self, checkpoint: Checkpoint, wanted: Precision) -> None:
        self._weights, self._wanted = checkpoint.weights, wanted
        self._shapes = checkpoint.config.tensor_shapes()
        self._kept: dict[tuple[str, ...], Packed] = {}

    def draining(self) -> AbstractContextManager[None]:
        """Drain nothing: these arrays are all there is."""
        return nullcontext()

    def looked_up(self, rows: int) -> None:
        """Give nothing back, likewise."""

    def __call__(self, *names: str) -> Packed:
        if names not in self._kept:
            self._kept[names] = joined([self._read(name) for name in names])
        return self._kept[names]

    def _read(self, name: str) -> Packed:
        return pack(kind_of(name, self._shapes[name], self._wanted), self._weights.read(name))


class _Entry:
    """Where one tensor lies in the file: each of its arrays."""

    def __init__(self, name: str, source: str, shape: tuple[int, ...], kind: Precision) -> None:
        self.name, self.source, self.kind = name, source, kind
        self.numbers = math.prod(shape)
        self.arrays = packed_shapes(kind, shape)
        self.offsets = [0] * len(self.arrays)

    def size(self, array: int) -> int:
        shape, dtype = self.arrays[array]
        return math.prod(shape) * dtype.itemsize

    @property
    def end(self) -> int:
        return _aligned(self.offsets[-1] + self.size(-1))


def _layout(config: ModelConfig, wanted: Precision, head: HeadForm | None) -> dict[str, _Entry]:
    """Lay the tensors out; those that are read as one matrix lie together, an array of all of them after the other."""
    entries: dict[str, _Entry] = {}
    own, shapes = config.tensor_shapes(), stored_shapes(config, head)
    offset = _ALIGN
    for together in _together(list(shapes)):
        run = [_Entry(n, n if n in own else "embed", shapes[n], kind_of(n, shapes[n], wanted, head)) for n in together]
        for array in range(len(run[0].arrays)):
            for entry in run:
                entry.offsets[array], offset = offset, offset + entry.size(array)
            offset = _aligned(offset)
        entries |= {entry.name: entry for entry in run}
    return entries


def _together(names: Sequence[str]) -> list[list[str]]:
    """Return all names, those of matrices that read the same rows in one list."""
    found: list[list[str]] = []
    for name in names:
        layer, _, part = name.rpartition(".")
        whole = [parts for parts in _FAMILIES if part in parts and all(f"{layer}.{one}" in names for one in parts)]
        family = whole[0] if whole else (part,)
        if part == family[0]:
            found.append([name if one == part else f"{layer}.{one}" for one in family])
    return found


def _header(layout: dict[str, _Entry]) -> bytes:
    """A digest of the layout; a file whose header differs was made by another version."""
    summary = json.dumps([_VERSION, [(e.name, e.kind, e.arrays[0][0], e.offsets) for e in layout.values()]])
    return b"paceline " + blake2b(summary.encode(), digest_size=16).hexdigest().encode().ljust(_ALIGN - 9)


def _is_whole(path: Path, layout: dict[str, _Entry]) -> bool:
    end = list(layout.values())[-1].end
    if not path.is_file() or path.stat().st_size != end:
        return False
    with path.open("rb") as file:
        return file.read(_ALIGN) == _header(layout)


def _convert(file: BinaryIO, checkpoint: Checkpoint, layout: dict[str, _Entry], progress: Progress) -> None:
    """Fill the file, the largest tensors first, so that no thread is left with one at the end."""
    entries = sorted(layout.values(), key=lambda entry: -entry.numbers)
    work = _Work(checkpoint, file.fileno())
    file.truncate(list(layout.values())[-1].end)
    _write(file.fileno(), _header(layout), 0)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            _follow([pool.submit(work.convert, entry) for entry in entries], work, entries, progress)
        finally:
            work.stopped.set()
            pool.shutdown(cancel_futures=True)


def _follow(running: list[Future[None]], work: _Work, entries: list[_Entry], progress: Progress) -> None:
    """Show progress until all is done, or raise what went wrong first."""
    total, waiting = sum(entry.numbers for entry in entries), set(running)
    while waiting:
        done, waiting = wait(waiting, _SHOW_SECONDS, FIRST_EXCEPTION)
        for future in done:
            future.result()
        progress("converting weights", work.done, total)


class _Work:
    """Converts tensors, several at a time; every number of the file has its place, so nobody waits for another."""

    def __init__(self, checkpoint: Checkpoint, file: int) -> None:
        self._checkpoint, self._file = checkpoint, file
        self._counts: list[int] = []
        self.stopped = Event()

    @property
    def done(self) -> int:
        return sum(self._counts)

    def convert(self, entry: _Entry) -> None:
        start = 0
        for rows in self._checkpoint.weights.rows(entry.source, PIECE):
            if self.stopped.is_set():
                return
            for array, offset in zip(pack(entry.kind, rows).arrays, entry.offsets, strict=True):
                _write_rows(self._file, array, offset, start)
            start += len(rows)
            self._counts.append(rows.size)


def _write_rows(file: int, rows: NDArray[np.generic], offset: int, start: int) -> None:
    _write(file, np.ascontiguousarray(rows).data.cast("B"), offset + start * (rows.nbytes // len(rows)))


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


class _Mapped:
    def __init__(self, path: Path, layout: dict[str, _Entry]) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._layout = layout
        self._looked_up = 0

    def looked_up(self, rows: int) -> None:
        self._looked_up += rows
        if self._looked_up >= LOOK_UPS:
            self._looked_up = 0
            self._give_back()

    @contextmanager
    def draining(self) -> Iterator[None]:
        done = Event()
        with ThreadPoolExecutor(1) as beside:
            beside.submit(self._drain, done)
            try:
                yield
            finally:
                done.set()

    def _drain(self, done: Event) -> None:
        last = False
        while not last:
            last = done.wait(_DRAIN_SECONDS)
            self._give_back()

    def _give_back(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)

    def __call__(self, *names: str) -> Packed:
        entries = [self._layout[name] for name in names]
        if any(b.offsets[0] != a.offsets[0] + a.size(0) for a, b in pairwise(entries)):
            return joined([self(name) for name in names])
        first = entries[0]
        rows = sum(entry.arrays[0][0][0] for entry in entries)
        views = [
            self._view(offset, dtype, (rows, *shape[1:]))
            for offset, (shape, dtype) in zip(first.offsets, first.arrays, strict=True)
        ]
        return Packed(first.kind, *views)

    def _view(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self._bytes[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN
