"""Draft heads of either kind, loaded, and the drafter that uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.drafters.base import Drafter
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.shaped import Head
from paceline.models.heads import Heads
from paceline.runners.base import RunnerInfo
from paceline.runners.heads import ParallelHead, StepHead
from paceline.runners.kv import Pool


@dataclass(frozen=True, slots=True, eq=False)
class StepHeads:
    """EAGLE-3 heads, loaded."""

    heads: Heads
    runner: StepHead
    pool: Pool


@dataclass(frozen=True, slots=True, eq=False)
class ParallelHeads:
    """Medusa heads, loaded."""

    heads: Heads
    runner: ParallelHead


DraftHeads = StepHeads | ParallelHeads


def drafter(given: DraftHeads, target: RunnerInfo, least_survival: Callable[[], float] = lambda: 0.0) -> Drafter:
    """Return the drafter of these heads for a target."""
    config, names = given.heads.config, given.heads.draft_to_target
    head = Head(target.vocab_size, np.arange(config.draft_vocab_size) if names is None else names)
    if isinstance(given, StepHeads):
        return EagleDrafter(given.runner, given.pool, config.taps, head, target.tree_context, least_survival)
    return MedusaDrafter(given.runner, config.taps[0], head, target.tree_context, least_survival)
