"""A sequence's text in a drafter's own tokens, kept in step at a cost that does not grow with the text.

What is told is what encoding the whole text would give: between special tokens, text is cut where every tokenizer cuts
it, before a blank that follows a word, and only what comes after the last cut is encoded anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.drafters.reading import Taken, common
from paceline.models.bridge import Bridge, runs, whole

LONG, TOO_LONG = 60, 1000
"""Characters without a blank after which a text is cut before its punctuation, and after which anywhere: a drafter
that reads such text in slightly other tokens may guess a little worse."""
_MARK = re.compile(r"(?<=[^\W\d_])[,.;:!?()\[\]{}\"，。、；：！？（）「」]")


class Retelling:
    """See `reading.Telling`. Special tokens that the drafter has no like of are left out."""

    def __init__(self, bridge: Bridge) -> None:
        self._target, self._drafter, self._specials = bridge.target, bridge.drafter, bridge.specials
        self._taken = Taken()
        self._begin()

    def _begin(self) -> None:
        drafter = self._drafter.tokenizer
        bos = drafter.bos_id if drafter.add_bos else None
        self.tokens: list[int] = [] if bos is None else [bos]
        self._settled = len(self.tokens)
        """Own tokens that stay as they are, whatever comes."""
        self._tail, self._opens = b"", True
        """The text after them, and whether it begins a stretch of text."""
        self._blank = b" " if self._target.adds_space else b""
        """What the target puts before its first text, until that has come."""

    def extend(self, tokens: Sequence[int]) -> int:
        known = self._taken.more(tokens)
        settled = self._settled if known else 0
        before = self.tokens[settled:]
        if known:
            del self.tokens[settled:]
        else:
            self._begin()
        self._take(tokens[known:])
        self._settle(self._safe())
        self.tokens += self._drafter.spell(self._tail, self._opens)
        return settled + common(before, self.tokens[settled:])

    def _take(self, tokens: Sequence[int]) -> None:
        stretch: list[bytes] = []
        for token in tokens:
            if self._target.tokenizer.is_special(token):
                self._append(stretch)
                self._break(token)
                stretch = []
            else:
                stretch.append(self._target.tokenizer.token_bytes(token))
        self._append(stretch)

    def _append(self, stretch: Sequence[bytes]) -> None:
        text = b"".join(stretch)
        self._tail += text.removeprefix(self._blank)
        self._blank = b"" if text else self._blank

    def _break(self, token: int) -> None:
        """End a stretch of text with one of the target's special tokens."""
        self._settle(len(self._tail))
        special = self._specials.get(token)
        if special is not None and self.tokens != [special]:  # a prompt that begins with BOS has no second one
            self.tokens.append(special)
        self._settled, self._opens = len(self.tokens), True

    def _settle(self, size: int) -> None:
        """Take so many bytes of the tail for good."""
        if size:
            self.tokens += self._drafter.spell(self._tail[:size], self._opens)
            self._tail, self._settled, self._opens = self._tail[size:], len(self.tokens), False

    def _safe(self) -> int:
        """Return how much of the tail is told in the same tokens whatever comes after it."""
        done, text = 0, ""
        for text, stray in runs(whole(self._tail)):
            if stray:
                done, text = done + len(text.encode()) + len(stray), ""
        return done + len(text[: self._cut(text)].encode())

    def _cut(self, text: str) -> int:
        blank = text.rfind(" ")
        while blank > 0 and text[blank - 1].isspace():
            blank = text.rfind(" ", 0, blank)
        if blank > 0 or len(text) <= LONG:
            return max(0, blank)
        marks = [] if self._drafter.adds_space else [match.start() for match in _MARK.finditer(text)]
        if marks:
            return marks[-1]
        return len(text) - LONG if len(text) > TOO_LONG else 0
