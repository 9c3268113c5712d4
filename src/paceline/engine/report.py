"""An account of speculation as it is told in JSON, and the sum of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import zip_longest
from typing import Any

from paceline.core.types import DrafterCounts, SpeculationReport

_SUMMED = (
    "steps",
    "plain_steps",
    "drafted",
    "verified",
    "accepted",
    "draft_ms",
    "verify_ms",
    "other_ms",
    "wasted_ms",
    "saved_ms",
)


def as_json(report: SpeculationReport) -> dict[str, Any]:
    """Return counts and the ratios that follow from them, by the keys of `generate --json`; without the trace."""
    return {
        "mode": report.mode,
        "rule": report.rule,
        "lossless": report.lossless,
        "steps": report.steps,
        "plain_steps": report.plain_steps,
        "drafted": report.drafted,
        "verified": report.verified,
        "accepted": report.accepted,
        "accepted_at": list(report.accepted_at),
        "acceptance_length": report.acceptance_length,
        "coverage": report.coverage,
        "by_drafter": {name: asdict(counts) for name, counts in report.by_drafter.items()},
        "draft_ms": report.draft_ms,
        "verify_ms": report.verify_ms,
        "other_ms": report.other_ms,
        "wasted_ms": report.wasted_ms,
        "saved_ms": report.saved_ms,
        "reasons": reasons(report),
    }


def reasons(report: SpeculationReport) -> dict[str, int]:
    """Return how often each reason was met, where it was."""
    return {str(code): count for code, count in report.reasons.items() if count}


def total(reports: Sequence[SpeculationReport]) -> SpeculationReport:
    """Return the sum of accounts that share mode and rule, at least one; a sum has no trace."""
    named = {name: None for report in reports for name in report.by_drafter}  # in order, unlike a set
    counted: Counter[str] = Counter()
    for report in reports:
        counted.update(report.reasons)
    return replace(
        reports[0],
        **{name: sum(getattr(report, name) for report in reports) for name in _SUMMED},
        accepted_at=tuple(map(sum, zip_longest(*(report.accepted_at for report in reports), fillvalue=0))),
        by_drafter={name: _counts([r.by_drafter[name] for r in reports if name in r.by_drafter]) for name in named},
        reasons=dict(counted),
        trace=(),
    )


def _counts(counts: Sequence[DrafterCounts]) -> DrafterCounts:
    return DrafterCounts(*(sum(getattr(count, f.name) for count in counts) for f in fields(DrafterCounts)))
