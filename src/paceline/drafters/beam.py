"""A draft in the making: a chain, or a beam of branches that grow a level a pass (EAGLE-2, 2406.16858 §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core import tree
from paceline.core.law import Law
from paceline.core.sampling import Logits
from paceline.core.tree import Draft
from paceline.core.types import ROOT
from paceline.drafters import guesses
from paceline.drafters.base import SequenceView
from paceline.drafters.grow import Growth
from paceline.drafters.shaped import Head

WIDTH = 3
"""Branches that grow at a time."""
ROWS = 8
"""Most rows of a pass, unless the chain alone takes more: a pass of a small model costs about the same up to there."""
SLIGHT = 0.05
"""A second guess less likely than this is not worth its place: where the drafter is sure, there is one branch."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a pass has to run so that some nodes get children."""

    nodes: list[int]
    """The nodes that grow."""
    kept: list[int]
    """Rows of the last pass that all of them follow, and so may stay cached."""
    tokens: list[int]
    """[rows], theirs and those of nodes between the kept ones and them, as the drafter reads them."""
    parents: list[int]
    """[rows], the row that each one follows, or ROOT."""
    wanted: list[int]
    """The rows of `nodes`."""


class Beam:
    """Grows one sequence's draft.

    The likeliest child of the likeliest child and so on, the chain that a drafter without branches would draft, grows
    at every pass, so no draft reaches less far for having branches.

    Args:
        limit: most nodes.
        width: branches that grow at a time; 1 is a chain, and all that the rules which sample can verify.
        own: the target's tokens -> what the drafter reads for them; None where that is the same.
    """

    def __init__(
        self, seq: SequenceView, head: Head, limit: int, width: int = 1, own: Mapping[int, int] | None = None
    ) -> None:
        self._seq, self._head, self._limit, self._own = seq, head, limit, own
        self._width = width if guesses.follows_target(seq.rule) and limit > 1 else 1
        self._growth = Growth()
        self._laws: list[Law | None] = []
        self._chain: list[int] = []
        self._rows: list[int] = []
        """Nodes whose rows the last pass ran."""
        self._kept = 0
        """Nodes that all branches follow and whose rows are cached for good."""

    def grow(self, node: int, logits: Logits) -> None:
        """Hang its children under a node, or under ROOT, given the logits after it."""
        growth, drafted = self._growth, [self._growth.tokens[i] for i in self._path(node)]
        first = len(growth.tokens)
        if guesses.follows_target(self._seq.rule):
            tokens, chances = guesses.best(self._head, logits, self._seq, drafted, self._width)
            few = 1 + sum(chance >= SLIGHT for chance in chances[1:])
            growth.add(node, tokens[:few], chances[:few])
        else:
            drawn = guesses.draw(self._head, logits, self._seq, drafted)
            growth.add(node, [drawn.token], [drawn.confidence])
            self._laws.append(drawn.law)
        if node == (self._chain[-1] if self._chain else ROOT):
            self._chain.append(first)

    def next_level(self, least: float) -> Level | None:
        """Return what to run next; None where that would change nothing, or too seldom be of use.

        Args:
            least: the chance that the target gets to one of the nodes that grow, below which a pass does not pay.
        """
        survival, bar = self._growth.survival, self._growth.bar(self._limit)
        nodes = [node for node in self._growth.next_level(self._width) if survival[node] > bar]
        tip = self._chain[-1]
        if nodes and tip not in nodes and survival[tip] >= least:
            nodes.append(tip)
        nodes = self._affordable(sorted(nodes, key=lambda node: (node != tip, -survival[node])))
        worth = sum(survival[node] for node in nodes)
        return self._level(nodes) if nodes and worth >= least else None

    def _affordable(self, nodes: Sequence[int]) -> list[int]:
        """Return of these nodes, best first, the ones whose rows fit a pass, ascending."""
        rows: set[int] = set()
        chosen: list[int] = []
        for node in nodes:
            more = rows.union(self._path(node)[self._kept :])
            if not chosen or len(more) <= ROWS:
                rows = more
                chosen.append(node)
        return sorted(chosen)

    def _level(self, nodes: list[int]) -> Level:
        growth = self._growth
        paths = [self._path(node) for node in nodes]
        shared = _shared([path[:-1] for path in paths])
        kept = [self._rows.index(node) for node in shared[self._kept :]]
        self._rows, self._kept = sorted({node for path in paths for node in path[len(shared) :]}), len(shared)
        tokens = [growth.tokens[node] for node in self._rows]
        place = {node: row for row, node in enumerate(self._rows)}
        return Level(
            nodes,
            kept,
            tokens if self._own is None else [self._own[token] for token in tokens],
            [place.get(growth.parents[node], ROOT) for node in self._rows],
            [place[node] for node in nodes],
        )

    def _path(self, node: int) -> tuple[int, ...]:
        return tree.path_to(self._growth.parents, node)

    def draft(self, source: str) -> Draft:
        found = self._growth.draft(self._limit, source, self._chain)
        return Draft(found.tokens, found.parents, found.confidence, found.source, tuple(self._laws))


def _shared(paths: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common prefix."""
    same = [nodes[0] for nodes in zip(*paths, strict=False) if len(set(nodes)) == 1]
    return tuple(same)
