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
from paceline.core.types import SamplingParams


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
        self._size = size
        self._in_order = len(self.ids) == len(names) and bool((self._columns == np.arange(len(names))).all())

    def named(self, logits: Logits) -> Logits:
        """Return [named], the logits of `ids`."""
        return logits if self._in_order else logits[self._columns]

    def law(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> Law:
        """Return the law of the next token, over the target's ids; see `sampling.law`."""
        ids, scores = self.shaped(logits, shaping, output)
        found = law(scores, _unshaped(shaping), ())
        return Law(ids[found.ids], found.log_p)

    def shaped(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> tuple[NDArray[np.int64], Logits]:
        """Return tokens, ascending, and their logits after penalties, bias and bans, before any temperature."""
        if not shaping.touches_logits:
            return self.ids, self.named(logits)
        # Penalties and bans name tokens of the whole vocabulary; what the head has none of only costs time after that.
        whole = np.full(self._size, -np.inf, np.float32)
        whole[self.ids] = self.named(logits)
        return self.ids, shape(whole, shaping, output)[self.ids]


def _unshaped(shaping: Shaping) -> Shaping:
    """Return what is left to do once logits are shaped."""
    if not shaping.touches_logits:
        return shaping
    p = shaping.params
    return Shaping(SamplingParams(temperature=p.temperature, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p))
