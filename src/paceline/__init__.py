"""Speculative decoding: the same text, never slower, nothing hidden."""

from typing import TYPE_CHECKING, Any

from paceline.core.tree import Draft
from paceline.core.types import Completion, Event, GrammarSpec, Request, SamplingParams, SpeculationParams, Verdict
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.engine.llm import LLM
    from paceline.engine.options import Options

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Completion",
    "Draft",
    "Event",
    "GrammarSpec",
    "Options",
    "PacelineError",
    "Request",
    "SamplingParams",
    "SpeculationParams",
    "Verdict",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the heavy half only when it is used, so that `paceline --help` stays quick."""
    if name == "LLM":
        from paceline.engine.llm import LLM

        return LLM
    if name == "Options":
        from paceline.engine.options import Options

        return Options
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
