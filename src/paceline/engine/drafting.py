"""Asking the drafters, and trusting none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from operator import index

from paceline.core import tree
from paceline.core.law import Law
from paceline.core.sampling import Mask
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Drafter, Seen
from paceline.engine.sequence import LiveSequence
from paceline.errors import RequestError
from paceline.governor.base import Limit, Reason
from paceline.runners.base import RunnerInfo

log = logging.getLogger(__name__)

Value = Callable[[LiveSequence, Draft], float]
"""What a draft is worth; 0 or less is nothing."""


def size(seq: LiveSequence, draft: Draft) -> float:
    """The plainest value: the first draft that is not empty will do."""
    return float(len(draft))


class DraftDesk:
    """Fills each sequence's tree from its drafters, in order.

    What a drafter raises ends its work for that sequence alone; what it returns is cleaned before anyone sees it.
    """

    def __init__(
        self, drafters: Mapping[str, Drafter], info: RunnerInfo, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.drafters, self._info, self._clock = dict(drafters), info, clock
        self.spent: dict[str, float] = {}
        """Seconds that each drafter took in the last step."""
        self._begun: dict[int, list[tuple[str, Drafter]]] = {}
        """The drafters that each request has begun with: they see all of it and its end, whatever it may use later."""

    def begin(self, seq: LiveSequence) -> None:
        """Tell the drafters that a request knows of; others cost it nothing."""
        used = [(name, drafter) for name, drafter in self.drafters.items() if seq.speculation.uses(name)]
        self._begun[seq.id] = used
        for name, drafter in used:
            self._guarded(name, seq, lambda drafter=drafter: drafter.begin(seq))  # type: ignore[misc]

    def end(self, seq: LiveSequence) -> None:
        for name, drafter in self._begun.pop(seq.id):
            self._guarded(name, seq, lambda drafter=drafter: drafter.end(seq))  # type: ignore[misc]

    def observe(self, seq: LiveSequence, seen: Seen) -> None:
        for name, drafter in self._begun[seq.id]:
            if name not in seq.failed_drafters:
                self._guarded(name, seq, lambda drafter=drafter: drafter.observe(seq, seen))  # type: ignore[misc]

    def propose(self, seqs: Sequence[LiveSequence], limits: Sequence[Limit], value: Value = size) -> list[Draft]:
        """Return one tree for each sequence, of all that its drafters guessed, and note why where it is empty.

        A drafter whose guesses cost time is not asked where those before it had enough of value.
        """
        self.spent = {}
        drafts = [EMPTY] * len(seqs)
        most = [self._most(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]
        heard: set[int] = set()
        for name, drafter in self.drafters.items():
            mine = [min(n, limit.by_drafter.get(name, n)) for n, limit in zip(most, limits, strict=True)]
            asked = [i for i, seq in enumerate(seqs) if mine[i] and _wants(seq, name)]
            asked = [i for i in asked if not drafts[i] or value(seqs[i], drafts[i]) <= _hope(limits[i], name)]
            heard.update(asked)
            found = self._timed(name, drafter, [seqs[i] for i in asked], [mine[i] for i in asked])
            for i, draft in zip(asked, found, strict=True):
                if clean := self._clean(draft, seqs[i], mine[i]):
                    drafts[i] = mixed(drafts[i], clean)
        for i in heard:
            if not drafts[i]:
                seqs[i].tally.note(Reason.NOTHING_TO_DRAFT)
        return drafts

    def _timed(self, name: str, drafter: Drafter, seqs: list[LiveSequence], limits: list[int]) -> list[Draft]:
        """Ask, and charge the time to those it was for."""
        if not seqs:
            return []
        start = self._clock()
        found = self._ask(name, drafter, seqs, limits)
        self.spent[name] = self._clock() - start
        for seq in seqs:
            seq.tally.spend(name, self.spent[name] / len(seqs))
        return found

    def _most(self, seq: LiveSequence, limit: Limit) -> int:
        if not self.drafters:
            seq.tally.note(Reason.REQUESTED_OFF)
            return 0
        if not self._info.can_rewind:
            seq.tally.note(Reason.UNSUPPORTED_MODEL)
            return 0
        if limit.reason is not None:
            seq.tally.note(limit.reason)
        return max(0, min(limit.nodes, seq.room))

    def _ask(self, name: str, drafter: Drafter, seqs: list[LiveSequence], limits: list[int]) -> list[Draft]:
        try:
            found = drafter.propose(seqs, limits)
            if len(found) == len(seqs):
                return found
            raise ValueError(f"{len(found)} drafts for {len(seqs)} sequences")
        except Exception as error:
            if len(seqs) == 1:
                self._give_up(name, seqs[0], error)
                return [EMPTY]
        # One of them is to blame: ask for each alone.
        return [self._ask(name, drafter, [seq], [limit])[0] for seq, limit in zip(seqs, limits, strict=True)]

    def _guarded(self, name: str, seq: LiveSequence, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._give_up(name, seq, error)

    def _give_up(self, name: str, seq: LiveSequence, error: Exception) -> None:
        log.warning("drafter %s failed and is off for request %d: %s: %s", name, seq.id, type(error).__name__, error)
        seq.failed_drafters.add(name)
        seq.tally.note(Reason.DRAFTER_FAILED)

    def _clean(self, draft: Draft, seq: LiveSequence, most: int) -> Draft:
        try:
            clean = clean_draft(draft, self._info.vocab_size, most)
            flawed = len(clean) != len(draft)
        except Exception:
            log.warning("request %d: a drafter returned something that is not a draft", seq.id, exc_info=True)
            clean, flawed = EMPTY, True
        if flawed:
            seq.tally.note(Reason.DRAFT_INVALID)
        return tree.best_chain(clean) if clean.is_sampled else self._allowed(clean, seq)

    def _allowed(self, draft: Draft, seq: LiveSequence) -> Draft:
        """Drop what the sequence's grammar forbids: a row for it would be wasted."""
        if (grammar := seq.shaping.grammar) is None:
            return draft
        try:
            kept = allowed(draft, grammar, seq.output)
        except RequestError:  # if the text gets there, the walk will say so
            kept = EMPTY
        if len(kept) != len(draft):
            seq.tally.note(Reason.GRAMMAR)
        return kept


