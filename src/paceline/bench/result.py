"""What a benchmark found, as `bench --json` writes it: the contract's keys, and what the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np

Verdict = Literal["faster", "same", "slower"]
ALL = "all"
"""The category of all: prompts taken together, ratios as the geometric mean over categories."""


@dataclass(frozen=True, slots=True)
class Spread:
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the quantiles of values, 0 where there are none."""
        if not values:
            return cls(0.0, 0.0)
        p50, p95 = np.quantile(values, [0.5, 0.95])
        return cls(float(p50), float(p95))


@dataclass(frozen=True, slots=True)
class Cell:
    """One mode on the prompts of one category, at one batch size. None is what could not be seen."""

    workload: str
    category: str
    batch: int
    mode: str
    prompts: int
    tokens: int
    tokens_per_s: float
    """Of all sequences together, first tokens apart."""
    tpot_ms: Spread
    """Time of a token after the first, over requests."""
    ttft_ms: Spread
    acceptance_length: float | None
    """Committed tokens per target pass."""
    acceptance_rate: float | None
    """Accepted per verified token; None where nothing was verified."""
    peak_memory_bytes: int | None
    wasted_share: float | None
    """Share of the time in steps that went into drafts that became no text."""
    busy_share: float | None = None
    """Share of the time that went into steps."""
    coverage: float | None = None
    """Drafted per committed token."""
    steps: int | None = None
    """Target passes, by sequence."""
    accepted_at: tuple[int, ...] = ()
    """Accepted tokens by depth in the draft, from 0."""
    draft_ms: float | None = None
    """Whole time of each part of the steps."""
    verify_ms: float | None = None
    other_ms: float | None = None
    by_drafter: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times as fast as the reference a mode is; the interval is 95 %, by bootstrap over prompts."""

    workload: str
    category: str
    batch: int
    mode: str
    against: str
    ratio: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of an answer that is not the reference's."""

    category: str
    batch: int
    mode: str
    prompt: int
    """Its number in the workload, from 0."""
    position: int
    """In the answer, from 0."""
    gap: float | None
    """By how much plain decoding preferred its own token, in logits; None where it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Answers compared with the reference's, token by token: all modes but those whose text may differ by right."""

    equal: int
    prompts: int
    """Answers that were compared."""
    near_ties: int
    different: int


@dataclass(frozen=True, slots=True)
class Point:
    """A pass of the target."""

    rows: int
    ms: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens a second over time, one mode at one batch size; equal stretches from its first token on."""

    batch: int
    mode: str
    stretch_s: float
    tokens_per_s: tuple[float, ...]
    verified_per_step: tuple[float, ...] = ()
    """Drafted tokens in a target pass, of each sequence, on average."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run of `bench`."""

    provenance: Mapping[str, Any]
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    text_identical: Texts
    noise: Mapping[str, float] = field(default_factory=dict)
    """Half the width of what plain against plain gives, by batch, as a share; empty where it was not measured."""
    differences: tuple[Difference, ...] = ()
    cost_curve: tuple[Point, ...] = ()
    paces: tuple[Pace, ...] = ()
    synthetic: tuple[float, ...] | None = None
    """The acceptance by depth that was put in the place of the drafters' own: no real result."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
