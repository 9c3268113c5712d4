"""Time won and lost against plain decoding (conservative bandits, Wu et al. 1602.04282: exploring on an allowance).

All amounts are in plain steps, so that a balance keeps its worth when the batch or the context changes.
"""

from __future__ import annotations

from paceline.governor.base import Share, StepReport

EPSILON = 0.01
SLACK = 4.0
"""What may be lost before anything was won."""
MOST = 16.0
"""Most that is kept of what was won: a collapse after a good hour costs no more than this."""
RELEASE = 1.0
"""Balance at which speculation may go on after it was overdrawn; doubled each time that it soon is again."""
HARDEST = 4.0
"""Most that is asked for."""
ADVANCE = 8.0
"""Most that reading may take beyond what has been won."""
LOAN = 1.0
"""Lent when drafts that were not verified would have won twice as much as is asked for."""
LENT = 4.0
"""Most that is lent before it is paid back."""


class Account:
    """Never more than SLACK + MOST + ADVANCE + LENT behind plain decoding over any stretch of steps, but for `epsilon`
    of its time and for what a step that overdraws it loses.

    A step that commits n tokens a sequence is worth n plain steps; each step adds `epsilon` of its time to the
    balance. When that is used up, steps are plain until the allowance has grown again, or until drafts that were not
    verified show what they would have won. Reading what a drafter has missed is an advance: it may overdraw the
    balance once, and no other is given before it is paid back.
    """

    def __init__(self, epsilon: float = EPSILON) -> None:
        self._epsilon = epsilon
        self.balance = SLACK
        self.advance = 0.0
        self.lent = 0.0
        self.missed = 0.0
        """Plain steps that would have been won since it was overdrawn."""
        self.overdrawn = False
        self._release = RELEASE / 2

    def allows(self, loss: float) -> bool:
        """Whether so much may be spent on finding something out."""
        return not self.overdrawn and self.balance >= loss

    def advances(self, steps: float) -> bool:
        """Whether a drafter may read what it has missed, for so many plain steps."""
        return not self.overdrawn and self.balance >= 0 and steps <= self.balance + ADVANCE

    def book(self, won: float, took: float, advance: float = 0.0) -> None:
        """Enter one step.

        Args:
            won: plain steps that it was worth beyond those that it took.
            took: plain steps that it took.
            advance: of these, what went into reading.
        """
        self.balance = min(self.balance + won + self._epsilon * took, MOST)
        self.advance = min(self.advance + advance, max(0.0, SLACK - self.balance))
        if self.lent and self.balance > SLACK:
            paid = min(self.lent, self.balance - SLACK)
            self.lent, self.balance = self.lent - paid, self.balance - paid
        if self.balance + self.advance < 0:
            if not self.overdrawn:
                self._release = min(2 * self._release, HARDEST)
                self.missed = 0.0
            self.overdrawn = True
        elif self.balance + self.advance >= self._release:
            self.overdrawn = False
        if self.balance > HARDEST + RELEASE:
            self._release = RELEASE / 2

    def would_have_won(self, won: float) -> None:
        """Take note of a draft that was not verified, in plain steps; enough of them lend it a new start."""
        if not self.overdrawn:
            return
        self.missed = max(0.0, self.missed + won)
        loan = LOAN - min(0.0, self.balance + self.advance)
        if self.missed >= 2 * self._release and self.lent + loan <= LENT:
            self.lent, self.balance = self.lent + loan, self.balance + loan
            self.overdrawn = False


def shares(step: StepReport, token_s: float, extra_s: float) -> list[Share]:
    """Return what each outcome of a step has won: its tokens beyond the first, less its part of the extra time.

    Args:
        token_s: what a token of one of these sequences takes when decoded plainly.
        extra_s: what the step took beyond a plain one.
    """
    costs = _parts(step)
    total = sum(costs)
    found = []
    for outcome, cost in zip(step.outcomes, costs, strict=True):
        gained, verified = max(0, len(outcome.tokens) - 1), len(outcome.verified)
        extra = extra_s * (cost / total if total else 1 / len(step.outcomes))
        # Where nothing was verified only drafting can have been in vain: a slow step was nobody's draft.
        wasted = max(0.0, extra) * (1 - gained / verified) if verified else min(max(0.0, extra), cost)
        found.append(Share(gained * token_s - extra, wasted))
    return found


def _parts(step: StepReport) -> list[float]:
    """Return how much of a step's extra time is each outcome's doing: its rows' and its drafters'.

    The time of a drafter that had no guess for anyone is borne by all.
    """
    verified = sum(len(outcome.verified) for outcome in step.outcomes)
    row_s = step.forward_s / (verified + len(step.outcomes)) if verified else 0.0
    costs = [row_s * len(outcome.verified) for outcome in step.outcomes]
    having = [outcome.drafted.drafters for outcome in step.outcomes]
    for name, seconds in step.draft_s_by.items():
        users = [i for i, names in enumerate(having) if name in names] or range(len(costs))
        for i in users:
            costs[i] += seconds / len(users)
    return costs
