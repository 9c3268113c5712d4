"""A governor that always drafts the same length, and measures what a plain step costs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.governor.base import Drafting, Limit, Reason, StepReport


class Fixed:
    """Drafts `length` tokens for every sequence that does not ask for fewer."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._plain: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=64))

    def plan(self, seqs: Sequence[Drafting]) -> list[Limit]:
        return [asked(seq, self._length) for seq in seqs]

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        return [tree.prune(draft, self._length) for draft in drafts]

    def observe(self, step: StepReport) -> None:
        if step.is_plain:
            self._plain[len(step.outcomes)].append(step.seconds)

    def plain_seconds(self, sequences: int) -> float | None:
        seen = self._plain.get(sequences)
        return median(seen) if seen else None


def asked(seq: Drafting, most: int) -> Limit:
    """Return the limit that the request itself and its room set."""
    wish = seq.speculation
    if wish.mode == "off" or wish.max_draft == 0:
        return Limit(0, Reason.REQUESTED_OFF)
    if wish.max_draft is not None:
        most = min(most, wish.max_draft)
    if seq.room < most:
        return Limit(seq.room, Reason.CONTEXT_LIMIT if seq.meets_context else None)
    return Limit(most)
