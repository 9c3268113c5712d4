"""Time won and lost against plain decoding (conservative bandits, Wu et al. 1602.04282: exploring on an allowance).

All amounts are in plain steps, so that a balance keeps its worth when the batch or the context changes.
"""

from __future__ import annotations

EPSILON = 0.01
SLACK = 4.0
"""What may be lost before anything was won."""
MOST = 16.0
"""Most that is kept of what was won: a collapse after a good hour costs no more than this."""
RELEASE = 1.0
"""Balance at which speculation may go on after it was overdrawn."""


class Account:
    """Never more than SLACK + MOST behind plain decoding over any stretch of steps, but for `epsilon` of its time.

    A step that commits n tokens a sequence is worth n plain steps; each step adds `epsilon` of its time to the balance.
    When that is used up, steps are plain until the allowance has grown again. Reading what a drafter has missed is an
    advance: it may overdraw the balance once, and no other is given before it is paid back.
    """

    def __init__(self, epsilon: float = EPSILON) -> None:
        self._epsilon = epsilon
        self.balance = SLACK
        self.advance = 0.0
        self.overdrawn = False

    def allows(self, loss: float) -> bool:
        """Whether so much may be spent on finding something out."""
        return not self.overdrawn and self.balance >= loss

    @property
    def advances(self) -> bool:
        """Whether a drafter may read what it has missed."""
        return not self.overdrawn and self.balance >= 0

    def book(self, won: float, took: float, advance: float = 0.0) -> None:
        """Enter one step.

        Args:
            won: plain steps that it was worth beyond those that it took.
            took: plain steps that it took.
            advance: of these, what went into reading.
        """
        self.balance = min(self.balance + won + self._epsilon * took, MOST)
        self.advance = min(self.advance + advance, max(0.0, SLACK - self.balance))
        if self.balance + self.advance < 0:
            self.overdrawn = True
        elif self.balance >= RELEASE:
            self.overdrawn = False
