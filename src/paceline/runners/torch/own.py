"""Models that keep a state of their own making: recurrent, hybrid, or with an attention that is not ours."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.errors import UnsupportedModel
from paceline.runners.base import Output, Span, Want
from paceline.runners.torch.taps import host, tapped

_NAMES = ("cache", "past_key_values", "cache_params", "state")
"""What models of `transformers` call their state, newest name first."""


class OwnStates:
    """One state of `transformers` for each sequence, known by the first block of its table.

    A state cannot go back, so spans are plain: each continues where the last one of its sequence ended. A fresh
    sequence runs all its rows at once; later rows run one by one, which every such model is exact at.

    Raises:
        UnsupportedModel: the model keeps no state, or keeps it where only one sequence has room.
    """

    def __init__(self, model: Any, block_size: int) -> None:
        parameters = inspect.signature(model.forward).parameters
        name = next((n for n in _NAMES if n in parameters), None)
        if name is None or "use_cache" not in parameters:
            raise UnsupportedModel(
                f"{type(model).__name__} keeps no state between passes, so it cannot decode step by step"
            )
        self._model, self._name = model, name
        self._cuts_rows = "logits_to_keep" in parameters
        self._states: dict[int, tuple[int, Any]] = {}
        self.block_bytes = self._measure(block_size)

    def allocate(self, blocks: int) -> None:
        self._states = {}

    def forward(self, spans: Sequence[Span], want: Want) -> Output:
        answers = [answer for span in spans for answer in self._span(span, want)]
        logits = np.concatenate([logits for logits, _ in answers])
        return Output(logits, {i: np.concatenate([hidden[i] for _, hidden in answers]) for i in want.hidden})

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        raise UnsupportedModel(f"{type(self._model).__name__} cannot take tokens back; serve it without speculation")

    def _span(self, span: Span, want: Want) -> Iterable[tuple[NDArray[np.float32], dict[int, NDArray[np.float32]]]]:
        assert span.positions is None and span.mask is None, "a tree for a model that cannot be rewound"
        sequence = int(span.blocks[0])
        length, state = (0, None) if span.cached == 0 else self._states[sequence]
        assert length == span.cached, "a sequence that does not continue where it ended"
        step = len(span.tokens) if state is None else 1
        for start in range(0, len(span.tokens), step):
            wanted = [row - start for row in span.wanted if start <= row < start + step]
            logits, hidden, state = self._run(span.tokens[start : start + step], state, wanted, want)
            yield host(logits), {layer: host(hidden[layer]) for layer in want.hidden}
        self._states[sequence] = (span.cached + len(span.tokens), state)

    def _run(
        self, tokens: NDArray[np.int64], state: Any, wanted: Sequence[int], want: Want
    ) -> tuple[Tensor, dict[int, Tensor], Any]:
        rows = torch.tensor(wanted, dtype=torch.int64, device=self._model.device)
        keep = {"logits_to_keep": rows} if self._cuts_rows else {}
        past = {} if state is None else {self._name: state}
        with tapped(self._model, want.hidden) as hidden:
            ids = torch.from_numpy(tokens).to(self._model.device)[None]
            out = self._model(input_ids=ids, use_cache=True, **keep, **past)
        logits: Tensor = out.logits[0]
        return logits if self._cuts_rows else logits[rows], hidden, getattr(out, self._name, None)

    @torch.inference_mode()
    def _measure(self, block_size: int) -> int:
        """Return the bytes of the state after one block: its fixed part and a block's growth."""
        _, _, state = self._run(np.ones(block_size, np.int64), None, [], Want())
        if state is None:
            raise UnsupportedModel(f"{type(self._model).__name__} keeps its state inside itself, for one sequence only")
        return _bytes(state)


def _bytes(held: Any) -> int:
    if isinstance(held, Tensor):
        return held.nbytes
    if isinstance(held, dict):
        return sum(_bytes(value) for value in held.values())
    if isinstance(held, list | tuple):
        return sum(_bytes(value) for value in held)
    return _bytes(vars(held)) if type(held).__module__.startswith("transformers.") and hasattr(held, "__dict__") else 0
