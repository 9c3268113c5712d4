"""From a drafter's logits to laws over the target's tokens.

A drafter's head may answer for fewer tokens than the target has (a trimmed head), for more (a padded table), or for
other ids (another tokenizer): what the target has no token for is cut off before the law is shaped, so that what is
drawn can be verified and the law says what it was drawn from (the token-level intersection of Timor et al. 2502.05202,
§4, with a table of common tokens as the plainest case).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.rows import HostRow, Logits, Near
from paceline.core.sampling import Shaping, likely, shape


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
        self._room = np.empty(len(self.ids), np.float32)
        self._in_order = len(self.ids) == len(names) and bool((self._columns == np.arange(len(names))).all())

    def named(self, logits: Logits) -> Logits:
        """Return [named], the logits of `ids`."""
        return logits if self._in_order else logits[self._columns]

    def law(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> Law:
        """Return the law of the next token, over the target's ids, without its unlikely tokens.

        A drafter may draw from any law, if it is the one that it says it drew from.
        """
        ids, scores = self.shaped(logits, shaping, output)
        if shaping.params.temperature == 0:
            return Law.point(int(ids[HostRow(scores).best()]))
        law = likely(HostRow(scores), shaping.params).alone()
        return Law(ids[law.ids], law.log_p)

    def near(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> Near:
        """Return the likely tokens of that law, at a temperature above 0, with the mass of the others."""
        ids, scores = self.shaped(logits, shaping, output)
        found = likely(HostRow(scores), shaping.params)
        return replace(found, ids=ids[found.ids])

    def highest(
        self, logits: Logits, shaping: Shaping, output: Sequence[int], width: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        """Return up to `width` tokens of the highest logits, best first, of equals the lowest ids, and the chance that
        a temperature gives to each."""
        ids, scores = self.shaped(logits, shaping, output)
        top = [int(np.argmax(scores))]
        if width > 1:
            near, found = HostRow(scores).top(min(width, len(scores)))
            top = near[np.lexsort((near, -found))][:width].tolist()
        mass = np.subtract(scores, scores[top[0]], out=self._room)
        mass *= np.float32(1 / temperature)
        np.exp(mass, out=mass)
        chances = mass[top] / mass.sum()
        there = [i for i, token in enumerate(top) if scores[token] > -np.inf]
        return ids[top][there].tolist(), chances[there].tolist()

    def shaped(self, logits: Logits, shaping: Shaping, output: Sequence[int]) -> tuple[NDArray[np.int64], Logits]:
        """Return tokens, ascending, and their logits after penalties, bias and bans, before any temperature."""
        if not shaping.touches_logits:
            return self.ids, self.named(logits)
        # Penalties and bans name tokens of the whole vocabulary; what the head has none of only costs time after that.
        whole = np.full(self._size, -np.inf, np.float32)
        whole[self.ids] = self.named(logits)
        found = shape(whole, shaping, output)[self.ids]
        # A grammar may leave nothing that the head can say; what it then says is dropped or rejected.
        return self.ids, found if found.max() > -np.inf else self.named(logits)
