"""Medusa heads as a drafter (2401.10774 §3.1): one look at the target's last hidden state guesses several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.eagle_draft import NAME, WIDTH, drafted_to
from paceline.drafters.features import committed
from paceline.drafters.grow import Growth
from paceline.drafters.guesses import best, follows_target
from paceline.drafters.shaped import Head
from paceline.runners.heads import ParallelHead

Floats = NDArray[np.float32]


class MedusaDrafter:
    """Drafts with heads that each guess one token further.

    No head knows what the one before it guessed, so every branch goes on with the same candidates and the tree is best
    first by their products; where only chains are verified it has one branch.

    Args:
        runner: the heads.
        tap: the layer of the target that they read.
        head: which of the target's tokens their logits are of.
        tree_context: up to what length, drafted tokens included, trees can be verified; None is always, 0 never.
        least_survival: says below what chance of the target to confirm all so far a draft goes no further.
    """

    name = NAME

    def __init__(
        self,
        runner: ParallelHead,
        tap: int,
        head: Head,
        tree_context: int | None = None,
        least_survival: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._runner, self._tap, self._head = runner, tap, head
        self._tree_context, self._least = tree_context, least_survival
        self._newest: dict[int, tuple[int, Floats]] = {}
        """By sequence, the newest position whose state was seen, and that state."""

    def begin(self, seq: SequenceView) -> None:
        pass  # there is nothing to draft from before the target has run

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        rows = committed(seen, [self._tap])
        if len(rows):
            self._newest[seq.id] = (seen.begin + len(rows) - 1, rows[-1])

    def end(self, seq: SequenceView) -> None:
        self._newest.pop(seq.id, None)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        drafts = [EMPTY] * len(seqs)
        able = [i for i, seq in enumerate(seqs) if limits[i] > 0 and self._position(seq) == len(seq.tokens) - 2]
        if able:
            found = self._runner.forward(np.stack([self._newest[seqs[i].id][1] for i in able]))
            for i, logits in zip(able, np.swapaxes(found, 0, 1), strict=True):
                drafts[i] = self._draft(seqs[i], limits[i], logits)
        return drafts

    def _position(self, seq: SequenceView) -> int | None:
        return self._newest[seq.id][0] if seq.id in self._newest else None

    def _draft(self, seq: SequenceView, limit: int, logits: Floats) -> Draft:
        """Grow a tree over the heads' answers [heads, draft vocabulary]."""
        reach = self._tree_context
        branches = follows_target(seq.rule) and (reach is None or len(seq.tokens) + limit <= reach)
        width = min(WIDTH, limit) if branches else 1
        growth, least, level = Growth(), self._least(), [ROOT]
        for row in logits[:limit]:
            guesses = None
            for node in level:
                if guesses is None or seq.shaping.touches_logits:
                    guesses = best(self._head, row, seq, drafted_to(growth, node), width)
                growth.add(node, *guesses)
            level = growth.next_level(width, least)
        return growth.draft(limit, self.name)
