"""Time won and lost against plain decoding (research: a conservative budget; the bound holds for any acceptance)."""

from __future__ import annotations

EPSILON = 0.01
LEAST_HOLD, MOST_HOLD = 8, 512


class Account:
    """Never overdrawn by more than `epsilon` of the time that passed, and one step.

    A step that commits n tokens a sequence is worth n plain steps. While overdrawn, steps are plain: those leave the
    balance as it is while the allowance grows. Each time it happens again the hold doubles; winning time halves it.
    """

    def __init__(self, epsilon: float = EPSILON) -> None:
        self._epsilon = epsilon
        self.balance_s = 0.0
        self.elapsed_s = 0.0
        self._hold, self._held = LEAST_HOLD, 0

    @property
    def overdrawn(self) -> bool:
        return self._held > 0

    def allows(self, loss_s: float) -> bool:
        """Whether so much may be lost on finding something out."""
        return not self._held and self.balance_s - loss_s >= -self._epsilon * self.elapsed_s

    def book(self, tokens: float, plain_s: float, took_s: float, plain: bool) -> None:
        """Enter one step.

        Args:
            tokens: committed a sequence, on average.
            plain_s: what a plain step takes.
            plain: whether this was one; then it neither won nor lost.
        """
        self.elapsed_s += took_s
        if plain:
            self._held = max(0, self._held - 1)
            return
        won = tokens * plain_s - took_s
        self.balance_s += won
        if self.balance_s < -self._epsilon * self.elapsed_s - plain_s:
            self._held, self._hold = self._hold, min(self._hold * 2, MOST_HOLD)
        elif self.balance_s > 0:
            self._hold = max(LEAST_HOLD, self._hold // 2)
