"""The governor's seat in the step: plan before drafting, trim after, observe at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from paceline.core.tree import Draft
from paceline.core.types import SpeculationParams
from paceline.governor.costs import Costs


class Reason(StrEnum):
    """Why a sequence drafted less than it might have, or nothing."""

    LOW_ACCEPTANCE = "low_acceptance"
    BATCH_COMPUTE_BOUND = "batch_compute_bound"
    DRAFT_TOO_SLOW = "draft_too_slow"
    CONTEXT_LIMIT = "context_limit"
    MEMORY = "memory"
    REQUESTED_OFF = "requested_off"
    UNSUPPORTED_MODEL = "unsupported_model"
    ACCOUNT_OVERDRAWN = "account_overdrawn"
    PROBING = "probing"
    NOTHING_TO_DRAFT = "nothing_to_draft"
    """No drafter had a guess."""
    DRAFT_INVALID = "draft_invalid"
    """A drafter returned what cannot be verified; that part was dropped."""
    DRAFTER_FAILED = "drafter_failed"
    """A drafter raised; it is off for the rest of the sequence."""
    GRAMMAR = "grammar"
    """The request's grammar forbids a part of what was guessed; that part was dropped."""


class Drafting(Protocol):
    """What the governor may read of a sequence that decodes."""

    @property
    def id(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def speculation(self) -> SpeculationParams: ...
    @property
    def room(self) -> int:
        """Most drafted tokens that could still be part of the output."""

    @property
    def meets_context(self) -> bool:
        """Whether it is the context that sets `room`, not the request's own end."""

    @property
    def tree_room(self) -> int:
        """Most nodes of a draft that branches; larger ones are verified as chains."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a sequence may draft in this step."""

    nodes: int
    """Most drafted tokens."""
    reason: Reason | None = None
    """Why it is less than the engine allows at most."""
    by_drafter: Mapping[str, int] = field(default_factory=dict)
    """Lower limits of drafters whose guesses cost time."""
    enough: float = 0.0
    """Where the others' guesses have more value than this, the drafters in `by_drafter` are not asked."""
    plenty: float = math.inf
    """Where they have more than this, neither are the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One sequence's part of a step."""

    seq: Drafting
    drafted: Draft
    """What the drafters proposed."""
    verified: Draft
    """What of it was in the target's pass."""
    tokens: tuple[int, ...]
    """What became part of the output."""


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """One finished step. Times are wall clock, in seconds; the whole step is their sum."""

    outcomes: Sequence[Outcome]
    prefill_rows: int
    draft_s: float
    forward_s: float
    other_s: float
    draft_s_by: Mapping[str, float] = field(default_factory=dict)
    """Of `draft_s`, each drafter's."""
    ran: int = 0
    """Rows of the pass, those included that only filled it up; 0 is as many as were needed."""

    @property
    def seconds(self) -> float:
        return self.draft_s + self.forward_s + self.other_s

    @property
    def context(self) -> float:
        """Tokens that a row of a decoding sequence attends to, on average."""
        rows = self.rows
        return sum((1 + len(o.verified)) * o.seq.num_tokens for o in self.outcomes) / rows if rows else 0.0

    @property
    def tokens(self) -> int:
        """What the step added to the texts."""
        return sum(len(outcome.tokens) for outcome in self.outcomes)

    @property
    def rows(self) -> int:
        """Rows of the target's pass, those of prompts apart."""
        return sum(1 + len(outcome.verified) for outcome in self.outcomes)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but decoding of one token a sequence went on."""
        return not self.prefill_rows and not any(len(o.verified) for o in self.outcomes)


@dataclass(frozen=True, slots=True)
class Share:
    """One sequence's part of what a step won or lost against plain decoding, in seconds; negative is lost."""

    saved_s: float = 0.0
    wasted_s: float = 0.0
    """Time that went into drafted tokens which did not become text."""
    reason: Reason | None = None
    """Why nothing of its draft was verified, where the limit has not said so before."""


class Governor(Protocol):
    """Decides how much each sequence drafts. It never sees text, and never changes it."""

    @property
    def costs(self) -> Costs:
        """What passes take here, as far as it is known."""

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        """Return each sequence's limit, before anything is drafted; prompt rows run in the same pass."""

    def value(self, seq: Drafting, draft: Draft) -> float:
        """Return what a draft is worth, in tokens; 0 or less is not worth verifying."""

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        """Return what is worth verifying of each draft, within its sequence's limit.

        Sampled drafts may only be cut by what their earlier tokens say, never by the token cut.
        """

    def observe(self, step: StepReport) -> list[Share]:
        """Learn from a finished step, and return what each of its outcomes has won or lost."""
