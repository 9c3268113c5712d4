"""What a GGUF file's header claims, checked as it is read; a hundred times as fast as the gguf library, whose parser
believes every count. Arrays are read when they are asked for, tensors a piece at a time.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelError, UnsupportedModel

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_TYPES = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
"""Scalars by the number of their type."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_ALIGNMENT = "general.alignment"
_VERSIONS = (2, 3)
# Many times what any model has, and little enough that a parsed table fits in memory.
_MOST_KEYS, _MOST_TENSORS, _MOST_ENTRIES, _MOST_DIMS = 1 << 16, 1 << 17, 1 << 22, 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    name: str
    path: Path
    shape: tuple[int, ...]
    """Fastest first, as the file has it."""
    tensor_type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""

    @property
    def row_bytes(self) -> int:
        numbers, size = GGML_QUANT_SIZES[self.tensor_type]
        return self.shape[0] // int(numbers) * int(size)

    @property
    def rows(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def end(self) -> int:
        return self.offset + self.rows * self.row_bytes

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return rows as stored, [rows, bytes].

        Raises:
            CorruptModel: the file ends before they do, or is gone.
        """
        count = (stop - start) * self.row_bytes
        try:
            found = np.fromfile(self.path, np.uint8, count, offset=self.offset + start * self.row_bytes)
        except OSError as error:
            raise CorruptModel(f"{self.path} cannot be read any more ({error.strerror}); give it again") from None
        if len(found) < count:
            raise CorruptModel(f"{self.path.name} is truncated; download it again")
        return found.reshape(stop - start, self.row_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """The tables of a GGUF file."""

    path: Path
    values: dict[str, tuple[int, int]]
    """Key -> type and place of its value."""
    tensors: dict[str, StoredTensor]

    def value(self, key: str) -> Any:
        """Return a value as Python has it, or None.

        Raises:
            UnicodeDecodeError: a text in it is none.
        """
        if key not in self.values:
            return None
        kind, at = self.values[key]
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data, self.path, at).value(kind)


def read_header(path: Path) -> Header:
    """Walk through the tables of a file.

    Raises:
        CorruptModel: it is not a GGUF file, ends before its tables do, or claims what no file can hold.
        UnsupportedModel: it is of a version, or of a byte order, that is not read.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CorruptModel(
                f"{path.name} is not a GGUF file (its first four bytes are not 'GGUF'); download it again"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data, path, 4).through()


class _Walk:
    def __init__(self, data: mmap.mmap, path: Path, at: int) -> None:
        self._data, self._path, self._name = data, path, path.name
        self._at, self._entries = at, 0

    def through(self) -> Header:
        version = self._number(_U32)
        if version not in _VERSIONS:
            order = "is big-endian" if version & 0xFFFF == 0 else f"is of version {version}"
            raise UnsupportedModel(f"{self._name} {order}; read are versions 2 and 3, little-endian: convert it again")
        tensors, keys = self._number(_U64), self._number(_U64)
        if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
            raise self._damaged(f"it claims {tensors} tensors and {keys} keys")
        values: dict[str, tuple[int, int]] = {}
        for _ in range(keys):
            name, kind = self._once(values), self._number(_U32)
            values[name] = (kind, self._at)
            self._pass(kind)
        claimed: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self._once(claimed)
            claimed[name] = self._tensor()
        begin = self._aligned(values)
        return Header(
            self._path,
            values,
            {name: self._stored(name, shape, kind, begin + offset) for name, (shape, kind, offset) in claimed.items()},
        )

    def value(self, kind: int) -> Any:
        """Read the value that begins here."""
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._numbers(kind, 1)[0]
        inner, length = self._number(_U32), self._number(_U64)
        return [self._text() for _ in range(length)] if inner == _STRING else self._numbers(inner, length)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        found: list[Any] = np.frombuffer(self._data, _TYPES[kind], count, self._at).tolist()
        return found

    def _text(self) -> str:
        size = self._number(_U64)
        self._skip(size)
        return self._data[self._at - size : self._at].decode()

    def _once(self, before: dict[str, Any]) -> str:
        try:
            name = self._text()
        except UnicodeDecodeError as error:
            raise self._damaged(f"a name is no text: {error.reason}") from None
        if name in before:
            raise self._damaged(f"{name!r} is there twice")
        return name

    def _aligned(self, values: dict[str, tuple[int, int]]) -> int:
        """Return where the tensors begin."""
        step, end = 32, self._at
        if _ALIGNMENT in values:
            kind, self._at = values[_ALIGNMENT]
            step = self.value(kind) if kind == _UINT32 else 0
        if step == 0 or step & (step - 1):
            raise self._damaged(f"{_ALIGNMENT} is no power of two")
        return -(-end // step) * step

    def _stored(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            raise self._damaged(f"tensor {name} has type {kind}") from None
        if not shape or shape[0] % GGML_QUANT_SIZES[known][0]:
            raise self._damaged(f"tensor {name} of shape {shape} is no whole number of {known.name} blocks a row")
        return StoredTensor(name, self._path, shape, known, offset)

    def _pass(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array(self._number(_U32), self._number(_U64))
        else:
            self._skip(self._size(kind))

    def _array(self, kind: int, length: int) -> None:
        self._entries += length
        if self._entries > _MOST_ENTRIES:
            raise self._damaged(f"its arrays claim {self._entries} entries")
        if kind == _STRING:
            for _ in range(length):
                self._string()
        else:
            self._skip(self._size(kind) * length)

    def _tensor(self) -> tuple[tuple[int, ...], int, int]:
        """Return shape, type and offset."""
        dims = self._number(_U32)
        if dims > _MOST_DIMS:
            raise self._damaged(f"a tensor has {dims} dimensions")
        shape = tuple(self._number(_U64) for _ in range(dims))
        total, kind, offset = math.prod(shape), self._number(_U32), self._number(_U64)
        # The densest blocks hold eight numbers a byte.
        if max(offset, total // 8) > len(self._data):
            raise self._damaged(f"a tensor of {total} numbers begins at byte {offset}, the file has {len(self._data)}")
        return shape, kind, offset

    def _size(self, kind: int) -> int:
        if kind not in _TYPES:
            raise self._damaged(f"a value has type {kind}")
        return np.dtype(_TYPES[kind]).itemsize

    def _string(self) -> None:
        self._skip(self._number(_U64))

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise self._damaged(f"a value at byte {self._at} has {size} bytes, the file has {len(self._data)}")
        self._at += size

    def _number(self, kind: struct.Struct) -> int:
        start = self._at
        self._skip(kind.size)
        value: int = kind.unpack_from(self._data, start)[0]
        return value

    def _damaged(self, what: str) -> ModelError:
        return CorruptModel(f"{self._name} is truncated or damaged ({what}); download it again")