def mixed(draft: Draft, more: Draft) -> Draft:
    """Return both as one tree.

    A sampled draft stands alone: it is verified by the law that it was drawn from, and it is taken because it was asked
    for, not for what was drawn, which would bias the text (algorithms that look at a draw before they admit it do).
    """
    if more.is_sampled or not draft:
        return more
    return draft if draft.is_sampled else tree.merge([draft, more])


def _hope(limit: Limit, name: str) -> float:
    """Return the value of a draft above which a drafter need not be asked as well."""
    return limit.enough if name in limit.by_drafter else limit.plenty


def _wants(seq: LiveSequence, drafter: str) -> bool:
    return drafter not in seq.failed_drafters and seq.speculation.uses(drafter)


def clean_draft(draft: Draft, vocab_size: int, most: int) -> Draft:
    """Return the nodes that can be verified: the first `most` whose token exists, whose parent is kept and comes
    earlier, whose confidence is a probability, that their own law can give, and that are no twin of an earlier one.

    Raises:
        Exception: of any kind; then it is no draft at all.
    """
    draft = _plain(draft)
    kept: list[int] = []
    seen: set[tuple[int, int]] = set()
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        law = draft.laws[node] if draft.laws else None
        exists = 0 <= token < vocab_size and (law is None or law.prob(token) > 0)
        rooted = parent == ROOT or parent in kept
        if exists and rooted and (parent, token) not in seen and 0 <= draft.confidence[node] <= 1:
            seen.add((parent, token))
            kept.append(node)
        if len(kept) == most:
            break
    return draft if len(kept) == len(draft) else tree.select(draft, kept)


def allowed(draft: Draft, grammar: Mask, output: Sequence[int]) -> Draft:
    """Return the nodes that a grammar allows after an output.

    Of a sampled draft nothing may be dropped for what was drawn; the target gives such a token no chance, and the rule
    rejects it as the law wants.
    """
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent in paths and grammar.allowed([*output, *paths[parent]])[token]:
            paths[node] = (*paths[parent], token)
    kept = paths.keys() - {ROOT}
    return draft if len(kept) == len(draft) else tree.select(draft, kept)


def _plain(draft: Draft) -> Draft:
    """Return a draft of Python's own numbers, for they become output, with a value for every node."""
    fields = (draft.tokens, draft.parents, draft.confidence, draft.source, *([draft.laws] if draft.laws else []))
    if len({len(field) for field in fields}) > 1:
        raise ValueError("the fields of a draft differ in length")
    if not all(isinstance(name, str) for name in draft.source):
        raise TypeError("a draft's source is not the name of a drafter")
    if not all(law is None or isinstance(law, Law) for law in draft.laws):
        raise TypeError("a draft's law is not a Law")
    tokens, parents = (tuple(map(index, field)) for field in (draft.tokens, draft.parents))
    return Draft(tokens, parents, tuple(map(float, draft.confidence)), tuple(draft.source), tuple(draft.laws))
