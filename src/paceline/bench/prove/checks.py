"""What a check says, and what all of them come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "fails", "not asked"]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, held against what was seen."""

    name: str
    asked: str
    """What must hold."""
    found: str
    verdict: Verdict
    again: str
    """How to see it again."""
    detail: tuple[str, ...] = ()
    """What a reader may want to look into, a line each."""


@dataclass(frozen=True, slots=True)
class Report:
    provenance: Mapping[str, Any]
    checks: tuple[Check, ...]
    complete: bool = True
    """Whether all checks came to their end."""

    @property
    def holds(self) -> bool:
        return self.complete and all(check.verdict != "fails" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {"holds": self.holds, **asdict(self)}
