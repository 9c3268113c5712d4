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
def tapped(model: Any, wanted: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Collect, while a model runs, the state [rows, width] after each wanted layer, as `Want.hidden` counts them.

    Raises:
        UnsupportedModel: the model has no list of layers, or they pass on something else than one hidden state.
    """
    found: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            state = output if isinstance(output, Tensor) else output[0]
            if state.ndim != 3:
                raise UnsupportedModel(f"the layers of {type(model).__name__} pass on more than one hidden state")
            found[layer] = state[0].clone()  # the next layer may add to it in place

        return hook

    hooks = [module.register_forward_hook(keep(layer)) for layer, module in _modules(model, wanted).items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def host(values: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.float().cpu().numpy()
    return found


def _modules(model: Any, wanted: Sequence[int]) -> dict[int, nn.Module]:
    """Return what to listen to for each layer; for their number the trunk around them, which ends with a norm."""
    if not wanted:
        return {}
    trunk, layers = _trunk(model)
    assert all(0 <= i <= len(layers) for i in wanted), "a layer that is not there"
    return {i: trunk if i == len(layers) else layers[i] for i in wanted}


def _trunk(model: Any) -> tuple[nn.Module, nn.ModuleList]:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        for part in module.children():
            if module is not model and isinstance(part, nn.ModuleList) and len(part) == count:
                return module, part
    raise UnsupportedModel(f"{type(model).__name__} has no list of {count} layers to take hidden states from")
