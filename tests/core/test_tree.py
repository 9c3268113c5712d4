"""Drafts as trees, against walks, dictionaries of paths and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree
from paceline.core.law import Law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT

from . import reference
from .strategies import drafts, examples

FIELDS = ("tokens", "parents", "confidence", "source", "laws", "also")


def same(a: Draft, b: Draft) -> bool:
    return all(getattr(a, field) == getattr(b, field) for field in FIELDS)


def paths(draft: Draft) -> dict:
    """Path of tokens -> who guessed it, and how surely; says nothing of the order of nodes."""
    return {reference.token_path(draft, n): dict(draft.guesses(n)) for n in range(len(draft))}


def in_causal_order(draft: Draft) -> bool:
    return all(ROOT <= parent < node for node, parent in enumerate(draft.parents))


@examples(200)
@given(drafts())
def test_depths_masks_and_paths(draft):
    nodes = range(len(draft))
    above = [reference.ancestors(draft.parents, n) for n in nodes]
    assert tree.depths(draft.parents) == tuple(len(a) + 1 for a in above)
    assert [tree.path_to(draft.parents, n) for n in nodes] == [(*reversed(above[n]), n) for n in nodes]
    mask = tree.ancestor_mask(draft.parents)
    assert mask.dtype == np.bool_
    assert mask.tolist() == reference.mask(draft.parents)
    assert not np.triu(mask, 1).any(), "causal order: no row sees a later one"


def test_the_root_has_no_path():
    assert tree.path_to((-1, 0), ROOT) == ()


def test_a_chain_has_the_causal_mask():
    assert np.array_equal(tree.ancestor_mask((-1, 0, 1)), np.tri(4, dtype=bool))


def test_the_empty_tree_is_plain_decoding():
    assert (len(EMPTY), tree.depths(()), tree.ancestor_mask(()).tolist()) == (0, (), [[True]])
    assert EMPTY.is_chain and not EMPTY.is_sampled


@examples(200)
@given(drafts())
def test_survivals(draft):
    assert tree.survivals(draft) == pytest.approx([reference.survival(draft, n) for n in range(len(draft))], abs=0)


@examples(200)
@given(drafts())
def test_children_keep_the_first_twin(draft):
    found = tree.children(draft)
    keys = list(zip(draft.parents, draft.tokens, strict=True))
    assert found == {key: keys.index(key) for key in keys}


def test_children_of_twins():
    twins = Draft((5, 5, 6, 6), (-1, -1, 0, 1), (1.0,) * 4, ("a",) * 4)
    assert tree.children(twins) == {(-1, 5): 0, (0, 6): 2, (1, 6): 3}


@examples(200)
@given(drafts(), st.data())
def test_select_keeps_what_nodes_are(draft, data):
    """Any set that is closed under parents: paths, sources and confidences stay with their nodes, in order."""
    seeds = data.draw(st.sets(st.integers(0, len(draft) - 1)) if len(draft) else st.just(set()))
    keep = sorted(seeds | {a for n in seeds for a in reference.ancestors(draft.parents, n)})
    found = tree.select(draft, data.draw(st.permutations(keep)) * 2)
    assert in_causal_order(found)
    assert found.tokens == tuple(draft.tokens[n] for n in keep)
    assert found.confidence == tuple(draft.confidence[n] for n in keep)
    assert found.source == tuple(draft.source[n] for n in keep)
    assert found.laws == ()
    assert [reference.token_path(found, n) for n in range(len(found))] == [reference.token_path(draft, n) for n in keep]


def test_select_keeps_laws_with_their_nodes():
    laws = [Law.point(1), None, Law.point(3)]
    chain = Draft.chain([1, 2, 3], "model", laws=laws)
    assert tree.select(chain, [1, 0]).laws == (laws[0], None)
    assert tree.truncate(chain, 1).laws == (laws[0],)
    assert tree.prune(chain, 2).laws == (laws[0], None)


@examples(300)
@given(drafts(9), st.integers(0, 10))
def test_prune_is_best_first(draft, budget):
    found = tree.prune(draft, budget)
    kept = reference.best_first(draft, budget)
    assert same(found, tree.select(draft, kept))
    assert in_causal_order(found)
    total = math.fsum(reference.survival(draft, n) for n in kept)
    assert total == pytest.approx(reference.best_total(draft, budget), abs=1e-12)


@examples(50)
@given(drafts(9))
def test_prune_is_nested(draft):
    """What a smaller budget keeps, a larger one keeps too, so pruning may be done in stages."""
    for budget in range(len(draft)):
        assert same(tree.prune(tree.prune(draft, budget + 1), budget), tree.prune(draft, budget))


def test_prune_leaves_a_small_draft_alone():
    chain = Draft.chain([1, 2], "a", [0.5, 0.5])
    assert tree.prune(chain, 2) is chain
    assert tree.prune(chain, 3) is chain
    assert tree.prune(EMPTY, 0) is EMPTY


@pytest.mark.parametrize("draft", [EMPTY, Draft.chain([1, 2], "a")])
def test_prune_to_no_budget_is_plain_decoding(draft):
    assert same(tree.prune(draft, 0), EMPTY)
    assert same(tree.prune(draft, -1), EMPTY)


def test_prune_prefers_a_sure_path_to_a_shallow_guess():
    draft = Draft((1, 2, 3), (-1, -1, 0), (0.9, 0.3, 0.5), ("a",) * 3)
    assert tree.prune(draft, 2).tokens == (1, 3)


def test_prune_takes_the_first_of_equals():
    draft = Draft((1, 2, 3, 4), (-1, -1, 0, 1), (0.5, 0.5, 1.0, 1.0), ("a",) * 4)
    assert tree.prune(draft, 1).tokens == (1,)
    assert tree.prune(draft, 2).tokens == (1, 2)
    assert tree.prune(draft, 3).tokens == (1, 2, 3)


@examples(100)
@given(drafts(), st.integers(0, 6))
def test_truncate(draft, depth):
    found = tree.truncate(draft, depth)
    assert same(found, tree.select(draft, [n for n, d in enumerate(tree.depths(draft.parents)) if d <= depth]))
    assert max(tree.depths(found.parents), default=0) == min(depth, max(tree.depths(draft.parents), default=0))


@examples(200)
@given(drafts())
def test_best_chain_is_the_first_of_all_branches(draft):
    """Branches in order of their confidences, node by node; of equals the one that was drafted first."""
    leaves = [n for n in range(len(draft)) if n not in draft.parents]
    branches = [(*reversed(reference.ancestors(draft.parents, leaf)), leaf) for leaf in leaves] or [()]
    best = min(branches, key=lambda branch: [(-draft.confidence[n], n) for n in branch])
    found = tree.best_chain(draft)
    assert same(found, tree.select(draft, best))
    assert found.is_chain


def test_best_chain_by_example():
    fork = Draft((1, 2, 3, 4), (-1, -1, 1, 1), (0.4, 0.5, 0.2, 0.3), ("a",) * 4)
    assert tree.best_chain(fork).tokens == (2, 4)
    chain = Draft.chain([1, 2], "a")
    assert same(tree.best_chain(chain), chain)
    assert same(tree.best_chain(EMPTY), EMPTY)


several = st.lists(drafts(6), max_size=4)


@examples(200)
@given(several)
def test_merge_is_the_union_of_paths(trees):
    found = tree.merge(trees)
    assert in_causal_order(found)
    expected = reference.merged(trees)
    assert paths(found) == expected
    assert all(found.source[n] == next(iter(expected[reference.token_path(found, n)])) for n in range(len(found)))
    assert len(paths(found)) == len(found), "no twins"
    assert found.laws == ()


@examples(100)
@given(several, several)
def test_merge_in_stages_is_merge_at_once(some, others):
    at_once = tree.merge([*some, *others])
    assert same(tree.merge([tree.merge(some), *others]), at_once)
    assert same(tree.merge([*some, tree.merge(others)]), at_once)


@examples(100)
@given(drafts(), drafts())
def test_merge_changes_nothing_the_second_time_and_little_by_order(one, other):
    merged = tree.merge([one])
    assert same(tree.merge([merged]), merged)
    assert same(tree.merge([one, one]), merged)
    there, back = paths(tree.merge([one, other])), paths(tree.merge([other, one]))
    assert there == back


def test_merge_by_example():
    lookup = Draft.chain([1, 2, 3], "lookup", [0.5, 0.4, 0.3])
    suffix = Draft((9, 1, 2, 7), (-1, -1, 1, 2), (0.1, 0.6, 0.2, 0.7), ("suffix",) * 4)
    found = tree.merge([lookup, suffix])
    assert found.tokens == (1, 2, 3, 9, 7)
    assert found.parents == (-1, 0, 1, -1, 1)
    assert found.confidence == (0.5, 0.4, 0.3, 0.1, 0.7)
    assert found.source == ("lookup", "lookup", "lookup", "suffix", "suffix")
    assert found.also == ((("suffix", 0.6),), (("suffix", 0.2),), (), (), ())
    assert found.guesses(0) == (("lookup", 0.5), ("suffix", 0.6))
    assert found.drafters == {"lookup", "suffix"}
    assert tree.select(found, [0, 3]).also == ((("suffix", 0.6),), ())
    assert tree.merge([lookup, Draft.chain([8], "suffix")]).also == ()


def test_merge_of_nothing():
    assert same(tree.merge([]), EMPTY)
    assert same(tree.merge([EMPTY, EMPTY]), EMPTY)


def test_chain():
    chain = Draft.chain([4, 5, 6], "model", [0.9, 0.8, 0.7], [Law.point(4), None, None])
    assert (chain.tokens, chain.parents) == ((4, 5, 6), (-1, 0, 1))
    assert (chain.confidence, chain.source) == ((0.9, 0.8, 0.7), ("model",) * 3)
    assert len(chain) == 3 and chain.is_chain and chain.is_sampled
    assert chain.laws[1:] == (None, None)


def test_chain_defaults():
    chain = Draft.chain([4, 5], "lookup")
    assert (chain.confidence, chain.laws) == ((1.0, 1.0), ())
    assert not chain.is_sampled
    assert same(Draft.chain([], "lookup"), EMPTY)
    assert not Draft.chain([4, 5], "lookup", laws=[None, None]).is_sampled
    assert Draft.chain([4, 5], "model", laws=[None, Law.point(5)]).is_sampled


@pytest.mark.parametrize(("parents", "chain"), [((-1,), True), ((-1, 0), True), ((-1, -1), False), ((-1, 0, 0), False)])
def test_is_chain(parents, chain):
    n = len(parents)
    assert Draft((1,) * n, parents, (1.0,) * n, ("a",) * n).is_chain is chain


@pytest.mark.parametrize("function", [tree.children, tree.survivals])
def test_fields_that_do_not_run_parallel_are_an_error(function):
    with pytest.raises(ValueError, match="zip"):
        function(Draft((1, 2), (-1,), (1.0, 1.0), ("a", "a")))
