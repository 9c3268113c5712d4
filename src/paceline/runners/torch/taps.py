"""Hidden states between the layers of a model of `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from paceline.errors import UnsupportedModel


@contextmanager
def tapped(model: Any, wanted: Sequence[int], rows: Tensor) -> Iterator[dict[int, Tensor]]:
    """Collect, while a model runs, the given rows of the state after each wanted layer, before any final norm.

    Raises:
        UnsupportedModel: the model has no list of layers, or they pass on something else than one hidden state.
    """
    found: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            state = output[0] if isinstance(output, tuple) else output
            if state.ndim != 3:
                raise UnsupportedModel(f"the layers of {type(model).__name__} pass on more than one hidden state")
            found[layer] = state[0, rows]

        return hook

    layers = _layers(model) if wanted else nn.ModuleList()
    hooks = [layers[i].register_forward_hook(keep(i)) for i in wanted]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def host(values: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.float().cpu().numpy()
    return found


def _layers(model: Any) -> nn.ModuleList:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModel(f"{type(model).__name__} has no list of {count} layers to take hidden states from")
