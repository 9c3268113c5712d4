"""What a user chooses when an engine is built. "auto" is settled here, into a new value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import OptionError
from paceline.models.config import ModelConfig
from paceline.runners.openvino.quantise import PRECISIONS, HeadForm, KVForm, Precision
from paceline.runners.openvino.runner import Numerics

RunnerName = Literal["auto", "openvino", "torch"]

CONTEXT = 8192
"""Most tokens of a sequence unless more is asked for: memory is planned for it."""
SMALL = 400_000_000
"""Models with fewer weights lose too much in int4, and are not bound by reading weights."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine is built."""

    model: str
    draft: str | None = None
    heads: str | None = None
    """Directory of draft heads that were trained for the model."""
    drafters: tuple[str, ...] | None = None
    """None is auto: all that can be had."""
    max_draft: int = 16
    """Most drafted tokens of a sequence in a step."""
    speculate: bool = True
    runner: RunnerName = "auto"
    weights: Precision | None = None
    """None: int8 below 400 million weights, else int4; fp32 for toys."""
    head_weights: HeadForm | None = None
    """Of the matrix that answers. None: as the weights; int8 where int4 does not fit its width."""
    kv: KVForm = "f16"
    """Of the target's keys and values; fp32 beside fp32 weights."""
    draft_weights: Precision | None = None
    """Of the draft model, and of heads on the openvino runner. None: int4, and int8 for heads; fp32 for toys."""
    draft_vocabulary: int | None = 32768
    """Tokens that the draft model's head is cut to: those said most often here, then the lowest ids; None cuts none."""
    numerics: Numerics = "invariant"
    context: int | None = None
    """Most tokens of a sequence; None is the model's own, up to 8192."""
    sequences: int = 8
    """Most sequences that run at a time."""
    prefill_rows: int = 256
    """Most prompt tokens in a step."""
    prefix_cache: bool = True
    share_history: bool = False
    """Whether what one tenant's requests have said may draft for another's."""
    epsilon: float = 0.01
    """Share of time that speculation may lose against plain decoding."""
    keep_costs: bool = True
    """Whether what was measured here, and how often each token was said, is kept for the next start, and read now."""
    device: str = "cpu"
    """Of the torch runner."""

    def __post_init__(self) -> None:
        _among("runner", self.runner, get_args(RunnerName))
        _among("numerics", self.numerics, get_args(Numerics))
        for name in ("weights", "draft_weights"):
            if getattr(self, name) is not None:
                _among(name, getattr(self, name), PRECISIONS)
        if self.head_weights is not None:
            _among("head_weights", self.head_weights, get_args(HeadForm))
        _among("kv", self.kv, get_args(KVForm))
        _within("max_draft", self.max_draft, 0, 64)
        _within("sequences", self.sequences, 1, 1024)
        _within("prefill_rows", self.prefill_rows, 4, 65536)
        _within("epsilon", self.epsilon, 0, 0.1)
        if self.context is not None:
            _within("context", self.context, 2, 2**24)
        if self.draft_vocabulary is not None:
            _within("draft_vocabulary", self.draft_vocabulary, 256, 2**24)


def settle_weights(asked: Precision | None, config: ModelConfig, is_toy: bool) -> Precision:
    """Return the target's weights."""
    if asked is not None:
        return asked
    if is_toy:
        return "fp32"
    return "int8" if config.parameters < SMALL else "int4"


def _among(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise OptionError(f"{name} is {given!r}; allowed: {', '.join(allowed)}")


def _within(name: str, given: float, low: float, high: float) -> None:
    if not low <= given <= high:
        raise OptionError(f"{name} is {given}; allowed: {low} to {high}")
