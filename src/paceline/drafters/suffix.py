"""Drafts what came most often after the longest match, here or in what was said before (SuffixDecoding, 2411.04975)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.best_first import Guess, best_first
from paceline.drafters.corpus import LONGEST, Corpus
from paceline.drafters.history import History

VOTERS = 16
"""Most places that are looked at for each size of n-gram."""
FACTOR = 4
"""A draft has at most so many nodes for each token of the match. The paper takes 1 and verifies them all; here only
those that pay are verified."""
LEAST = 0.1
"""Nodes that are less likely to be reached are not drafted."""
DOUBT, TRUST = 2.0, 0.75
"""Votes for the unseen after a match of one token, for each way that was seen; and the share of them that is left for
each token more. What went on in many ways will again go on in a new one (PPM's method C: Moffat 1990)."""


class Suffix:
    """Guesses from the sequence itself and from past outputs of its tenant.

    The voters of a match length are the places that `Corpus.places` finds for that length or more. They vote for what
    follows them, then those that agree vote for what follows that, until the text ends for them. A node's confidence
    is its share of the votes, those for the unseen included, which are fewer the longer the match with the node's
    parents is. The likeliest nodes are drafted, none that is reached with a chance below LEAST.

    From the longest match on, those lengths are asked that have at least twice as many voters as the one asked before.
    The length whose draft has the largest sum of chances is taken, of equals the longest. The two drafts, of the
    sequence and of the past, become one, cut to its likeliest nodes; what both name is as sure as the surer says.

    Args:
        history: past outputs; None begins with none.
    """

    name = "suffix"

    def __init__(self, history: History | None = None) -> None:
        self.history = History() if history is None else history
        self._texts: dict[int, Corpus] = {}

    def begin(self, seq: SequenceView) -> None:
        self._texts[seq.id] = Corpus()
        self.history.touch(seq.tenant)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._guess(seq, limit) if limit > 0 else EMPTY for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # the next draft reads what was committed, and the past reads it at the end

    def end(self, seq: SequenceView) -> None:
        """The output joins the past; the prompt does not."""
        if self._texts.pop(seq.id, None) is not None:
            self.history.add(seq.tenant, seq.tokens[seq.prompt_len :])

    def _guess(self, seq: SequenceView, limit: int) -> Draft:
        text, past = self._texts[seq.id], self.history.of(seq.tenant)
        text.extend(seq.tokens[len(text) :])
        tail = seq.tokens[-LONGEST:]
        guesses = [best_guess(corpus, tail, limit) for corpus in (text, past) if corpus is not None]
        drafts = [guess.draft(self.name) for guess in sorted(guesses, key=lambda guess: -guess.score) if guess.score]
        return tree.prune(tree.merge(drafts), limit) if len(drafts) > 1 else drafts[0] if drafts else EMPTY


def doubt(match_length: int) -> float:
    """Return the votes for the unseen, for each way that was seen after a match of 1 or more tokens."""
    return DOUBT * float(TRUST ** (match_length - 1))


def best_guess(corpus: Corpus, tail: Sequence[int], limit: int) -> Guess:
    """Return the guess of the match length that promises most."""
    places, best, asked = corpus.places(tail, VOTERS), Guess(), 0
    for length in sorted(set(places.values()), reverse=True):
        most = min(limit, length * FACTOR)
        if most <= best.score:  # a node counts for less than 1, and shorter matches have no more of them
            break
        voters = sorted((place for place, matched in places.items() if matched >= length), reverse=True)
        if len(voters) < 2 * asked:
            continue
        asked = len(voters)
        guess = best_first((length, voters), partial(_ways, corpus), most, LEAST)
        if guess.score > best.score:
            best = guess
    return best


def _ways(corpus: Corpus, known: tuple[int, list[int]]) -> Iterator[tuple[int, float, tuple[int, list[int]]]]:
    """Count the votes of places, latest first, after a match of so many tokens; of equal ways the latest is first."""
    length, voters = known
    followed = corpus.followed(voters)
    votes = sum(map(len, followed.values())) + len(followed) * doubt(length)
    for token, agreed in sorted(followed.items(), key=lambda way: -len(way[1])):
        yield token, len(agreed) / votes, (length + 1, agreed)
