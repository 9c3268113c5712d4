"""Which nodes are verified, against every set that could be."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.governor.allocate import Offer, allocate, candidates, likeliest_path
from tests.core.strategies import drafts, examples


def offer(draft: Draft, most: int = 64, tree_room: int = 64) -> Offer:
    return Offer(draft, tree.survivals(draft), most, tree_room)


def sets(draft: Draft) -> list[tuple[int, ...]]:
    """Every set of nodes that holds the parents of its nodes."""
    nodes = range(len(draft))
    every = chain.from_iterable(combinations(nodes, n) for n in range(len(draft) + 1))
    return [some for some in every if all(draft.parents[n] == ROOT or draft.parents[n] in some for n in some)]


def total(survivals, nodes) -> float:
    return sum(survivals[n] for n in nodes)


@examples(150)
@given(drafts(8), st.integers(0, 9), st.integers(0, 9))
def test_candidates_are_the_best_that_can_be_verified_together(draft: Draft, most: int, tree_room: int) -> None:
    given_ = offer(draft, most, tree_room)
    found, best = candidates(given_), candidates(offer(draft, most))
    possible = [s for s in sets(draft) if len(s) <= most]
    assert total(given_.survivals, best) == pytest.approx(max(total(given_.survivals, s) for s in possible))
    assert all(given_.survivals[a] >= given_.survivals[b] for a, b in pairwise(found))
    if len(best) <= tree_room or tree.select(draft, best).is_chain:
        assert found == best
    else:
        assert tree.select(draft, found).is_chain
        assert found == likeliest_path(draft.parents, given_.survivals)[:most]


@examples(150)
@given(drafts(8))
def test_the_likeliest_path_is_the_best_of_all_branches(draft: Draft) -> None:
    survivals = tree.survivals(draft)
    found = likeliest_path(draft.parents, survivals)
    branches = [tree.path_to(draft.parents, n) for n in range(len(draft))] or [()]
    assert tuple(found) in branches
    assert total(survivals, found) == pytest.approx(max(total(survivals, b) for b in branches))


def test_a_batch_is_ranked_as_one() -> None:
    sure = Draft.chain([1, 2, 3], "a", [0.9, 0.9, 0.9])
    unsure = Draft((4, 5), (-1, -1), (0.5, 0.75), ("a", "b"))
    seen: list[list[float]] = []

    def three(chances: list[float]) -> int:
        seen.append(chances)
        return 3

    first, none, second = allocate([offer(sure), offer(EMPTY), offer(unsure)], three)
    assert seen == [pytest.approx([0.9, 0.81, 0.75, 0.729, 0.5])]
    assert (first.tokens, none, second.tokens) == ((1, 2), EMPTY, (5,))


def test_a_chain_is_taken_where_branches_are_not_exact() -> None:
    fork = Draft((1, 2, 3, 4), (-1, -1, 1, 2), (0.6, 0.5, 0.9, 0.9), ("a",) * 4)
    [whole] = allocate([offer(fork)], len)
    [one_branch] = allocate([offer(fork, tree_room=3)], len)
    [short] = allocate([offer(fork, most=2, tree_room=-5)], len)
    assert (whole.tokens, one_branch.tokens, short.tokens) == ((1, 2, 3, 4), (2, 3, 4), (2, 3))


def test_a_sequence_keeps_to_its_own_limit() -> None:
    long, other = Draft.chain(range(9), "a", [0.99] * 9), Draft.chain([1, 2], "a", [0.1, 0.1])
    kept = allocate([offer(long, most=4), offer(other, most=0)], len)
    assert [len(draft) for draft in kept] == [4, 0]
