"""Our attention inside models of `transformers`: a paged cache, ragged batches, trees and windows.

A model whose `_attn_implementation` is `NAME` calls `attention` in every layer. The rows of all sequences come as one
batch row; which belong together is known to the pass that `running` has set, and to nothing inside the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface

from paceline.runners.base import Span

Ints = NDArray[np.int64]

NAME = "paceline"
_TOGETHER = 32
"""Spans of at most this many rows attend in one call, padded to the longest; a long prefill attends alone."""


class NotPaged(Exception):
    """The model attends in a way that the paged cache cannot serve."""


@dataclass(frozen=True, slots=True)
class How:
    """What a layer's attention asks for."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    """[heads], logits of an imaginary token that takes weight and gives nothing (gpt-oss)."""


class Pass(Protocol):
    """A forward pass in progress."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        """Take [heads, rows, dim] of the packed rows, return [rows, heads, value dim]."""


_CURRENT: ContextVar[Pass] = ContextVar("paceline_pass")


@contextmanager
def running(current: Pass) -> Iterator[None]:
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that `transformers` calls; tensors are [1, heads, rows, dim]."""
    if not getattr(module, "is_causal", True) or attention_mask is not None:
        raise NotPaged("attention that is not causal")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = How(scale, sliding_window, softcap, s_aux)
    return _CURRENT.get().attend(module.layer_idx, query[0], key[0], value[0], how)[None], None


AttentionInterface.register(NAME, attention)


@dataclass(slots=True)
class Probe:
    """A pass of one sequence without a cache that notes what each layer attends with."""

    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """layer -> key heads, key dim, value dim"""
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        if layer in self.shapes:
            raise NotPaged("two attentions under one layer number")
        self.shapes[layer] = (key.shape[0], key.shape[2], value.shape[2])
        self.windows[layer] = how.window
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device).tril()
        return _attend(query[None], key[None], value[None], seen[None, None], how)[0].transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Keys and values of one layer, each [blocks, heads, block size, dim]."""

    keys: Tensor
    values: Tensor

    def write(self, blocks: Tensor, offsets: Tensor, keys: Tensor, values: Tensor) -> None:
        self.keys[blocks, :, offsets] = keys.transpose(0, 1).to(self.keys.dtype)
        self.values[blocks, :, offsets] = values.transpose(0, 1).to(self.values.dtype)

    def copy(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> None:
        for store in (self.keys, self.values):  # indexing by tensors copies, so all is read before any is written
            store[target[0], :, target[1]] = store[source[0], :, source[1]]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Spans that attend in one call, padded to the longest of them."""

    rows: Tensor
    """[spans, rows], which packed row; padding repeats a real one."""
    real: Tensor
    """Which of those, counted flat, are not padding."""
    tables: Tensor
    """[spans, blocks]"""
    seen: Tensor
    """[spans, rows, slots], bool"""
    row_positions: Tensor
    """[spans, rows]"""
    slot_positions: Tensor
    """[spans, slots]"""

    def mask(self, window: int | None) -> Tensor:
        """Return [spans, 1, rows, slots]; a window counts positions, which in a tree are not slots."""
        if window is None:
            return self.seen[:, None]
        near = self.row_positions[:, :, None] - self.slot_positions[:, None, :] < window
        return (self.seen & near)[:, None]


class PagedPass:
    """A forward pass over spans, on caches that it writes to."""

    def __init__(self, spans: Sequence[Span], caches: dict[int, Cache], block_size: int, device: torch.device) -> None:
        self._caches = caches
        starts = np.cumsum([0, *(len(span.tokens) for span in spans)])
        self._groups = [_group(g, spans, starts, block_size, device) for g in _groups(spans)]
        slots = np.concatenate([_slots(span, block_size) for span in spans])
        self._blocks, self._offsets = place(slots, block_size, device)
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        cache = self._caches[layer]
        cache.write(self._blocks, self._offsets, key, value)
        query = query.to(cache.keys.dtype)
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for i, group in enumerate(self._groups):
            keys, values = _gather(cache.keys, group.tables), _gather(cache.values, group.tables)
            rows = query[:, group.rows].transpose(0, 1)
            attended = _attend(rows, keys, values, self._mask(i, how.window), how).transpose(1, 2)
            out[group.rows.flatten()[group.real]] = attended.flatten(0, 1)[group.real]
        return out

    def _mask(self, index: int, window: int | None) -> Tensor:
        """Made once for all layers of a kind."""
        if (index, window) not in self._masks:
            self._masks[index, window] = self._groups[index].mask(window)
        return self._masks[index, window]


