"""Tensors as they lie in safetensors files: headers are checked whole, data is mapped and unpacked on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from paceline.errors import CorruptModel, ModelNotFound, UnsupportedModel

_STORED: Mapping[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""

    def view(self) -> NDArray[Any]:
        """Return the stored bits, mapped, not read; bf16 shows as uint16.

        Raises:
            CorruptModel: numbers of this kind are not weights that we read.
        """
        if self.dtype not in _STORED:
            known = ", ".join(_STORED)
            raise CorruptModel(f"{self.path}: {self.name} is stored as {self.dtype}; weights are one of {known}")
        return np.memmap(self.path, _STORED[self.dtype], "r", self.offset, self.shape)


def unpack(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Return a contiguous copy in fp32 of a (part of a) view."""
    if bits.dtype == np.uint16:  # bf16 is the upper half of an fp32
        upper: NDArray[np.uint32] = np.left_shift(bits, np.uint32(16), dtype=np.uint32, order="C")
        return upper.view(np.float32)
    return np.array(bits, np.float32, order="C")


@dataclass(frozen=True, slots=True)
class Shards:
    """All tensors of a directory's safetensors files."""

    directory: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]

    def digest(self) -> str:
        """Return the SHA-256 of every byte of every file; about a second for each GB."""
        total = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()


def open_shards(directory: Path, stem: str = "model") -> Shards:
    """Find and check the files that hold a directory's weights: STEM.safetensors, or those that an index names.

    Raises:
        ModelNotFound: there are none, or one that the index names is missing.
        UnsupportedModel: there are only pickled ones.
        CorruptModel: a file is truncated or its header is not sound.
    """
    files = _files(directory, stem)
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        tensors |= _read_header(path)
    return Shards(directory, files, tensors)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        ModelNotFound: there is no such file.
        CorruptModel: it is not JSON, or not an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{path} does not exist; a model directory holds config.json and safetensors") from None
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptModel(f"{path} holds a {type(found).__name__}; an object is expected")
    return found


def _files(directory: Path, stem: str) -> tuple[Path, ...]:
    single, index = directory / f"{stem}.safetensors", directory / f"{stem}.safetensors.index.json"
    if single.is_file():
        return (single,)
    if index.is_file():
        return _indexed(index)
    pickled = sorted(p.name for p in directory.iterdir() if p.suffix in _PICKLED)
    if pickled:
        raise UnsupportedModel(
            f"{directory / pickled[0]} is a pickle, which can run any code when it is opened; "
            "convert the model to safetensors"
        )
    raise ModelNotFound(f"{directory} holds no {single.name} and no {index.name}")


def _indexed(index: Path) -> tuple[Path, ...]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CorruptModel(f"{index} has no weight_map")
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if Path(name).name != name or name in (".", ".."):
            raise CorruptModel(f"{index} names {name!r}, which is not a file beside it")
        if not (index.parent / name).is_file():
            raise ModelNotFound(f"{index.parent / name} does not exist; {index.name} names it: fetch the model again")
    return tuple(index.parent / name for name in names)


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(path, framework="np"):  # checks lengths, offsets and dtypes of the whole header
            pass
    except SafetensorError as error:
        raise CorruptModel(f"{path} is truncated or not a safetensors file: {error}") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: StoredTensor(name, path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
