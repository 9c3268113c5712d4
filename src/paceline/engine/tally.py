"""The counts of one sequence's speculation while it runs, and of all that have run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.core.types import DrafterCounts, SpeculationParams, SpeculationReport, StepTrace, Verdict


@dataclass(slots=True)
class Tally:
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    by_drafter: dict[str, DrafterCounts] = field(default_factory=dict)
    draft_s: float = 0.0
    forward_s: float = 0.0
    other_s: float = 0.0
    wasted_s: float = 0.0
    saved_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    trace: list[StepTrace] = field(default_factory=list)
    _kinds: dict[StepTrace, StepTrace] = field(default_factory=dict)
    """Steps that are alike share one record: a long text has few kinds of them."""
    _reason: str | None = None
    """The first one since the last step."""

    def note(self, reason: str) -> None:
        """Count a reason why the step at hand drafts less than it might have."""
        self.reasons[reason] += 1
        self._reason = self._reason or str(reason)

    def count(self, drafted: Draft, verified: Draft, verdict: Verdict, committed: int) -> None:
        """Count one step that committed this many tokens.

        The last one is always the target's own. Where a stop cut the path short, nodes as deep as the cut or deeper
        are in no count: plain decoding would have ended there as well.
        """
        accepted = committed - 1
        cut = accepted < len(verdict.path)
        self.steps += 1
        self.plain_steps += not len(verified)
        deepest = accepted if cut else None
        counted = (self._credit(drafted, "drafted", deepest), self._credit(verified, "verified", deepest))
        self.drafted, self.verified = self.drafted + counted[0], self.verified + counted[1]
        step = StepTrace(*counted, accepted, self._reason)
        self.trace.append(self._kinds.setdefault(step, step))
        self._reason = None
        for depth, node in enumerate(verdict.path[:accepted]):
            self.accepted += 1
            self._add(verified.source[node], "accepted")
            for name, _ in verified.guesses(node)[1:]:
                self._add(name, "shared")
            self.accepted_at += [0] * (depth + 1 - len(self.accepted_at))
            self.accepted_at[depth] += 1

    def spend(self, drafter: str, seconds: float) -> None:
        """Charge drafting time to a drafter."""
        counts = self.by_drafter.get(drafter, DrafterCounts())
        self.by_drafter[drafter] = replace(counts, draft_ms=counts.draft_ms + seconds * 1e3)
        self.draft_s += seconds

    def _credit(self, draft: Draft, kind: str, deepest: int | None) -> int:
        """Count nodes for the drafters that named them first, up to a depth, and return how many they are."""
        depths = tree.depths(draft.parents)
        counted = [s for s, depth in zip(draft.source, depths, strict=True) if deepest is None or depth <= deepest]
        for source in counted:
            self._add(source, kind)
        return len(counted)

    def _add(self, source: str, kind: str) -> None:
        counts = self.by_drafter.get(source, DrafterCounts())
        self.by_drafter[source] = replace(counts, **{kind: getattr(counts, kind) + 1})

    def merge(self, other: Tally) -> None:
        """Add another's counts; steps keep their order in a trace of one sequence only, so none is kept."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.accepted_at += [0] * (len(other.accepted_at) - len(self.accepted_at))
        for depth, count in enumerate(other.accepted_at):
            self.accepted_at[depth] += count
        for drafter, theirs in other.by_drafter.items():
            ours = self.by_drafter.get(drafter, DrafterCounts())
            self.by_drafter[drafter] = DrafterCounts(*map(add, _values(ours), _values(theirs)))
        self.reasons.update(other.reasons)

    def report(self, params: SpeculationParams) -> SpeculationReport:
        return SpeculationReport(
            mode=params.mode,
            rule=params.rule,
            lossless=params.lossless,
            steps=self.steps,
            plain_steps=self.plain_steps,
            drafted=self.drafted,
            verified=self.verified,
            accepted=self.accepted,
            accepted_at=tuple(self.accepted_at),
            by_drafter=dict(self.by_drafter),
            draft_ms=self.draft_s * 1e3,
            verify_ms=self.forward_s * 1e3,
            other_ms=self.other_s * 1e3,
            wasted_ms=self.wasted_s * 1e3,
            saved_ms=self.saved_s * 1e3,
            reasons=dict(self.reasons),
            trace=tuple(self.trace),
        )


_SUMS = (
    "steps",
    "plain_steps",
    "drafted",
    "verified",
    "accepted",
    "draft_s",
    "forward_s",
    "other_s",
    "wasted_s",
    "saved_s",
)
_values = attrgetter(*(field.name for field in fields(DrafterCounts)))