def place(slots: Ints, block_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each slot's block and its offset in it."""
    found = torch.from_numpy(slots).to(device)
    return found // block_size, found % block_size


def _slots(span: Span, block_size: int) -> Ints:
    at = np.arange(span.cached, span.cached + len(span.tokens), dtype=np.int64)
    return span.blocks[at // block_size].astype(np.int64) * block_size + at % block_size


def _groups(spans: Sequence[Span]) -> list[list[int]]:
    short = [i for i, span in enumerate(spans) if len(span.tokens) <= _TOGETHER]
    long = [[i] for i, span in enumerate(spans) if len(span.tokens) > _TOGETHER]
    return [short, *long] if short else long


def _group(members: list[int], spans: Sequence[Span], starts: Ints, block_size: int, device: torch.device) -> Group:
    count, rows = len(members), max(len(spans[i].tokens) for i in members)
    blocks = max(-(-(spans[i].cached + len(spans[i].tokens)) // block_size) for i in members)
    packed, real = np.zeros((count, rows), np.int64), np.zeros((count, rows), np.bool_)
    tables = np.zeros((count, blocks), np.int64)
    seen = np.zeros((count, rows, blocks * block_size), np.bool_)
    row_positions, slot_positions = np.zeros((count, rows), np.int64), np.zeros((count, blocks * block_size), np.int64)
    seen[:, :, 0] = True  # a padded row must see something, or its softmax is not a number
    for at, i in enumerate(members):
        span, n, end = spans[i], len(spans[i].tokens), spans[i].cached + len(spans[i].tokens)
        used = span.blocks[: -(-end // block_size)]
        packed[at], real[at, :n] = starts[i], True
        packed[at, :n] += np.arange(n)
        tables[at, : len(used)] = used
        seen[at, :n, : span.cached], seen[at, :n, span.cached : end] = True, span.row_mask
        row_positions[at, :n] = span.row_positions
        slot_positions[at, :end] = np.concatenate([np.arange(span.cached), span.row_positions])
    arrays = (packed, np.flatnonzero(real), tables, seen, row_positions, slot_positions)
    return Group(*(torch.from_numpy(array).to(device) for array in arrays))


def _gather(store: Tensor, tables: Tensor) -> Tensor:
    """Return [spans, heads, slots, dim] of [blocks, heads, block size, dim]."""
    found = store[tables].transpose(1, 2)
    return found.reshape(*found.shape[:2], -1, store.shape[-1])


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, how: How) -> Tensor:
    """Return [spans, heads, rows, value dim]; query heads that share a key head become more rows of it."""
    spans, heads, rows, _ = query.shape
    shared = heads // key.shape[1]
    query = query.reshape(spans, key.shape[1], shared * rows, -1)
    seen = seen.repeat(1, 1, shared, 1)
    if how.softcap is None and how.sinks is None:
        out = F.scaled_dot_product_attention(query, key, value, seen, scale=how.scale)
    else:
        out = _plain(query, key, value, seen, how)
    return out.reshape(spans, heads, rows, -1)


def _plain(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, how: How) -> Tensor:
    scores = (query @ key.transpose(2, 3)).float() * how.scale
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill(~seen, -torch.inf)
    if how.sinks is not None:
        spans, heads, rows, _ = scores.shape
        sinks = how.sinks.float().repeat_interleave(rows * heads // len(how.sinks)).reshape(1, heads, rows, 1)
        scores = torch.cat([scores, sinks.expand(spans, -1, -1, -1)], -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value
