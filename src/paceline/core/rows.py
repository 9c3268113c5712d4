"""Logits of one row, wherever they lie, and the few tokens of it that matter.

Of 150,000 tokens a temperature leaves a few hundred any chance worth speaking of. A draw gives those noise of their own
and takes the others together as one mass: the law stays what it is, and most of the row is only summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.noise import TargetNoise

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]

REACH = math.log(1e4)
"""Tokens up to this many times less probable than the most probable one are near."""
MOST = 2048
"""Near tokens at most: the highest of them, of equals the lowest ids."""
FEW = 1024
"""Rows of no more tokens are near as a whole: there is nothing to be saved."""
_FIRST = 8.0
"""How far below the highest logit the `n` highest are looked for before the whole row is partitioned."""
_FLOAT = np.finfo(np.float32)
_PART = 65_536
_LOWEST, _SMALLEST, _LARGEST = (float(x) for x in (_FLOAT.min, _FLOAT.smallest_normal, _FLOAT.max))


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """The tokens of a law that are likely, and all others as one mass."""

    ids: Ids
    """[near], ascending; never empty."""
    log_p: NDArray[np.float64]
    """[near], natural logarithms; -inf where a tiny temperature leaves nothing."""
    tail: float = -math.inf
    """Natural logarithm of the mass of all other tokens; with it the probabilities sum to one."""
    norm: float = 0.0
    """Logarithm of the sum of exp(logits / temperature) over the row; inf where that overflows."""

    @classmethod
    def of(cls, ids: Ids, logits: Logits, below: float, temperature: float) -> Near:
        """Keep the MOST highest.

        Args:
            ids: ascending, never empty.
            logits: [ids], finite, the highest of the row among them.
            below: sum over all other tokens of exp((logit - highest) / temperature).
        """
        scores = logits.astype(np.float64)
        highest = float(scores.max())
        with np.errstate(over="ignore"):  # below the highest, a tiny temperature rightly ends at -inf
            scores = (scores - highest) / temperature
        mass = np.exp(scores)
        if len(ids) > MOST:
            kept = _highest(logits, MOST)
            below += float(mass[~kept].sum())
            ids, scores, mass = ids[kept], scores[kept], mass[kept]
        total = math.log(float(mass.sum()) + below)
        tail = math.log(below) - total if below > 0 else -math.inf
        return cls(ids, scores - total, tail, highest / temperature + total)

    def alone(self) -> Law:
        """Return the law of these tokens where the others have none."""
        there = self.log_p > -np.inf
        log_p = self.log_p[there]
        return Law(self.ids[there], log_p - math.log(float(np.exp(log_p).sum())))

    def draw(self, noise: TargetNoise) -> int | None:
        """Return argmax(log p + g) over these tokens and the mass of all others, which is None; of equals the first.

        The noise of the mass is no token's: the largest of theirs would have to be drawn anew otherwise.
        """
        if len(self.ids) == 1 and self.tail == -math.inf:
            return int(self.ids[0])
        scores = self.log_p + noise(self.ids)
        best = int(np.argmax(scores))
        if self.tail + noise.of_tail() > scores[best]:
            return None
        return int(self.ids[best])


class Row(Protocol):
    """The logits of one row. Whatever it returns is a function of those alone, the same in every bit at every call."""

    @property
    def size(self) -> int: ...

    def best(self) -> int:
        """Return the token of the highest logit, of equals the lowest id."""

    def within(self, margin: float) -> tuple[Ids, Logits]:
        """Return the tokens, ascending, with finite logits at most `margin` below the highest, and these."""

    def near(self, temperature: float) -> Near:
        """Return the law at a temperature above 0; REACH, MOST and FEW say which tokens are near."""

    def top(self, n: int) -> tuple[Ids, Logits]:
        """Return the `n` highest tokens, ascending, with all that equal the last of them, and their logits."""

    def at(self, token: int) -> float: ...

    def whole(self) -> Logits:
        """Return [vocabulary]; not to be changed."""


class Rows(Protocol):
    """The answers of a pass."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...

    def whole(self) -> Logits:
        """Return [rows, vocabulary]."""


def reach(size: int, temperature: float) -> float:
    """Return how far below the highest logit tokens of a row are near."""
    return math.inf if size <= FEW else temperature * REACH


