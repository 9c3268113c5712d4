"""What is kept of a finished request: numbers and names, and no word of what was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.core.types import Completion
from paceline.engine.report import reasons
from paceline.server.answer import Ticket


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One finished request; counts are kept, ratios follow from them."""

    id: str
    at: float
    """When it ended, in seconds since 1970."""
    key: str
    endpoint: str
    streaming: bool
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    seed: int
    mode: str
    rule: str
    steps: int
    plain_steps: int
    drafted: int
    verified: int
    accepted: int
    ttft_ms: float
    prefill_ms: float
    decode_ms: float
    draft_ms: float
    verify_ms: float
    saved_ms: float
    wasted_ms: float
    reasons: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ticket: Ticket, completion: Completion, at: float) -> RequestRow:
        counts, times = completion.speculation, completion.timings
        return cls(
            id=ticket.id,
            at=at,
            key=ticket.key,
            endpoint=ticket.endpoint,
            streaming=ticket.streaming,
            finish_reason=completion.finish_reason,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=len(completion.token_ids),
            seed=completion.seed,
            mode=counts.mode,
            rule=counts.rule,
            steps=counts.steps,
            plain_steps=counts.plain_steps,
            drafted=counts.drafted,
            verified=counts.verified,
            accepted=counts.accepted,
            ttft_ms=times.time_to_first_token_ms,
            prefill_ms=times.prefill_ms,
            decode_ms=times.decode_ms,
            draft_ms=counts.draft_ms,
            verify_ms=counts.verify_ms,
            saved_ms=counts.saved_ms,
            wasted_ms=counts.wasted_ms,
            reasons=reasons(counts),
        )

    @property
    def tokens_per_s(self) -> float:
        """Of decoding; the first token belongs to reading the prompt. 0 where there is no other."""
        return (self.completion_tokens - 1) / self.decode_ms * 1e3 if self.decode_ms > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": dict(self.reasons), "tokens_per_s": self.tokens_per_s}
