"""Text that can be asked where its last tokens stood before; the oldest of it is dropped to make room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BREAK = -1
"""Stands between pieces of text; nothing matches across it, and nothing follows before it."""
SIZES = (1, 3, 8)
"""Lengths of the n-grams that are indexed."""
LONGEST = 64
"""Longest match that is told from longer ones."""


class Corpus:
    """Pieces of text on end, of at most `most` tokens with the breaks between them (None: no bound).

    A place is where a token stands; places count from the first token that ever was, so that dropping text moves none.
    Each place is chained to the one before it that the same n-gram led to, for every size of n-gram: a token costs one
    look into a table and one link a size, when it comes and again when it is dropped.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tokens: list[int] = []
        self._first = 0
        self._run = 0
        self._last: dict[tuple[int, ...], int] = {}
        self._before: tuple[list[int], ...] = tuple([] for _ in SIZES)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def end(self) -> int:
        """The place of the next token."""
        return self._first + len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add to the last piece of text; of more than there is room for, the end."""
        if self._most is not None:
            tokens = tokens[max(0, len(tokens) - self._most) :]
            self.drop(len(self) + len(tokens) - self._most)
        for token in tokens:
            self._add(token)

    def close(self) -> None:
        """End a piece of text, unless it is empty."""
        if self._run and self._most is not None:
            self.drop(len(self) + 1 - self._most)
        if self._run:
            self._add(BREAK)

    def drop(self, count: int) -> None:
        """Drop the oldest tokens, and the break that would come first; none where `count` is 0 or less."""
        if count <= 0:
            return
        if self._tokens[count : count + 1] == [BREAK]:
            count += 1
        count = min(count, len(self))
        for i in range(count):
            for n in SIZES:
                gram, place = tuple(self._tokens[i : i + n]), self._first + i + n
                if self._last.get(gram) == place:
                    del self._last[gram]
        for line in (self._tokens, *self._before):
            del line[:count]
        self._first += count
        self._run = min(self._run, len(self))

    def pieces(self) -> list[list[int]]:
        """Return the text, oldest first, without breaks."""
        found: list[list[int]] = [[]]
        for token in self._tokens:
            if token == BREAK:
                found.append([])
            else:
                found[-1].append(token)
        return [piece for piece in found if piece]

    def followed(self, places: Iterable[int]) -> dict[int, list[int]]:
        """Return what stands at these places, each token with the places after it; nothing where the text ends."""
        tokens, first = self._tokens, self._first
        found: dict[int, list[int]] = {}
        for place in places:
            token = tokens[place - first] if place - first < len(tokens) else BREAK
            if token != BREAK:
                found.setdefault(token, []).append(place + 1)
        return found

    def places(self, tail: Sequence[int], most: int) -> dict[int, int]:
        """Return where a text went on that ended as `tail` does, and how many last tokens were the same there.

        For each of SIZES these are the `most` latest places after that many last tokens of `tail`, if the same tokens
        stand there, and something follows. The longest match that is returned is LONGEST.
        """
        found: dict[int, int] = {}
        for n, before in zip(reversed(SIZES), reversed(self._before), strict=True):
            place = self._last.get(tuple(tail[-n:]), -1) if n <= len(tail) else -1
            for _ in range(most):
                if place - n < self._first:
                    break
                if place not in found:
                    found[place] = self._matched(tail, place, n)
                place = before[place - self._first]
        return found

    def _add(self, token: int) -> None:
        tokens, place = self._tokens, self.end
        for n, before in zip(SIZES, self._before, strict=True):
            earlier = -1
            if token != BREAK and n <= self._run:
                gram = tuple(tokens[-n:])
                earlier = self._last.get(gram, -1)
                self._last[gram] = place
            before.append(earlier)
        tokens.append(token)
        self._run = 0 if token == BREAK else self._run + 1

    def _matched(self, tail: Sequence[int], place: int, known: int) -> int:
        """Return how many tokens before a place are the end of `tail`, `known` of them certain."""
        tokens, end = self._tokens, place - self._first
        most = min(LONGEST, len(tail), end)
        while known < most and tokens[end - known - 1] == tail[-known - 1]:
            known += 1
        return known
