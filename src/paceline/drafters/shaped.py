"""From a drafter's logits to laws over the target's tokens.

A drafter's head may answer for fewer tokens than the target has (a trimmed head), for more (a padded table), or for
other ids (another tokenizer): what the target has no token for is cut off before the law is shaped, so that what is
drawn can be verified and the law says what it was drawn from (the token-level intersection of Timor et al. 2502.05202,
§4, with a table of common tokens as the plainest case).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.sampling import Logits, Shaping, law, shape


class Head:
    """Which of the target's tokens a drafter's logits are of.

    Args:
        size: number of the target's tokens.
        names: [columns], the target's token of each column of the logits; where it is negative, or no token of the
            target, there is none. No token may be named twice.
    """

    def __init__(self, size: int, names: NDArray[np.int64]) -> None:
        there = np.flatnonzero((names >= 0) & (names < size))
        self._columns = there[np.argsort(names[there], kind="stable")]
        self.ids = names[self._columns].astype(np.int64)
        """[named], the tokens that can be drafted, ascending."""
        assert (np.diff(self.ids) > 0).all(), "a token named twice"
        self._all = np.arange(size, dtype=np.int64)
        self._in_order = len(self.ids) == len(names) and bool((self._columns == np.arange(len(names))).all())

    def named(self, logits: Logits) -> Logits:
        """Return [named], the logits of `ids`."""
        return logits if self._in_order else logits[self._columns]

    def law(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> Law:
        """Return the law of the next token, over the target's ids; see `sampling.law`."""
        if shaping.touches_logits:  # ids of penalties and bans are of the whole vocabulary
            return law(self._spread(logits), shaping, output)
        found = law(self.named(logits), shaping, ())
        return Law(self.ids[found.ids], found.log_p)

    def shaped(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> tuple[NDArray[np.int64], Logits]:
        """Return tokens, ascending, and their logits after penalties, bias and bans, before any temperature."""
        if shaping.touches_logits:
            return self._all, shape(self._spread(logits), shaping, output)
        return self.ids, self.named(logits)

    def _spread(self, logits: Logits) -> Logits:
        """Return logits over the target's whole vocabulary, -inf where the head has none."""
        whole = np.full(len(self._all), -np.inf, np.float32)
        whole[self.ids] = self.named(logits)
        return whole
