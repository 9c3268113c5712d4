"""The files that draft heads are kept in: safetensors, or a pickle that somebody else reads without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel, MissingExtra, ModelNotFound
from paceline.models.shards import StoredTensor, open_shards, unpack

_WHOLE: Mapping[str, type[np.generic]] = {"I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8}


class Stored(Protocol):
    """A tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def floats(self) -> NDArray[np.float32]:
        """Return a copy in fp32.

        Raises:
            CorruptModel: it holds no weights.
        """

    def whole(self) -> NDArray[np.int64]:
        """Return a copy of integers, or of truths as 0 and 1.

        Raises:
            CorruptModel: it holds other numbers.
        """


Pickled = Callable[[Path], Mapping[str, Stored]]
"""Reads the tensors of a .bin or .pt file, and runs nothing in it."""


def open_stored(directory: Path, stems: tuple[str, ...], pickle: str, pickled: Pickled | None) -> Mapping[str, Stored]:
    """Find the tensors of a directory: STEM.safetensors, with or without an index, else the file named `pickle`.

    Raises:
        ModelNotFound: there is none of them.
        MissingExtra: there is only the pickle, and nothing to read it with.
        CorruptModel: a file is damaged.
    """
    for stem in stems:
        if any((directory / f"{stem}.safetensors{end}").is_file() for end in ("", ".index.json")):
            return {name: _Mapped(tensor) for name, tensor in open_shards(directory, stem).tensors.items()}
    path = directory / pickle
    if not path.is_file():
        named = ", ".join(f"{stem}.safetensors" for stem in stems)
        raise ModelNotFound(f"{directory} holds no {named} and no {pickle}; give a directory of draft heads")
    if pickled is None:
        raise MissingExtra(f"{path} is a pickle, which only torch can read safely: pip install 'paceline[torch]'")
    return pickled(path)


@dataclass(frozen=True, slots=True)
class _Mapped:
    tensor: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def floats(self) -> NDArray[np.float32]:
        return unpack(self.tensor.view())

    def whole(self) -> NDArray[np.int64]:
        stored = self.tensor
        if stored.dtype not in _WHOLE:
            raise CorruptModel(
                f"{stored.path}: {stored.name} is stored as {stored.dtype}; token ids are one of {', '.join(_WHOLE)}"
            )
        return np.array(np.memmap(stored.path, _WHOLE[stored.dtype], "r", stored.offset, stored.shape), np.int64)
