"""Follows the text that the caller expects, and finds its place in it again behind an edit (OpenAI's `prediction`)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, DrafterCounts, SpeculationReport
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.edits import LONGEST as MOST_EDITED
from paceline.drafters.edits import Edits, Site
from paceline.drafters.places import LONGEST, Match, Places
from paceline.models.tokenizer import Tokenizer

SURE = 12.0
"""Bits of agreement after which a place is certain."""
CERTAIN = 0.99
LEAST = 0.02
"""A guess that is less likely to be right is not made."""
INSERTED, UNEVEN = 0.4, 0.25
"""Odds that what was said was put in, or replaced a token more of the text; 1 that it replaced as much."""
LONGER, AGAIN = 0.75, 0.7
"""How guesses fade with each token that was said instead of the text, and with each place that proved wrong."""
REWRITTEN = 0.95
"""Chance that an edit that has begun as an earlier one goes on like it."""


class Prediction:
    """Drafts the caller's text from the place where the answer is now.

    Args:
        tokenizer: the target's; with it an edit of a word is known again however the word is cut into tokens.
    """

    name = "prediction"

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._trails: dict[int, Trail] = {}

    def begin(self, seq: SequenceView) -> None:
        if seq.prediction:
            self._trails[seq.id] = Trail(seq.prediction, seq.prompt_len, self._tokenizer)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._draft(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # what was said is read when the next draft is asked for

    def end(self, seq: SequenceView) -> None:
        self._trails.pop(seq.id, None)

    def _draft(self, seq: SequenceView, limit: int) -> Draft:
        trail = self._trails.get(seq.id)
        if trail is None or not limit:
            return EMPTY
        trail.read(seq.tokens)
        return trail.draft(limit, self.name)


def counted(report: SpeculationReport) -> dict[str, int]:
    """Return what became of the tokens of a prediction, by OpenAI's names; tokens that nobody checked count as
    neither."""
    found = report.by_drafter.get(Prediction.name, DrafterCounts())
    return {
        "accepted_prediction_tokens": found.accepted,
        "rejected_prediction_tokens": found.verified - found.accepted,
    }


class Ahead(NamedTuple):
    """How an answer may go on: `first` is said, then the text from `place`, for which so many bits speak."""

    first: tuple[int, ...]
    place: int
    bits: float


def agreement(bits: float) -> float:
    """A prior for how often the text goes on at a place that so many bits speak for; the governor learns better."""
    return min(CERTAIN, 1 - float(0.6 * 0.7**bits))


class Trail:
    """Where an answer is in the text that it was expected to be.

    It follows the text while they agree. Where they part it looks for the place again after every token; a place that
    was found is taken back when the next tokens do not agree, until enough of them have to be sure.
    """

    def __init__(self, text: Sequence[int], begin: int, tokenizer: Tokenizer | None = None) -> None:
        self._places = Places(text)
        self._text, self._bits = self._places.text, self._places.bits
        self._edits = Edits(self._places, tokenizer)
        self._sites = self._edits.sites
        self._begin = self._read = begin
        self.place: int | None = 0
        """What comes next if the answer follows the text; None while it is lost."""
        self._told = 0.0
        """Bits that speak for the place."""
        self._is_sure = False
        self._left, self._since, self._wrong = 0, begin, 0
        """Where the text was left last, the index of the token that left it, and places that proved wrong since."""
        self._edit: tuple[int, int, tuple[int, ...]] | None = None
        """The edit between there and the place, to be learnt when that is certain."""
        self._expected: Site | None = None
        """An edit that has begun where the text was left."""

    def read(self, tokens: Sequence[int]) -> None:
        """Take in what has been said; `tokens` is the prompt and all of the answer."""
        for i in range(self._read, len(tokens)):
            if self.place is not None and self.place < len(self._text) and self._text[self.place] == tokens[i]:
                self._agree(self.place)
            else:
                self._part(i)
                self._seek(tokens, i + 1)
        self._read = len(tokens)

    def _agree(self, place: int) -> None:
        site = self._sites.get(place)
        if site is not None:
            site.edit.misses += 1
        self.place, self._told = place + 1, self._told + self._bits[place]
        if not self._is_sure and self._told >= SURE:
            self._settle()

    def _settle(self) -> None:
        self._is_sure, self._wrong = True, 0
        if self._edit is not None:
            self._edits.learn(*self._edit)
            self._edit = None

    def _part(self, i: int) -> None:
        """The token at `i` is not what the text has at the place, if there is one."""
        if self.place is not None and self._is_sure:
            self._left, self._since, self._is_sure = self.place, i, False
        elif self.place is not None:
            self._wrong += 1
        self.place = self._edit = self._expected = None

    def _seek(self, tokens: Sequence[int], end: int) -> None:
        """Look for the place after the token before `end`."""
        self._expected = site = self._rewriting(tokens, end)
        if site is not None:
            if end - self._since == len(site.new):
                site.edit.hits += 1
                self.place, self._told, self._expected = site.end, SURE, None
                self._settle()
            return
        found = self._places.best(tokens[max(self._begin, end - LONGEST) : end], self._left)
        if found is not None and found.bits >= 0:
            self.place, self._told = found.place, found.bits
            self._edit = self._between(tokens, end, found)
            if self._told >= SURE:
                self._settle()

    def _rewriting(self, tokens: Sequence[int], end: int) -> Site | None:
        """Return the edit that is expected where the text was left, if what was said since then is how it begins."""
        site, said = self._sites.get(self._left), end - self._since
        if site is None or not 0 < said <= len(site.new) or site.new[:said] != tuple(tokens[self._since : end]):
            return None
        return site

    def _between(self, tokens: Sequence[int], end: int, found: Match) -> tuple[int, int, tuple[int, ...]] | None:
        """Return the edit that leads from where the text was left to where it was found again."""
        same = min(found.length, end - self._since, found.place - self._left)
        if same < 0 or end - self._since > same + MOST_EDITED:
            return None
        return self._left, found.place - same, tuple(tokens[self._since : end - same])

    def draft(self, limit: int, name: str) -> Draft:
        """Return the `limit` tokens that are likeliest to be said, as a tree."""
        if (
            self.place is not None
            and self._is_sure
            and self._sites.keys().isdisjoint(range(self.place, self.place + limit))
        ):
            return Draft.chain(tokens := self._text[self.place : self.place + limit], name, [CERTAIN] * len(tokens))
        tree = _Tree()
        for chance, ahead in self._starts():
            tree.offer(ROOT, 1.0, self._next(ahead, chance))
        while (best := tree.pop(limit)) is not None:
            node, reached, ahead = best
            tree.offer(node, reached, self._next(ahead))
        return tree.draft(name)

    def _starts(self) -> Iterator[tuple[float, Ahead]]:
        """Yield how the answer may go on, each with what its chances are worth."""
        rest = AGAIN**self._wrong
        if self.place is not None:
            yield rest, Ahead((), self.place, self._told)
            rest *= 1 - agreement(self._told)
        said = self._read - self._since
        if self._is_sure or not said:
            return
        if self._expected is not None:
            yield 1.0, Ahead(self._expected.new[said:], self._expected.end, SURE)
            rest *= 1 - REWRITTEN
        rest *= LONGER ** (said - 1)
        replaced, inserted = (1.0, INSERTED) if self._left else (INSERTED, 1.0)
        for chance, place in ((replaced, said), (inserted, 0), (UNEVEN, said + 1)):
            if self._left + place != self.place:
                yield rest * chance, Ahead((), self._left + place, 0.0)

    def _next(self, ahead: Ahead, worth: float = 1.0) -> list[tuple[int, float, Ahead]]:
        """Return what may be said next, each with its chance and what may follow."""
        first, place, bits = ahead
        if first:
            return [(first[0], worth * REWRITTEN, Ahead(first[1:], place, bits))]
        if place >= len(self._text):
            return []
        chance, site = worth * agreement(bits), self._sites.get(place)
        kept = (self._text[place], chance, Ahead((), place + 1, bits + self._bits[place]))
        if site is None:
            return [kept]
        edited = chance * site.edit.chance
        kept = (kept[0], chance - edited, kept[2])
        new = (*site.new, *self._text[site.end : site.end + 1])
        after = Ahead(new[1:], min(site.end + 1, len(self._text)), bits)
        return [kept, (new[0], edited, after)] if new else [kept]


class _Tree:
    """A tree that grows by the node that is likeliest to be reached."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._confidence: list[float] = []
        self._known: dict[tuple[int, int], int] = {}
        self._front: list[tuple[float, int, int, int, float, Ahead]] = []
        self._offers = 0

    def offer(self, parent: int, reached: float, options: Sequence[tuple[int, float, Ahead]]) -> None:
        """Hang children under a node that is reached with this chance."""
        for token, chance, ahead in options:
            if reached * chance >= LEAST:
                self._offers += 1
                heapq.heappush(self._front, (-reached * chance, self._offers, parent, token, chance, ahead))

    def pop(self, limit: int) -> tuple[int, float, Ahead] | None:
        """Take the best offer as a node; two for the same token under the same parent are one node."""
        if not self._front or len(self._tokens) >= limit:
            return None
        reached, _, parent, token, chance, ahead = heapq.heappop(self._front)
        node = self._known.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
            self._confidence.append(chance)
        return node, -reached, ahead

    def draft(self, name: str) -> Draft:
        n = len(self._tokens)
        return Draft(tuple(self._tokens), tuple(self._parents), tuple(self._confidence), (name,) * n)
