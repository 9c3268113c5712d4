"""What a journal says about speculation, in sums: counts and times are kept, ratios follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Sums:
    """Over finished requests; audits, which are requests of the server's own, are not among them."""

    requests: int = 0
    failed: int = 0
    """Ended with an error."""
    broken_off: int = 0
    """Cancelled, or left by the client."""
    speculated: int = 0
    """In which a drafted token was verified."""
    slower: int = 0
    """That took longer than plain decoding would have, by the account."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    """Of passes of the target, with drafts and without."""
    saved_ms: float = 0.0
    """Against plain decoding, by the account: what was won less what was lost."""
    lost_ms: float = 0.0
    """Of the slower requests, not negative; already taken off `saved_ms`."""
    wasted_ms: float = 0.0
    """Went into drafted tokens that became no text; already taken off `saved_ms`."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Sums)))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of the verified tokens."""
        return self.accepted / self.verified if self.verified else None

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens a pass."""
        return (self.accepted + self.steps) / self.steps if self.steps else None

    @property
    def plain_ratio(self) -> float | None:
        """Times as fast as plain decoding, by the account.

        Steps do some work beside drafting and passes that the journal does not have: this is a little too far from 1.
        """
        took = self.draft_ms + self.verify_ms
        return (took + self.saved_ms) / took if took > 0 else None

    def as_json(self) -> dict[str, Any]:
        ratios = ("acceptance_rate", "acceptance_length", "plain_ratio")
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}


@dataclass(frozen=True, slots=True)
class Loss:
    """A request that lost time."""

    id: str
    key: str
    at: float
    verified: int
    accepted: int
    saved_ms: float
    """Negative."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An audited answer that is not what plain decoding gives."""

    id: str
    at: float
    position: int | None
    """Of the first token that is another, from 0."""
    gap: float | None
    """By how much plain decoding preferred its own, in logits; None where that could not be measured."""


@dataclass(frozen=True, slots=True)
class Audits:
    """Answers that were decoded again, plainly, and compared."""

    equal: int = 0
    near_tie: int = 0
    different: int = 0
    failed: int = 0
    """Came to no verdict."""
    ms: float = 0.0
    """Time that decoding again took, prompts included."""
    differences: tuple[Difference, ...] = ()
    """The newest first; not all, where there are very many."""

    @property
    def judged(self) -> int:
        return self.equal + self.near_tie + self.different


@dataclass(frozen=True, slots=True)
class Spell:
    """A time for which speculation was off, or an alarm on."""

    name: str
    """Of the alarm, or the cause: latency, slowdown, account, audit; server or operator for any other."""
    text: str
    since: float
    until: float | None
    """None where the journal has no end of it: it lasts, or the server ended before."""

    def seconds(self, since: float, until: float) -> float:
        """Return how long it was between two times; 0 if its end is not known."""
        return 0.0 if self.until is None else max(0.0, min(self.until, until) - max(self.since, since))


@dataclass(frozen=True, slots=True)
class Spells:
    """Those of one name."""

    name: str
    times: int
    seconds: float
    """Within the time that is told of; without those that have no end."""
    unended: int
    last: Spell


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is worth looking at."""

    name: str
    text: str
    runbook: str | None = None
    """Name of a page in docs/runbooks."""


@dataclass(frozen=True, slots=True)
class Account:
    """Times are in seconds since 1970."""

    journal: str
    since: float
    until: float
    first: float | None
    """When the journal's oldest entry was written, whatever is asked for; None if there is none."""
    last: float | None
    ahead: int
    """Entries with a time after `until`: the clock was set back. They are in no sum."""
    by_day: Mapping[str, Sums] = field(default_factory=dict)
    """By date (UTC), from the first that the journal has to the last; the outer ones may be parts of days."""
    by_mode: Mapping[str, Sums] = field(default_factory=dict)
    """By mode and rule that requests asked for; what a ceiling made of it is not in a journal."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why less was drafted, by code, the most frequent first."""
    losses: tuple[Loss, ...] = ()
    """The requests that lost most."""
    audits: Audits = Audits()
    off: tuple[Spells, ...] = ()
    """Times without speculation, by cause."""
    off_spells: tuple[Spell, ...] = ()
    """The same one by one, the newest first; not all, where there are very many."""
    alarms: tuple[Spells, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def total(self) -> Sums:
        return sum(self.by_day.values(), Sums())

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "total": self.total.as_json(),
            "by_day": {day: sums.as_json() for day, sums in self.by_day.items()},
            "by_mode": {mode: sums.as_json() for mode, sums in self.by_mode.items()},
        }
