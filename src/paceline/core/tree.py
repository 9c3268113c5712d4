"""Drafts as trees: a chain is a tree with one branch, plain decoding is the empty tree.

Nodes are in causal order: a node's parent has a smaller index, or is ROOT, the pending token.
In a forward pass row 0 is the pending token and row i + 1 is node i.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.types import ROOT

Guess = tuple[str, float]
"""A drafter's name, and its own estimate that the target takes the node, given that it took the parent."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Drafted tokens of one sequence for one step; the fields run parallel, one entry a node."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    """The drafter's own estimate, in [0, 1], that the target takes this node, given that it took the parent."""
    source: tuple[str, ...] = ()
    """The name of the drafter that guessed the node."""
    laws: tuple[Law | None, ...] = ()
    """The law `q` that a node was sampled from, for the ratio and block rules; None where the choice was
    deterministic. Empty when every choice was."""
    also: tuple[tuple[Guess, ...], ...] = ()
    """What other drafters guessed the same node, beside `source`. Empty when no node was guessed twice."""

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        source: str,
        confidence: Sequence[float] | None = None,
        laws: Sequence[Law | None] = (),
    ) -> Draft:
        n = len(tokens)
        return cls(
            tuple(tokens),
            tuple(range(-1, n - 1)),
            tuple(confidence) if confidence is not None else (1.0,) * n,
            (source,) * n,
            tuple(laws),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def guesses(self, node: int) -> tuple[Guess, ...]:
        """Return every drafter that guessed a node, the one that it is counted for first."""
        first = (self.source[node], self.confidence[node])
        return (first, *self.also[node]) if self.also else (first,)

    @property
    def drafters(self) -> set[str]:
        """The names of all that had a part in it."""
        return {*self.source, *(name for others in self.also for name, _ in others)}

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self) - 1))

    @property
    def is_sampled(self) -> bool:
        return any(law is not None for law in self.laws)


EMPTY = Draft()


def depths(parents: Sequence[int]) -> tuple[int, ...]:
    """Return each node's depth; children of the pending token have depth 1."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return tuple(found)


def ancestor_mask(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Return [n + 1, n + 1] over rows (row 0 the pending token): does row i see row j?"""
    rows = len(parents) + 1
    mask = np.eye(rows, dtype=np.bool_)
    mask[:, 0] = True
    for node, parent in enumerate(parents):
        mask[node + 1] |= mask[parent + 1]
    return mask


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """Return the nodes from the root's child down to `node`; empty for ROOT."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))


def children(draft: Draft) -> dict[tuple[int, int], int]:
    """Return (parent, token) -> node; of twins the first is kept."""
    found: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        found.setdefault(key, node)
    return found


def survivals(draft: Draft) -> tuple[float, ...]:
    """Return for each node the product of confidences from the root: the chance that the target reaches it."""
    found: list[float] = []
    for parent, confidence in zip(draft.parents, draft.confidence, strict=True):
        found.append(confidence * (1.0 if parent == ROOT else found[parent]))
    return tuple(found)


def select(draft: Draft, keep: Iterable[int]) -> Draft:
    """Return the draft of the nodes in `keep`, which must contain every parent of its nodes."""
    nodes = sorted(set(keep))
    place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
    return Draft(
        tuple(draft.tokens[n] for n in nodes),
        tuple(place[draft.parents[n]] for n in nodes),
        tuple(draft.confidence[n] for n in nodes),
        tuple(draft.source[n] for n in nodes),
        tuple(draft.laws[n] for n in nodes) if draft.laws else (),
        tuple(draft.also[n] for n in nodes) if draft.also else (),
    )


def prune(draft: Draft, budget: int) -> Draft:
    """Return at most `budget` nodes: always the most probable to be reached whose parent is in (best first)."""
    if len(draft) <= budget:
        return draft
    survival = survivals(draft)
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    front = [(-survival[n], n) for n in below.get(ROOT, [])]
    heapq.heapify(front)
    kept: list[int] = []
    while front and len(kept) < budget:
        _, node = heapq.heappop(front)
        kept.append(node)
        for child in below.get(node, []):
            heapq.heappush(front, (-survival[child], child))
    return select(draft, kept)


def truncate(draft: Draft, depth: int) -> Draft:
    """Return the nodes of at most this depth."""
    return select(draft, (n for n, d in enumerate(depths(draft.parents)) if d <= depth))


def merge(drafts: Sequence[Draft]) -> Draft:
    """Return one tree of deterministic drafts; the same token under the same parent becomes one node.

    A node is counted for the source that named it first, and remembers all others with their confidences.
    """
    tokens: list[int] = []
    parents: list[int] = []
    guesses: list[dict[str, float]] = []
    known: dict[tuple[int, int], int] = {}
    for draft in drafts:
        place = {ROOT: ROOT}
        for node, token in enumerate(draft.tokens):
            key = (place[draft.parents[node]], token)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                guesses.append({})
            place[node] = known[key]
            mine = guesses[known[key]]
            for name, confidence in draft.guesses(node):
                mine[name] = max(confidence, mine.get(name, 0.0))
    listed = [tuple(found.items()) for found in guesses]
    return Draft(
        tuple(tokens),
        tuple(parents),
        tuple(found[0][1] for found in listed),
        tuple(found[0][0] for found in listed),
        also=tuple(found[1:] for found in listed) if any(len(found) > 1 for found in listed) else (),
    )


def best_chain(draft: Draft) -> Draft:
    """Return the branch that always goes on with the most confident child; of equals the first."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    kept, node = [], ROOT
    while node in below:
        node = max(below[node], key=lambda n: draft.confidence[n])
        kept.append(node)
    return select(draft, kept)
