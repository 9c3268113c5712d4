"""Edits that were seen in a text, and where they may come again: a name that was changed once is changed everywhere."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from paceline.drafters.places import Places
from paceline.models.tokenizer import Tokenizer

LONGEST = 16
"""Most tokens that an edit takes away or puts in; what is longer hardly comes again."""
MOST_SITES = 256
"""Most places at which one edit is expected."""
BESIDE = 3
"""Tokens before an insertion that must stand before the next one, too."""


@dataclass(slots=True, eq=False)
class Edit:
    """How often an old span was replaced by the new one where it stood, and how often it was left."""

    hits: int = 0
    misses: int = 0
    sites: int = 0

    @property
    def chance(self) -> float:
        """That the edit is made where the old span comes again (Krichevsky and Trofimov's estimate)."""
        return (self.hits + 0.5) / (self.hits + self.misses + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place of the text where an edit may be made."""

    edit: Edit
    end: int
    """The place where the text goes on behind the old span."""
    new: tuple[int, ...]
    """What is said instead."""


class Edits:
    """The edits of one text.

    With a tokenizer they are edits of whole words, found wherever the word is spelled: its tokens are others behind a
    blank, behind a bracket and at the start of a line. Without one they are edits of tokens.
    """

    def __init__(self, places: Places, tokenizer: Tokenizer | None = None) -> None:
        self._places, self._tokenizer = places, tokenizer
        self._spelling: _Spelling | None = None
        self._known: dict[object, Edit] = {}
        self.sites: dict[int, Site] = {}

    def learn(self, begin: int, end: int, new: Sequence[int]) -> None:
        """Take down that `new` was said instead of the text from `begin` to `end`."""
        if end - begin > LONGEST or len(new) > LONGEST:
            return
        if self._tokenizer is None:
            self._learn_tokens(begin, end, tuple(new))
        else:
            self._learn_words(begin, end, new, self._tokenizer)

    def _learn_tokens(self, begin: int, end: int, new: tuple[int, ...]) -> None:
        text = self._places.text
        lead = 0 if end > begin else min(BESIDE, begin)
        span = text[begin - lead : end]
        if not span or (edit := self._unknown((span, new))) is None:
            return
        for at in self._places.of(span[0]).tolist():
            if edit.sites < MOST_SITES and text[at : at + len(span)] == span:
                self._expect(edit, at - (begin - lead), at + lead, at + len(span), new)

    def _learn_words(self, begin: int, end: int, new: Sequence[int], tokenizer: Tokenizer) -> None:
        spelling = self._spelling = self._spelling or _Spelling(self._places.text, tokenizer)
        left, old, word = spelling.words(begin, end, b"".join(map(tokenizer.token_bytes, new)))
        if not old or (edit := self._unknown((old, word))) is None:
            return
        for at in spelling.find(old):
            if edit.sites == MOST_SITES:
                break
            first, last = spelling.covering(at, at + len(old))
            said = spelling.respell(first, last, at, old, word) if at > left else ()
            if said is not None:
                self._expect(edit, at - left, *_trimmed(self._places.text, first, last, said))

    def _unknown(self, key: object) -> Edit | None:
        """Count an edit, and return it when it is the first of its kind."""
        edit = self._known.setdefault(key, Edit())
        edit.hits += 1
        return edit if edit.hits == 1 else None

    def _expect(self, edit: Edit, away: int, begin: int, end: int, new: tuple[int, ...]) -> None:
        """Expect an edit behind where it was first made; before that the old span was left as it was."""
        if away < 0:
            edit.misses += 1
        elif away > 0:
            edit.sites += 1
            self.sites[begin] = Site(edit, end, new)


class _Spelling:
    """The bytes of a text of tokens."""

    def __init__(self, text: Sequence[int], tokenizer: Tokenizer) -> None:
        spelled = {token: tokenizer.token_bytes(token) for token in set(text)}
        pieces = [spelled[token] for token in text]
        self._tokenizer, self._data = tokenizer, b"".join(pieces)
        self._starts = [0, *accumulate(map(len, pieces))]
        self._respelled: dict[bytes, tuple[int, ...] | None] = {}

    def words(self, begin: int, end: int, new: bytes) -> tuple[int, bytes, bytes]:
        """Return the whole words that an edit of tokens has changed: where they begin, the old ones, the new ones.

        There are no old ones when the edit only put some in.
        """
        data, low, high = self._data, self._starts[begin], self._starts[end]
        left, right = low, high
        changed = data[low:high] or new
        while changed and left and _in_word(data[left - 1]) and _in_word(changed[0]):
            left -= 1
        while changed and right < len(data) and _in_word(data[right]) and _in_word(changed[-1]):
            right += 1
        old, word = data[left:right], data[left:low] + new + data[high:right]
        while old and word and old[0] == word[0] and not _in_word(old[0]):
            left, old, word = left + 1, old[1:], word[1:]
        while old and word and old[-1] == word[-1] and not _in_word(old[-1]):
            old, word = old[:-1], word[:-1]
        return left, old, word

    def find(self, old: bytes) -> Iterator[int]:
        """Yield where words stand, ascending; as a part of a longer word they do not count."""
        data, at = self._data, self._data.find(old)
        while at >= 0:
            end = at + len(old)
            begins = not (at and _in_word(old[0]) and _in_word(data[at - 1]))
            ends = not (end < len(data) and _in_word(old[-1]) and _in_word(data[end]))
            if begins and ends:
                yield at
            at = data.find(old, end)

    def covering(self, low: int, high: int) -> tuple[int, int]:
        """Return the span of tokens over these bytes."""
        return bisect_right(self._starts, low) - 1, bisect_left(self._starts, high)

    def respell(self, first: int, last: int, at: int, old: bytes, new: bytes) -> tuple[int, ...] | None:
        """Return the tokens of a span with other words in it; None where they cannot be told."""
        low, high = self._starts[first], self._starts[last]
        piece = self._data[low:at] + new + self._data[at + len(old) : high]
        if piece not in self._respelled:
            self._respelled[piece] = self._encode(piece)
        return self._respelled[piece]

    def _encode(self, piece: bytes) -> tuple[int, ...] | None:
        try:
            tokens = self._tokenizer.encode(piece.decode())
        except UnicodeDecodeError:
            return None
        return tuple(tokens) if b"".join(map(self._tokenizer.token_bytes, tokens)) == piece else None


def _in_word(byte: int) -> bool:
    return byte == 0x5F or byte >= 0x80 or chr(byte).isalnum()


def _trimmed(text: Sequence[int], begin: int, end: int, new: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """Return an edit without the tokens that it leaves as they are at its ends."""
    same = 0
    while begin < end and same < len(new) and text[begin] == new[same]:
        begin, same = begin + 1, same + 1
    new = new[same:]
    while begin < end and new and text[end - 1] == new[-1]:
        end, new = end - 1, new[:-1]
    return begin, end, new
