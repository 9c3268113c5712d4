"""Draft heads beside a model of `transformers`, on its device and in its type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import OutOfMemory
from paceline.models.heads import Heads
from paceline.runners.base import Span
from paceline.runners.heads import Floats, StepOutput
from paceline.runners.rotary import inverse_frequencies
from paceline.runners.torch.attention import Cache, How, PagedPass, place
from paceline.runners.torch.paged import LayerShape, make_caches, wanted_rows
from paceline.runners.torch.runner import TorchRunner
from paceline.runners.torch.taps import host


class TorchStepHead:
    """An EAGLE-3 head (2503.01840 §3): see `StepHead`.

    Args:
        target: the model that the heads were trained for; token embeddings are its own, unless the heads have some.

    Raises:
        OutOfMemory: the weights do not fit on the target's device.
    """

    def __init__(self, heads: Heads, target: TorchRunner) -> None:
        config = self._config = heads.config
        self._tensors = _on(target.table, heads)
        self._table = self._tensors["embed"] if config.own_embed else target.table
        frequencies = inverse_frequencies(config.rope_theta, config.head_dim, config.rope_scaling)
        self._frequencies = torch.from_numpy(frequencies).to(target.table.device)
        self._shape: LayerShape = (config.kv_heads, config.head_dim, config.head_dim)
        self._caches: dict[int, Cache] = {}
        self.block_size = target.info.block_size
        numbers = self.block_size * 2 * config.kv_heads * config.head_dim
        self.block_bytes: int = numbers * target.table.element_size()

    def allocate(self, blocks: int) -> None:
        self._caches = {}
        self._caches = make_caches({0: self._shape}, blocks, self.block_size, self._table.device, self._table.dtype)

    @torch.inference_mode()
    def fuse(self, taps: Floats) -> Floats:
        config, x = self._config, _tensor(taps, self._table)
        if config.tap_norms:
            parts = x.chunk(len(config.taps), -1)
            x = torch.cat([self._norm(part, f"tap_norms.{i}") for i, part in enumerate(parts)], -1)
        if config.input_norm:
            x = self._norm(x, "input_norm")
        return host(self._linear(x, "fc"))

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], features: Floats) -> StepOutput:
        config, before = self._config, _tensor(features, self._table)
        normed = self._norm(before, "hidden_norm")
        read = torch.cat([self._norm(self._embedded(spans), "embed_norm"), normed], -1)
        x = (normed if config.norm_before_residual else before) + self._attend(read, spans)
        x = x + self._feed_forward(self._norm(x, "ffn_norm"))
        last = self._norm(x, "norm")
        rows = torch.from_numpy(wanted_rows(spans)).to(x.device)
        return StepOutput(host(self._linear(last[rows], "head")), host(last if config.norm_output else x))

    @torch.inference_mode()
    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        device = self._table.device
        self._caches[0].copy(place(source, self.block_size, device), place(target, self.block_size, device))

    def _attend(self, x: Tensor, spans: Sequence[Span]) -> Tensor:
        dim = self._config.head_dim
        query, key, value = (self._linear(x, name).reshape(len(x), -1, dim) for name in "qkv")
        positions = torch.from_numpy(np.concatenate([span.row_positions for span in spans])).to(x.device)
        angles = positions[:, None, None].float() * self._frequencies
        query, key = _rotate(query, angles), _rotate(key, angles)
        current = PagedPass(spans, self._caches, self.block_size, x.device)
        query, key, value = (rows.transpose(0, 1) for rows in (query, key, value))
        attended = current.attend(0, query, key, value, How(dim**-0.5))
        return self._linear(attended.flatten(1), "o")

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self._linear(F.silu(self._linear(x, "gate")) * self._linear(x, "up"), "down")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()  # bf16 would lose the sum of squares
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._config.norm_epsilon)
        return (scaled * self._tensors[name].float()).to(x.dtype)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._tensors[name], self._tensors.get(f"{name}.bias"))

    def _embedded(self, spans: Sequence[Span]) -> Tensor:
        ids = torch.from_numpy(np.concatenate([span.tokens for span in spans]))
        return self._table[ids.to(self._table.device)]


class TorchParallelHead:
    """Medusa heads (2401.10774 §3.1): see `ParallelHead`.

    Raises:
        OutOfMemory: the weights do not fit on the target's device.
    """

    def __init__(self, heads: Heads, target: TorchRunner) -> None:
        self._tensors, self._like = _on(target.table, heads), target.table
        self.count, self._depth = heads.config.count, heads.config.depth

    @torch.inference_mode()
    def forward(self, features: Floats) -> Floats:
        x = _tensor(features, self._like)
        return np.stack([host(self._head(head, x)) for head in range(self.count)])

    def _head(self, head: int, x: Tensor) -> Tensor:
        for block in range(self._depth):
            name = f"heads.{head}.blocks.{block}"
            x = x + F.silu(F.linear(x, self._tensors[name], self._tensors[f"{name}.bias"]))
        return F.linear(x, self._tensors[f"heads.{head}.out"])


def _on(like: Tensor, heads: Heads) -> dict[str, Tensor]:
    """Return the tensors on the device and in the type of another."""
    try:
        return {
            name: torch.tensor(heads.tensors[name], device=like.device, dtype=like.dtype)
            for name in heads.config.tensor_shapes()
        }
    except torch.OutOfMemoryError:
        raise OutOfMemory(
            f"the draft heads do not fit on {like.device} beside the model; use dtype='bf16', or go without heads"
        ) from None


def _tensor(values: Floats, like: Tensor) -> Tensor:
    return torch.tensor(np.array(values, order="C"), device=like.device, dtype=like.dtype)  # it may be of any stride


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of [rows, heads, dim] in half-split order (RoFormer, 2104.09864 §3.4.2)."""
    cos, sin = (f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin))
    low, high = heads.float().chunk(2, -1)
    return (heads.float() * cos + torch.cat([-high, low], -1) * sin).to(heads.dtype)
