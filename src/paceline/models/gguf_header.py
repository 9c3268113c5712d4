"""What a GGUF file's header claims, checked before it is parsed: the library that parses it believes every count."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from paceline.errors import CorruptModel, ModelError, UnsupportedModel

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a scalar by its type."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
# Many times what any model has, and little enough that a parsed table fits in memory.
_MOST_KEYS, _MOST_TENSORS, _MOST_ENTRIES, _MOST_DIMS = 1 << 16, 1 << 17, 1 << 22, 4


def check_header(path: Path) -> None:
    """Walk through the tables of a file without keeping anything.

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
            _Walk(data, path.name).through()


class _Walk:
    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data, self._name = data, name
        self._at, self._entries = 4, 0

    def through(self) -> None:
        version = self._number(_U32)
        if version not in _VERSIONS:
            order = "is big-endian" if version & 0xFFFF == 0 else f"is of version {version}"
            raise UnsupportedModel(f"{self._name} {order}; read are versions 2 and 3, little-endian: convert it again")
        tensors, keys = self._number(_U64), self._number(_U64)
        if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
            raise self._damaged(f"it claims {tensors} tensors and {keys} keys")
        for _ in range(keys):
            self._string()
            self._value(self._number(_U32))
        for _ in range(tensors):
            self._tensor()

    def _value(self, kind: int) -> None:
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

    def _tensor(self) -> None:
        self._string()
        dims = self._number(_U32)
        if dims > _MOST_DIMS:
            raise self._damaged(f"a tensor has {dims} dimensions")
        total = 1
        for _ in range(dims):
            total *= self._number(_U64)
        self._number(_U32)
        offset = self._number(_U64)
        # The densest blocks hold eight numbers a byte.
        if max(offset, total // 8) > len(self._data):
            raise self._damaged(f"a tensor of {total} numbers begins at byte {offset}, the file has {len(self._data)}")

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise self._damaged(f"a value has type {kind}")
        return _SIZES[kind]

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
