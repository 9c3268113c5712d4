"""The books: what speculation has won and lost, in all and by request, and how fast things go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.governor.account import EPSILON, Account, shares
from paceline.governor.base import Drafting, Share, StepReport
from paceline.governor.costs import Costs
from paceline.governor.turn import Turn

REQUESTS = 1024
"""Requests that have an account of their own, the newest."""


HICCUP = 3.0
"""Times that a pass may take what is known of it before the rest is the machine's doing, and not entered."""
PACE_WEIGHT = 0.02
"""Of a token in how fast a request has been of late."""


@dataclass(slots=True)
class _Books:
    """One request's account, and how much faster than plain decoding it went of late.

    Sums of time, so that long steps weigh as what they are.
    """

    account: Account
    plain_s: float = 0.0
    took_s: float = 0.0

    def add(self, tokens: int, plain_s: float, took_s: float) -> None:
        weight = min(0.5, PACE_WEIGHT * tokens)
        if not self.took_s:
            self.plain_s = self.took_s = plain_s
        self.plain_s += weight * (tokens * plain_s - self.plain_s)
        self.took_s += weight * (took_s - self.took_s)


class Ledger:
    """Enters every step against what plain decoding would have taken for as many tokens."""

    def __init__(self, costs: Costs, epsilon: float = EPSILON) -> None:
        self._costs, self._epsilon = costs, epsilon
        self.account = Account(epsilon)
        self._requests: dict[int, _Books] = {}
        self.since_plain = 0
        """Steps since the last plain one that measured what plain decoding takes, and was believed."""

    def overdrawn(self, seq: Drafting) -> bool:
        """Whether a request is to go on plainly: it has lost what it was allowed to, whatever others win."""
        books = self._requests.get(seq.id)
        return books is not None and books.account.overdrawn

    def speedup(self, seqs: Sequence[Drafting]) -> float:
        """Return how much faster than plain decoding these requests went of late, 1 at least.

        Each has its own pace: time that one saves does not shorten another, that comes after it.
        """
        books = [self._requests[seq.id] for seq in seqs if seq.id in self._requests]
        took_s = sum(each.took_s for each in books)
        return max(1.0, sum(each.plain_s for each in books) / took_s) if took_s else 1.0

    def would_have_won(self, request: int, won: float, sequences: int) -> None:
        """Enter a draft that was not verified: so many plain steps it would have been worth."""
        self.account.would_have_won(won / sequences)
        if (books := self._requests.get(request)) is not None:
            books.account.would_have_won(won)

    def book(self, step: StepReport, turn: Turn, is_ordinary: bool, counts: bool) -> list[Share]:
        """Enter a step and return each outcome's share of what it has won or lost.

        Args:
            is_ordinary: whether its pass is one by which plain decoding is measured.
            counts: whether the accounts answer for it; requests that always speculate are their callers' doing.
        """
        plain, n = turn.plain_s, turn.sequences
        gained = sum(len(outcome.tokens) - 1 for outcome in step.outcomes) / n
        extra = self._extra(step, turn, plain)
        if not step.prefill_rows:
            told = step.is_plain and is_ordinary and not self._costs.target.surprised
            self.since_plain = 0 if told else self.since_plain + 1
        if step.is_plain and is_ordinary:  # measures what plain is: neither won nor lost, but for drafting in vain
            extra = step.draft_s
        found = shares(step, plain / n, extra)
        if counts:
            reading = min(sum(turn.reading_s.values()), step.draft_s) / plain
            self.account.book(gained - extra / plain, step.seconds / plain, reading)
            self._book_requests(step, turn, found)
        return found

    def _extra(self, step: StepReport, turn: Turn, plain: float) -> float:
        """Return the seconds that a step took beyond a plain one."""
        if not step.prefill_rows:
            bound = HICCUP * self._costs.forward(max(step.rows, step.ran), step.context)
            return step.draft_s + min(step.forward_s, bound) + step.other_s - plain
        # The pass with its prompts has no plain counterpart that was measured.
        verified = sum(len(outcome.verified) for outcome in step.outcomes)
        more = self._costs.forward(turn.rows + verified, turn.context) - self._costs.forward(turn.rows, turn.context)
        return step.draft_s + more

    def _book_requests(self, step: StepReport, turn: Turn, found: list[Share]) -> None:
        each, took = turn.sequences / turn.plain_s, step.seconds / turn.plain_s
        for outcome, share in zip(step.outcomes, found, strict=True):
            books = self._books(outcome.seq.id)
            reading = min(turn.reading_s.get(outcome.seq.id, 0.0), step.draft_s)
            books.account.book(share.saved_s * each, took, reading * each)
            if not step.prefill_rows:
                books.add(len(outcome.tokens), turn.plain_s, step.seconds)

    def _books(self, request: int) -> _Books:
        books = self._requests.get(request)
        if books is None:
            if len(self._requests) >= REQUESTS:
                del self._requests[next(iter(self._requests))]
            books = self._requests[request] = _Books(Account(self._epsilon))
        return books
