"""Drafters by name. Others are found by the entry point group `paceline.drafters`: name -> Factory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.base import Drafter
from paceline.drafters.grammar import Forced
from paceline.drafters.heads import DraftHeads, drafter
from paceline.drafters.history import History
from paceline.drafters.lookup import Lookup
from paceline.drafters.model import ModelDrafter
from paceline.drafters.prediction import Prediction
from paceline.drafters.recycle import Recycle
from paceline.drafters.suffix import Suffix
from paceline.errors import OptionError
from paceline.models.bridge import Bridge
from paceline.models.tokenizer import Tokenizer
from paceline.runners.base import Runner, RunnerInfo
from paceline.runners.kv import Pool

GROUP = "paceline.drafters"


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """A drafter's model, loaded."""

    runner: Runner
    pool: Pool
    vocabulary: NDArray[np.int64] | None = None
    """Token ids of its logits; None when they are all."""
    bridge: Bridge | None = None
    """To the target's tokens; None where they are the drafter's."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a drafter may be made of."""

    target: RunnerInfo
    model: DraftModel | None = None
    least_survival: Callable[[], float] = lambda: 0.0
    """The chance of all drafted so far below which one more costly token does not pay."""
    share_history: bool = False
    """Whether what one tenant's requests have said may draft for another's."""
    tokenizer: Tokenizer | None = None
    """The target's."""
    heads: DraftHeads | None = None


Factory = Callable[[Surroundings], Drafter]


def _grammar(given: Surroundings) -> Drafter:
    return Forced()


def _lookup(given: Surroundings) -> Drafter:
    return Lookup()


def _suffix(given: Surroundings) -> Drafter:
    return Suffix(History(shared=given.share_history))


def _recycle(given: Surroundings) -> Drafter:
    return Recycle(shared=given.share_history)


def _prediction(given: Surroundings) -> Drafter:
    return Prediction(given.tokenizer)


def _model(given: Surroundings) -> Drafter:
    if given.model is None:
        raise OptionError("drafters has 'model', which needs a draft model; name one with --draft")
    model = given.model
    return ModelDrafter(model.runner, model.pool, model.vocabulary, given.least_survival, given.target, model.bridge)


def _heads(given: Surroundings) -> Drafter:
    if given.heads is None:
        raise OptionError("drafters has 'heads', which needs draft heads; name their directory with --heads")
    return drafter(given.heads, given.target, given.least_survival)


BUILT_IN: dict[str, Factory] = {
    "grammar": _grammar,
    "prediction": _prediction,
    "suffix": _suffix,
    "lookup": _lookup,
    "recycle": _recycle,
    "heads": _heads,
    "model": _model,
}
"""In the order in which they are asked: the free ones first."""


def known() -> dict[str, Callable[[], Factory]]:
    """Return every drafter's name and what loads its factory; built-in names cannot be taken."""
    found: dict[str, Callable[[], Factory]] = {point.name: point.load for point in entry_points(group=GROUP)}
    return found | {name: lambda factory=factory: factory for name, factory in BUILT_IN.items()}


def choose(
    names: Sequence[str] | None, has_model: bool, has_heads: bool = False, trees: bool = True
) -> tuple[str, ...]:
    """Return the drafters to use: those named, or for None ("auto") the built-in ones that can be had.

    Args:
        trees: whether the target verifies trees; as one branch what recycle guesses is rarely worth its reading.

    Raises:
        OptionError: a name is unknown.
    """
    if names is None:
        there = {"model": has_model, "heads": has_heads, "recycle": trees}
        return tuple(name for name in BUILT_IN if there.get(name, True))
    allowed = known()
    for name in names:
        if name not in allowed:
            raise OptionError(f"drafters has {name!r}; allowed: {', '.join(sorted(allowed))}, or auto or none alone")
    return tuple(dict.fromkeys(names))


def make(names: Sequence[str], given: Surroundings) -> dict[str, Drafter]:
    """Make drafters by name."""
    there = known()
    return {name: there[name]()(given) for name in names}
