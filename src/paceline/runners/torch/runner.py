"""The torch runner: models of `transformers` behind the Runner protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from paceline.errors import CorruptModel, OptionError, OutOfMemory, UnsupportedModel
from paceline.models.shards import open_shards, read_json
from paceline.runners.base import Output, RunnerInfo, Span, Want
from paceline.runners.torch.attention import NotPaged
from paceline.runners.torch.own import OwnStates
from paceline.runners.torch.paged import Paged
from paceline.runners.torch.taps import host

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_ENDLESS = 2**20
"""Context of a model that names none (recurrent ones)."""


class TorchRunner:
    """Any causal model of `transformers`.

    Where every layer is attention, full or with a window, keys and values are paged and trees run in one pass. Other
    models (recurrent, hybrid, with an attention of their own) keep the state that `transformers` makes for them, one
    for each sequence: they decode plainly and exactly, `info.can_rewind` is False, and `reason` says why. Sequences of
    such a model must not share blocks, since the first block of a sequence is what its state is known by.

    Args:
        model: a directory with safetensors, or a model in memory, which is the runner's from then on.
        dtype: of the weights and of the cache.
        trust_remote_code: run code that lies beside the model.
    """

    def __init__(
        self,
        model: Path | Any,
        device: str = "cpu",
        dtype: Literal["fp32", "bf16"] = "fp32",
        trust_remote_code: bool = False,
        block_size: int = 32,
    ) -> None:
        if dtype not in _DTYPES:
            raise OptionError(f"dtype={dtype!r}; allowed: {', '.join(_DTYPES)}")
        if isinstance(model, Path):
            model = _load(model, _DTYPES[dtype], trust_remote_code)
        if model.dtype != _DTYPES[dtype]:  # converting it here would round its rotary frequencies too
            raise OptionError(f"dtype={dtype!r}, and the model in memory has {model.dtype}; make it in that type")
        model = _on(device, model)
        self._model = model
        self._kind, self.reason = _kind(model, block_size)
        config = model.config.get_text_config()
        self._info = RunnerInfo(
            vocab_size=config.vocab_size,
            layers=config.num_hidden_layers,
            context=_context(config),
            block_size=block_size,
            block_bytes=self._kind.block_bytes,
            can_rewind=self.reason is None,
            name="torch",
            weights=dtype,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def table(self) -> Tensor:
        """The token embeddings [vocabulary, width] as they are: what looks them up may scale them (Gemma-3).

        Raises:
            UnsupportedModel: the model has no such table.
        """
        try:
            found: Tensor = self._model.get_input_embeddings().weight
        except (NotImplementedError, AttributeError):
            raise UnsupportedModel(
                f"{type(self._model).__name__} has no table of token embeddings, which draft heads read; use no heads"
            ) from None
        return found

    def allocate(self, blocks: int) -> None:
        self._kind.allocate(blocks)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        return self._kind.forward(spans, want)

    @torch.inference_mode()
    def embed(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        table = self.table
        return host(table[torch.from_numpy(tokens).to(table.device)])

    @torch.inference_mode()
    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self._kind.move(source, target)


def _kind(model: Any, block_size: int) -> tuple[Paged | OwnStates, str | None]:
    try:
        return Paged(model, block_size), None
    except NotPaged as error:
        return OwnStates(model, block_size), str(error)


def _load(directory: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    read_json(directory / "config.json")
    open_shards(directory)  # transformers' own words for a missing or damaged file are harder to follow
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise CorruptModel(f"{directory}: {_line(error)}") from None
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UnsupportedModel(f"{directory}: transformers cannot load it: {_line(error)}") from None
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise CorruptModel(f"{directory} lacks {', '.join(missing[:5])} ({len(missing)} tensors)")
    return model


def _on(device: str, model: Any) -> Any:
    try:
        return model.to(torch.device(device)).eval()
    except torch.OutOfMemoryError:
        raise OutOfMemory(f"the weights do not fit on {device}; use dtype='bf16' or a smaller model") from None
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device={device!r}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _context(config: Any) -> int:
    """Return the longest sequence that is exact beside any other.

    Some rotary scalings stretch every row of a batch once its longest sequence leaves the original context; we stay
    within it.
    """
    most = int(getattr(config, "max_position_embeddings", None) or _ENDLESS)
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type") == "longrope":
            most = min(most, int(part.get("original_max_position_embeddings", most)))
    return most