def least(highest: float, margin: float) -> float:
    """Return the least float32 that is at most `margin` below the highest; always finite."""
    exact = min(max(highest - margin, _LOWEST), _LARGEST)
    found = np.float32(exact)
    return float(found if found >= exact else np.nextafter(found, np.float32(_LARGEST)))


def factor(temperature: float) -> float:
    """Return what float32 logits are multiplied with; neither infinite nor 0, for -inf times 0 is no number."""
    return min(max(1 / temperature, _SMALLEST), _LARGEST)


@dataclass(frozen=True, slots=True, eq=False)
class HostRow:
    """A row in this process's memory."""

    logits: Logits
    """[vocabulary]"""

    @property
    def size(self) -> int:
        return len(self.logits)

    def best(self) -> int:
        return int(np.argmax(self.logits))

    def within(self, margin: float) -> tuple[Ids, Logits]:
        bar = np.float32(least(self.at(self.best()), margin))
        parts = [start + np.flatnonzero(part >= bar) for start, part in self._parts()]
        ids = np.concatenate(parts).astype(np.int64, copy=False)
        return ids, self.logits[ids]

    def near(self, temperature: float) -> Near:
        ids, logits = self.within(reach(self.size, temperature))
        below = sum(self._below(ids, temperature)) if len(ids) < self.size else 0.0
        return Near.of(ids, logits, below, temperature)

    def top(self, n: int) -> tuple[Ids, Logits]:
        ids, logits = self.within(_FIRST)
        if len(ids) < n:
            ids, logits = np.arange(self.size, dtype=np.int64), self.logits
        if n < len(ids):
            kept = logits >= np.partition(logits, -n)[-n]
            ids, logits = ids[kept], logits[kept]
        return ids, logits

    def at(self, token: int) -> float:
        return float(self.logits[token])

    def whole(self) -> Logits:
        return self.logits

    def beyond(self, near: Ids, temperature: float, share: float) -> int:
        """Return the token at which a share in (0, 1) of the mass of all but the near tokens is reached."""
        sums = np.cumsum(self._below(near, temperature))
        part = int(np.searchsorted(sums, share * sums[-1], side="right"))
        start, mass = next(islice(self._masses(near, temperature), part, None))
        left = share * sums[-1] - (sums[part - 1] if part else 0.0)
        found = int(np.searchsorted(np.cumsum(mass, dtype=np.float64), left, side="right"))
        return start + min(found, int(np.flatnonzero(mass)[-1]))  # the part's sum may round otherwise, step by step

    def _below(self, near: Ids, temperature: float) -> list[float]:
        """Return the masses of the parts, the near tokens left out."""
        return [float(mass.sum(dtype=np.float64)) for _, mass in self._masses(near, temperature)]

    def _masses(self, near: Ids, temperature: float) -> Iterator[tuple[int, Logits]]:
        """Yield each part's first token and exp((logit - highest) / temperature), 0 for the near ones.

        In float32: the mass of the others is good to about 1e-6 of itself. What is yielded is overwritten by the next.
        """
        highest, scale = np.float32(self.at(self.best())), np.float32(factor(temperature))
        room = np.empty(min(_PART, self.size), np.float32)
        for start, part in self._parts():
            with np.errstate(over="ignore"):
                mass = np.subtract(part, highest, out=room[: len(part)])
                mass *= scale
            np.exp(mass, out=mass)
            first, last = np.searchsorted(near, (start, start + len(part)))
            mass[near[first:last] - start] = 0
            yield start, mass

    def _parts(self) -> Iterator[tuple[int, Logits]]:
        """Yield the row in parts that stay in a core's cache while they are worked on, each with its first token."""
        return ((start, self.logits[start : start + _PART]) for start in range(0, self.size, _PART))


@dataclass(frozen=True, slots=True, eq=False)
class HostRows:
    """[rows, vocabulary] in this process's memory."""

    logits: Logits

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, index: int) -> HostRow:
        return HostRow(self.logits[index])

    def whole(self) -> Logits:
        return self.logits


def hosted(rows: Sequence[Logits]) -> list[Row]:
    return [HostRow(row) for row in rows]


def _highest(logits: Logits, n: int) -> NDArray[np.bool_]:
    """Return which are the `n` highest, of equals the first."""
    last = np.partition(logits, -n)[-n]
    kept: NDArray[np.bool_] = logits > last
    kept[np.flatnonzero(logits == last)[: n - np.count_nonzero(kept)]] = True
    return kept
