"""A governor that always drafts the same length; it only measures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.governor.account import shares
from paceline.governor.base import Drafting, Limit, Reason, Share, StepReport
from paceline.governor.costs import Costs


class Fixed:
    """Drafts `length` tokens for every sequence that does not ask for fewer."""

    def __init__(self, length: int, costs: Costs | None = None) -> None:
        self._length = length
        self.costs = costs or Costs()

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        return [asked(seq, self._length) for seq in seqs]

    def value(self, seq: Drafting, draft: Draft) -> float:
        return float(len(draft))

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        return [tree.prune(d, asked(seq, self._length).nodes) for seq, d in zip(seqs, drafts, strict=True)]

    def observe(self, step: StepReport) -> list[Share]:
        if step.prefill_rows or not step.outcomes:
            self.costs.disturb()
            return [Share()] * len(step.outcomes)
        self.costs.observe(step.rows, step.forward_s, step.ran, step.context)
        self.costs.observe_rest(step.tokens, step.other_s)
        plain_s = self.costs.plain_seconds(len(step.outcomes), step.context)
        if plain_s is None:
            return [Share()] * len(step.outcomes)
        return shares(step, plain_s / len(step.outcomes), 0.0 if step.is_plain else step.seconds - plain_s)


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
