"""Drafts what the target thought likely after the same token before (Token Recycling, 2408.08696)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from paceline.core.rows import Row
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.best_first import best_first

TOKENS = 32_768
"""Tokens whose successors are kept."""
WIDTH, MARGIN = 8, 3.0
"""Most successors of a token, and how far their logits may lie below the largest."""
FLAT = 1024
"""A row with more tokens within the margin says nothing, and is not worth sorting."""
ROWS = 2
"""Rows of a pass that are read: each costs a few passes over the vocabulary."""
AGREEMENT = 0.5
"""How often the target goes on after a token as it would have in another place; a prior, the governor learns better."""
LEAST = 0.05
"""Nodes that are less likely to be reached are not drafted."""

Successors = tuple[tuple[int, float], ...]
"""Tokens with their shares of the law, the likeliest first."""


class Recycle:
    """Keeps for each token its likeliest successors as the target saw them last, by tenant.

    Of a pass it reads the rows of the accepted path, then others, `rows` in all. A draft is the tree of `limit` nodes
    that are likeliest to be reached where a node's confidence is its share of the law that was seen, times AGREEMENT.

    Args:
        tokens: how many tokens' successors are kept, all tenants together; those seen longest ago go first.
        rows: most rows of a pass that are read.
        shared: whether all tenants are one.
    """

    name = "recycle"

    def __init__(self, tokens: int = TOKENS, rows: int = ROWS, shared: bool = False) -> None:
        self._tokens, self._rows, self._shared = tokens, rows, shared
        self._after: OrderedDict[tuple[str, int], Successors] = OrderedDict()

    def __len__(self) -> int:
        return len(self._after)

    def begin(self, seq: SequenceView) -> None:
        pass  # what is known is the tenant's, not the sequence's

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._guess(seq, limit) if limit > 0 else EMPTY for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        if seen.verdict is None:
            return
        nodes = dict.fromkeys((ROOT, *seen.verdict.path, *range(len(seen.draft))))
        pending = len(seen.tokens) - 1 - len(seen.draft)
        for node in list(nodes)[: self._rows]:
            self._learn(self._tenant(seq), seen.tokens[pending + node + 1], seen.rows[node + 1])

    def end(self, seq: SequenceView) -> None:
        pass

    def _tenant(self, seq: SequenceView) -> str:
        return "" if self._shared else seq.tenant

    def _learn(self, tenant: str, token: int, row: Row) -> None:
        found = successors(row)
        if found:
            self._after.pop((tenant, token), None)
            self._after[tenant, token] = found
        if len(self._after) > self._tokens:
            self._after.popitem(last=False)

    def _guess(self, seq: SequenceView, limit: int) -> Draft:
        ways = partial(self._ways, self._tenant(seq))
        return best_first(seq.tokens[-1], ways, limit, LEAST).draft(self.name)

    def _ways(self, tenant: str, token: int) -> Iterator[tuple[int, float, int]]:
        for successor, share in self._after.get((tenant, token), ()):
            yield successor, AGREEMENT * share, successor


def successors(row: Row) -> Successors:
    """Return the WIDTH likeliest tokens of a row within MARGIN of the best, the lowest id first of equals.

    The shares are of the law cut to them. Nothing is returned of a row without a largest finite logit, or of one with
    more than FLAT tokens within the margin.
    """
    ids, logits = row.within(MARGIN)
    if not 0 < len(ids) <= FLAT or not np.isfinite(logits).all():
        return ()
    best = np.argsort(-logits, kind="stable")[:WIDTH]
    weights = np.exp(logits[best] - logits[best[0]])
    return tuple(zip(ids[best].tolist(), (weights / weights.sum()).tolist(), strict=True))
