"""The torch runner: any causal model of `transformers`, on a CPU (the reference) or a GPU. Needs the extra `torch`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import MissingExtra

if TYPE_CHECKING:
    from paceline.runners.torch.runner import TorchRunner


def load(
    model: Path | Any,
    device: str = "cpu",
    dtype: Literal["fp32", "bf16"] = "fp32",
    trust_remote_code: bool = False,
) -> TorchRunner:
    """Return a runner of a model directory, or of a `transformers` model in memory.

    Raises:
        MissingExtra: torch or transformers is not installed.
        ModelError: there is no such model, it is damaged, or transformers cannot run it.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{package} is not installed; the torch runner needs it: pip install 'paceline[torch]'")
    from paceline.runners.torch.runner import TorchRunner

    return TorchRunner(model, device, dtype, trust_remote_code)
