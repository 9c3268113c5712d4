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

SURE, SETTLED = 12.0, 2
"""Bits that speak for a place, and tokens that have agreed with it, after which it is settled."""
START, LINE = 0.25, 0.5
"""Chances that an answer begins with the text, and that the text begins at a new line of an answer that did not."""
REPLACED, INSERTED, UNEVEN = 0.3, 0.1, 0.06
"""Chances that one token was said for one of the text, was put in, or was said for two."""
LONGER = 0.5
"""How these fade with each token more."""
GOES_ON = (0.5, 0.55, 0.7, 0.8, 0.9, 0.95)
"""Chances that the text goes on where so many tokens have agreed."""
CERTAIN, REWRITTEN = 0.99, 0.95
"""The same of more tokens, and that an edit that has begun as an earlier one goes on like it."""
LEAST = 0.02
"""A guess that is less likely to be right is not made.

All of these are priors: shares of tokens that were right in following edits of source files, which the governor's own
measurements replace.
"""


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
    """How an answer may go on: `first` is said, then the text from `place`, with which so many tokens have agreed."""

    first: tuple[int, ...]
    place: int
    agreed: int

    @property
    def chance(self) -> float:
        """That its first token is said."""
        if self.first:
            return REWRITTEN
        return GOES_ON[self.agreed] if self.agreed < len(GOES_ON) else CERTAIN


def found_again(bits: float) -> float:
    """Return the chance that the text goes on at a place that so many bits speak for."""
    return min(0.8, 0.2 + 0.04 * bits)


class Trail:
    """Where an answer is in the text that it was expected to be.

    It follows the text while they agree. Where they part it looks for the place again after every token; a place that
    was found is taken back when the next tokens do not agree, until enough have agreed to be sure.
    """

    def __init__(self, text: Sequence[int], begin: int, tokenizer: Tokenizer | None = None) -> None:
        self._places = Places(text)
        self._text, self._bits = self._places.text, self._places.bits
        self._edits = Edits(self._places, tokenizer)
        self._sites, self._tokenizer = self._edits.sites, tokenizer
        self._ends_line = False
        self._begin = self._read = begin
        self.place: int | None = 0
        """What comes next if the answer follows the text; None while it is lost."""
        self._told, self._agreed = 0.0, 0
        """Bits that speak for the place, and tokens that have agreed with it."""
        self._is_sure = False
        self._left, self._since = 0, begin
        """Where the text was left last, and the index of the token that left it."""
        self._found, self._right = 0, 0
        """Places that were found again, and those of them that the next token agreed with."""
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
        self._ends_line = self._tokenizer is not None and self._tokenizer.token_bytes(tokens[-1]).endswith(b"\n")

    def _agree(self, place: int) -> None:
        site = self._sites.get(place)
        if site is not None:
            site.edit.misses += 1
        self._right += not self._agreed
        self.place, self._agreed, self._told = place + 1, self._agreed + 1, self._told + self._bits[place]
        if not self._is_sure and self._told >= SURE and self._agreed >= SETTLED:
            self._settle()

    def _settle(self) -> None:
        self._is_sure = True
        if self._edit is not None:
            self._edits.learn(*self._edit)
            self._edit = None

    def _part(self, i: int) -> None:
        """The token at `i` is not what the text has at the place, if there is one."""
        if self.place is not None and self._is_sure:
            self._left, self._since, self._is_sure = self.place, i, False
        self.place = self._edit = self._expected = None
        self._agreed = 0

    def _seek(self, tokens: Sequence[int], end: int) -> None:
        """Look for the place after the token before `end`."""
        self._expected = site = self._rewriting(tokens, end)
        if site is not None:
            if end - self._since == len(site.new):
                site.edit.hits += 1
                self.place, self._agreed, self._expected = site.end, len(GOES_ON), None
                self._settle()
            return
        found = self._places.best(tokens[max(self._begin, end - LONGEST) : end], self._left)
        if found is not None and found.bits >= 0:
            self.place, self._told, self._agreed = found.place, found.bits, 0
            self._found += 1
            self._edit = self._between(tokens, end, found)

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
        place, is_certain = self.place, self._is_sure and self._agreed >= len(GOES_ON)
        if place is not None and is_certain and self._sites.keys().isdisjoint(range(place, place + limit)):
            tokens = self._text[place : place + limit]
            return Draft.chain(tokens, name, [CERTAIN] * len(tokens))
        tree = _Tree()
        for chance, ahead in self._starts():
            tree.offer(ROOT, 1.0, self._next(ahead, chance))
        while (best := tree.pop(limit)) is not None:
            node, reached, ahead = best
            tree.offer(node, reached, self._next(ahead, ahead.chance))
        return tree.draft(name)

    def _starts(self) -> Iterator[tuple[float, Ahead]]:
        """Yield how the answer may go on, each with its chance."""
        said, rest = self._read - self._since, 1.0
        if not self._left and not self._agreed and (said == 0 or self._ends_line):
            rest -= (chance := LINE if said else START)
            yield chance, Ahead((), 0, 1)
        if self._expected is not None:
            rest *= 1 - REWRITTEN
            yield REWRITTEN, Ahead(self._expected.new[said:], self._expected.end, len(GOES_ON))
        if self.place is not None and said:
            ahead = Ahead((), self.place, self._agreed)
            chance = rest * (ahead.chance if self._agreed else self._trust * found_again(self._told))
            rest -= chance
            yield chance, ahead
        if not self._is_sure and self._left:
            rest *= LONGER ** (said - 1)
            for chance, place in ((REPLACED, said), (INSERTED, 0), (UNEVEN, said + 1)):
                if self._left + place != self.place:
                    yield rest * chance, Ahead((), self._left + place, 0)

    @property
    def _trust(self) -> float:
        """How far places that are found again are to be trusted here: less where most of them have proved wrong."""
        return min(1.0, (self._right + 2) / (0.35 * self._found + 2))

    def _next(self, ahead: Ahead, chance: float) -> list[tuple[int, float, Ahead]]:
        """Return what may be said next, each with its chance and what may follow."""
        first, place, agreed = ahead
        if first:
            return [(first[0], chance, Ahead(first[1:], place, agreed))]
        if place >= len(self._text):
            return []
        kept, site = Ahead((), place + 1, agreed + 1), self._sites.get(place)
        if site is None:
            return [(self._text[place], chance, kept)]
        edited = chance * site.edit.chance
        options = [(self._text[place], chance - edited, kept)]
        if new := (*site.new, *self._text[site.end : site.end + 1]):
            options.append((new[0], edited, Ahead(new[1:], min(site.end + 1, len(self._text)), agreed)))
        return options


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
