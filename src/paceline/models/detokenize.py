"""Text as it streams: whole characters from tokens, and nothing that may yet turn into a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from paceline.errors import OptionError
from paceline.models.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")
_LONGEST = 4
"""Bytes of the longest character."""


class Detokenizer:
    """Turns tokens into text one at a time, at a cost that does not grow with the text.

    What `push` and `flush` return, concatenated, is what `Tokenizer.decode` adds for these tokens after the prompt's.
    A character that the prompt left half-written is completed here.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer, self._decoder = tokenizer, _UTF8("replace")
        tail = self._tail(prompt_ids)
        self._decoder.decode(tail)
        self._at_start = tokenizer.strips_space and not tail

    def push(self, token_id: int) -> str:
        """Return the characters that a token completes; none for a special token."""
        return self._emit(self._bytes(token_id))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was not completed."""
        return self._emit(b"", final=True)

    def _emit(self, data: bytes, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if text and self._at_start:
            self._at_start = False
            return text.removeprefix(" ")
        return text

    def _bytes(self, token_id: int) -> bytes:
        return b"" if self._tokenizer.is_special(token_id) else self._tokenizer.token_bytes(token_id)

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """Return the end of the prompt's text, long enough to hold a character's beginning."""
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._bytes(token_id) + tail
            if len(tail) >= _LONGEST:
                break
        return tail


class StopFilter:
    """Passes text on up to the stop string that is complete first; of several that end together, the longest.

    What it emits is the same however the text is cut into pieces. Text that may be the beginning of a stop string is
    held back until it is known. Without stop strings everything passes at once.
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        if not all(stops):
            raise OptionError(f"stop is {stops!r}; allowed: non-empty strings")
        self._stops, self._held, self._hit = stops, "", False

    def push(self, text: str) -> tuple[str, bool]:
        """Return what can be emitted now, and whether a stop string has been met; after that nothing is emitted."""
        if self._hit:
            return "", True
        text = self._held + text
        cut = self._first(text)
        self._hit = cut is not None
        keep = cut if cut is not None else len(text) - self._undecided(text)
        self._held = "" if self._hit else text[keep:]
        return text[:keep], self._hit

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> int | None:
        """Return where the stop string begins that ends first."""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _undecided(self, text: str) -> int:
        """Return the length of the longest end of a text that a stop string begins with."""
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        ends = (n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops))
        return next(ends, 0)
