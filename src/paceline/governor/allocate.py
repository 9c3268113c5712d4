"""Which drafted nodes are verified: the likeliest first, over the whole batch, while they pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One sequence's draft, and what of it may be verified."""

    draft: Draft
    survivals: Sequence[float]
    """Of each node the chance that the target gets there; a node's is never above its parent's."""
    most: int
    """Most nodes to verify."""
    tree_room: int
    """Most nodes of a draft that branches; beyond that only a chain is exact."""


def allocate(offers: Sequence[Offer], worth: Callable[[list[float]], int]) -> list[Draft]:
    """Return what to verify of each offer.

    Args:
        worth: how many nodes to take, given the chances of all that could be, best first.
    """
    ranked = sorted((-offer.survivals[node], i, node) for i, offer in enumerate(offers) for node in candidates(offer))
    count = worth([-survival for survival, _, _ in ranked])
    kept: list[list[int]] = [[] for _ in offers]
    for _, i, node in ranked[:count]:
        kept[i].append(node)
    return [tree.select(offer.draft, nodes) if nodes else EMPTY for offer, nodes in zip(offers, kept, strict=True)]


def candidates(offer: Offer) -> list[int]:
    """Return the nodes that could be verified together, each after its parent and after likelier ones."""
    draft, survivals = offer.draft, offer.survivals
    if draft.is_chain:
        return list(range(min(len(draft), offer.most)))
    best = sorted(range(len(draft)), key=lambda node: (-survivals[node], node))[: offer.most]
    if len(best) <= offer.tree_room or tree.select(draft, best).is_chain:
        return best
    return likeliest_path(draft.parents, survivals)[: offer.most]


def likeliest_path(parents: Sequence[int], survivals: Sequence[float]) -> list[int]:
    """Return the branch of which most nodes are expected to be taken, from the root down; of equals the first."""
    expected: list[float] = []
    for parent, survival in zip(parents, survivals, strict=True):
        expected.append(survival + (0.0 if parent == ROOT else expected[parent]))
    last = max(range(len(expected)), key=expected.__getitem__, default=ROOT)
    return list(tree.path_to(parents, last))
