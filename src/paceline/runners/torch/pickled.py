"""Tensors of .bin and .pt files. torch reads them with an unpickler that knows tensors and nothing else."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel, MissingExtra
from paceline.models.heads_files import Stored

if TYPE_CHECKING:
    from torch import Tensor


def read(path: Path) -> Mapping[str, Stored]:
    """Return the tensors of a file; where its format allows it they are mapped, not read.

    Raises:
        MissingExtra: torch is not installed.
        CorruptModel: the file is damaged, or holds something else than tensors by name.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(f"{path} is a pickle, which only torch can read safely: pip install 'paceline[torch]'")
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch's readers fail in many ways on a damaged or hostile file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptModel(f"{path} cannot be read as tensors ({reason}); fetch it again, or get safetensors") from None
    if not isinstance(found, dict) or not all(
        isinstance(t, torch.Tensor) and isinstance(n, str) for n, t in found.items()
    ):
        raise CorruptModel(f"{path} holds something else than tensors by name; fetch it again, or get safetensors")
    return {name: _Loaded(path, name, tensor) for name, tensor in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    path: Path
    name: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def floats(self) -> NDArray[np.float32]:
        if not self.tensor.is_floating_point():
            raise CorruptModel(f"{self.path}: {self.name} is stored as {self.tensor.dtype}; weights are floats")
        return np.array(self.tensor.detach().float().numpy(), np.float32, order="C")

    def whole(self) -> NDArray[np.int64]:
        if self.tensor.is_floating_point() or self.tensor.is_complex():
            raise CorruptModel(f"{self.path}: {self.name} is stored as {self.tensor.dtype}; token ids are integers")
        return np.array(self.tensor.detach().long().numpy(), np.int64)
