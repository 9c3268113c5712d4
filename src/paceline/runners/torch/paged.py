"""Models whose every layer is attention: paged keys and values, trees, any mixture of sequences in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import OutOfMemory
from paceline.runners.base import Output, Span, Want
from paceline.runners.torch.attention import NAME, Cache, NotPaged, PagedPass, Probe, place, running
from paceline.runners.torch.rows import answers
from paceline.runners.torch.taps import host, tapped

LayerShape = tuple[int, int, int]
"""Key heads, key dim, value dim."""

_PLAIN = {"full_attention", "sliding_attention"}


class Paged:
    """A model on caches that it shares among sequences.

    Raises:
        NotPaged: the model attends in a way that the paged cache cannot serve; it is left as it was.
    """

    def __init__(self, model: Any, block_size: int) -> None:
        self._model, self._block_size = model, block_size
        self._shapes = _probe(model)
        self._cuts_rows = "logits_to_keep" in _parameters(model)
        self._caches: dict[int, Cache] = {}
        numbers = block_size * sum(heads * (key + value) for heads, key, value in self._shapes.values())
        self.block_bytes: int = numbers * model.dtype.itemsize

    def allocate(self, blocks: int) -> None:
        self._caches = {}  # what was there must not count against what comes
        self._caches = make_caches(self._shapes, blocks, self._block_size, self._model.device, self._model.dtype)

    def forward(self, spans: Sequence[Span], want: Want) -> Output:
        device = self._model.device
        ids = torch.from_numpy(np.concatenate([span.tokens for span in spans])).to(device)
        positions = torch.from_numpy(np.concatenate([span.row_positions for span in spans])).to(device)
        rows = torch.from_numpy(wanted_rows(spans)).to(device)
        current = PagedPass(spans, self._caches, self._block_size, device)
        with running(current), tapped(self._model, want.hidden) as hidden:
            logits = self._run(ids, positions, rows)
        return Output(answers(logits), {layer: host(hidden[layer]) for layer in want.hidden})

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        places = [place(slots, self._block_size, self._model.device) for slots in (source, target)]
        for cache in self._caches.values():
            cache.copy(*places)

    def _run(self, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        keep = {"logits_to_keep": rows} if self._cuts_rows else {}
        out = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **keep)
        logits: Tensor = out.logits[0]
        return logits if self._cuts_rows else logits[rows]


def make_caches(
    shapes: Mapping[int, LayerShape], blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> dict[int, Cache]:
    """Return empty caches for each layer.

    Raises:
        OutOfMemory: there is not that much memory on the device.
    """
    numbers = blocks * block_size * sum(heads * (key + value) for heads, key, value in shapes.values())
    needed, free = numbers * dtype.itemsize, _free_memory(device)
    if needed > free:
        raise OutOfMemory(
            f"{blocks} KV blocks need {needed >> 20} MiB and {free >> 20} MiB are free on {device}; "
            "allow a shorter context or fewer sequences"
        )
    caches = {}
    for layer, (heads, *dims) in shapes.items():
        sizes = [(blocks, heads, block_size, dim) for dim in dims]
        caches[layer] = Cache(*(torch.zeros(size, device=device, dtype=dtype) for size in sizes))
    return caches


def wanted_rows(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the rows to answer, counted over all spans."""
    starts = np.cumsum([0, *(len(span.tokens) for span in spans[:-1])])
    return np.concatenate([start + span.wanted.astype(np.int64) for start, span in zip(starts, spans, strict=True)])


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _parameters(model: Any) -> set[str]:
    return set(inspect.signature(model.forward).parameters)


def _probe(model: Any) -> dict[int, LayerShape]:
    """Put our attention into the model, run two tokens, and return each layer's shape."""
    config = model.config.get_text_config()
    _refuse(model, config)
    before, probe = model.config._attn_implementation, Probe()
    model.set_attn_implementation(NAME)
    try:
        ids = torch.arange(2, device=model.device)[None]
        with running(probe), torch.inference_mode():
            model(input_ids=ids, position_ids=ids, use_cache=False)
        _check(probe, config)
    except NotPaged:
        model.set_attn_implementation(before)
        raise
    return probe.shapes


def _refuse(model: Any, config: Any) -> None:
    other = set(getattr(config, "layer_types", None) or ()) - _PLAIN
    if other:
        raise NotPaged(f"it has layers of the kind {', '.join(sorted(other))}")
    if getattr(model, "_is_stateful", False):
        raise NotPaged("it has a recurrent state")
    if not getattr(model, "_supports_attention_backend", False) or "position_ids" not in _parameters(model):
        raise NotPaged("its attention cannot be replaced by ours")


def _check(probe: Probe, config: Any) -> None:
    layers = config.num_hidden_layers
    if set(probe.shapes) != set(range(layers)):
        raise NotPaged(f"{layers - len(probe.shapes)} of its {layers} layers have an attention of their own")
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"] * layers
    for layer, kind in enumerate(kinds):
        if (kind == "sliding_attention") != (probe.windows[layer] is not None):
            raise NotPaged(f"layer {layer} is of the kind {kind}, and its attention does not say so")
