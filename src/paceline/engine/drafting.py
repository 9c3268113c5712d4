"""Asking the drafters, and trusting none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, Verdict
from paceline.drafters.base import Drafter
from paceline.engine.sequence import LiveSequence
from paceline.governor.base import Limit, Reason
from paceline.runners.base import RunnerInfo

log = logging.getLogger(__name__)


class DraftDesk:
    """Fills each sequence's draft from the first drafter that has a guess.

    What a drafter raises ends its work for that sequence alone; what it returns is cleaned before anyone sees it.
    """

    def __init__(
        self, drafters: Mapping[str, Drafter], info: RunnerInfo, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.drafters, self._info, self._clock = dict(drafters), info, clock

    def begin(self, seq: LiveSequence) -> None:
        for name, drafter in self.drafters.items():
            self._guarded(name, seq, lambda drafter=drafter: drafter.begin(seq))  # type: ignore[misc]

    def end(self, seq: LiveSequence) -> None:
        for name, drafter in self.drafters.items():
            self._guarded(name, seq, lambda drafter=drafter: drafter.end(seq))  # type: ignore[misc]

    def observe(self, seq: LiveSequence, verdict: Verdict, hidden: Mapping[int, NDArray[np.float32]]) -> None:
        for name, drafter in self.drafters.items():
            if name not in seq.failed_drafters:
                self._guarded(name, seq, lambda drafter=drafter: drafter.observe(seq, verdict, hidden))  # type: ignore[misc]

    def propose(self, seqs: Sequence[LiveSequence], limits: Sequence[Limit]) -> list[Draft]:
        """Return a clean draft for each sequence, and note why where it is empty."""
        drafts = [EMPTY] * len(seqs)
        most = [self._most(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]
        for name, drafter in self.drafters.items():
            asked = [i for i, seq in enumerate(seqs) if most[i] and not drafts[i] and _wants(seq, name)]
            if not asked:
                continue
            start = self._clock()
            found = self._ask(name, drafter, [seqs[i] for i in asked], [most[i] for i in asked])
            share = (self._clock() - start) / len(asked)
            for i, draft in zip(asked, found, strict=True):
                seqs[i].tally.spend(name, share)
                drafts[i] = self._clean(draft, seqs[i], most[i])
        for i, seq in enumerate(seqs):
            if most[i] and not drafts[i]:
                seq.tally.reasons[Reason.NOTHING_TO_DRAFT] += 1
        return drafts

    def _most(self, seq: LiveSequence, limit: Limit) -> int:
        if not self.drafters:
            return 0
        if not self._info.can_rewind:
            seq.tally.reasons[Reason.UNSUPPORTED_MODEL] += 1
            return 0
        if limit.reason is not None:
            seq.tally.reasons[limit.reason] += 1
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
        seq.tally.reasons[Reason.DRAFTER_FAILED] += 1

    def _clean(self, draft: Draft, seq: LiveSequence, most: int) -> Draft:
        try:
            clean = clean_draft(draft, self._info.vocab_size, most)
        except Exception:
            log.warning("request %d: a drafter returned something that is not a draft", seq.id, exc_info=True)
            clean = EMPTY
        if len(clean) != len(draft):
            seq.tally.reasons[Reason.DRAFT_INVALID] += 1
        reach = self._info.tree_context
        if not clean.is_chain and (clean.is_sampled or (reach is not None and seq.num_tokens + len(clean) > reach)):
            clean = tree.best_chain(clean)
        return clean


def _wants(seq: LiveSequence, drafter: str) -> bool:
    named = seq.speculation.drafters
    return drafter not in seq.failed_drafters and (named is None or drafter in named)


def clean_draft(draft: Draft, vocab_size: int, most: int) -> Draft:
    """Return the nodes that can be verified: the first `most` whose token exists, whose parent is kept and comes
    earlier, whose confidence is a probability, and that are no twin of an earlier one."""
    parallel = (draft.parents, draft.confidence, draft.source, *([draft.laws] if draft.laws else []))
    if any(len(field) != len(draft.tokens) for field in parallel):
        return EMPTY
    kept: list[int] = []
    seen: set[tuple[int, int]] = set()
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        exists = isinstance(token, (int, np.integer)) and 0 <= token < vocab_size
        rooted = parent == ROOT or parent in kept
        if exists and rooted and (parent, token) not in seen and 0 <= draft.confidence[node] <= 1:
            seen.add((parent, token))
            kept.append(node)
        if len(kept) == most:
            break
    return draft if len(kept) == len(draft) else tree.select(draft, kept)
