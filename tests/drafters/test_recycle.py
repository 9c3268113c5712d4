"""Recycle against a table that is kept by hand, and against a full sort of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree
from paceline.core.rows import HostRow, hosted
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import Verdict
from paceline.drafters import registry
from paceline.drafters.base import Seen
from paceline.drafters.recycle import AGREEMENT, FLAT, LEAST, MARGIN, WIDTH, Recycle, successors
from paceline.drafters.registry import Surroundings
from paceline.models import toy
from paceline.runners.toy import ToyRunner
from tests.core.strategies import drafts, examples, logits

from .views import View

VOCAB = 12


def sorted_out(row: Any) -> list[tuple[int, float]]:
    """The successors of a row by a sort of all of it."""
    ranked = sorted(range(len(row)), key=lambda token: -row[token])
    near = [token for token in ranked if row[token] >= row[ranked[0]] - np.float32(MARGIN)][:WIDTH]
    weights = np.exp(row[near] - row[near[0]])
    return list(zip(near, weights / weights.sum(), strict=True))


def row(*tokens: int, step: float = 0.5) -> Any:
    """Logits that fall from token to token; others have none."""
    found = np.full(VOCAB, -np.inf, np.float32)
    found[list(tokens)] = -step * np.arange(len(tokens))
    return found


def seen(pending: int, rows: Sequence[Any], draft: Draft = EMPTY, path: tuple[int, ...] = (), before: int = 0) -> Seen:
    tokens = [*[9] * before, pending, *draft.tokens]
    return Seen(0, tokens, draft, Verdict(path, 0), hosted(rows), {})


def learnt(drafter: Recycle, tenant: str = "", tokens: int = VOCAB) -> dict[int, list[int]]:
    """What is drafted right after each token."""
    found = {}
    for token in range(tokens):
        [draft] = drafter.propose([View([token], tenant=tenant)], [99])
        found[token] = [t for t, parent in zip(draft.tokens, draft.parents, strict=True) if parent == tree.ROOT]
    return {token: after for token, after in found.items() if after}


@given(logits(max_size=30))
@examples(300)
def test_successors_are_the_first_of_a_sorted_row(values: Any) -> None:
    found, expected = successors(HostRow(values)), sorted_out(values)
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [share for _, share in found] == pytest.approx([share for _, share in expected])
    assert all(type(token) is int and type(share) is float for token, share in found)


def test_rows_that_say_nothing() -> None:
    for value in (-np.inf, np.nan, np.inf):
        assert successors(HostRow(np.full(VOCAB, value, np.float32))) == ()
    assert successors(HostRow(np.zeros(FLAT + 1, np.float32))) == ()
    assert len(successors(HostRow(np.zeros(FLAT, np.float32)))) == WIDTH
    steep = np.zeros(FLAT + 1, np.float32)
    steep[5] = MARGIN + 1
    assert successors(HostRow(steep)) == ((5, 1.0),)


@given(st.data(), drafts(max_nodes=8), st.integers(0, 3), st.integers(0, 8))
@examples(200)
def test_it_reads_the_accepted_path_and_then_the_rest(
    data: st.DataObject, draft: Draft, before: int, rows: int
) -> None:
    """Of the rows that are read, the last of a token counts."""
    last = data.draw(st.integers(-1, len(draft) - 1))
    path = tree.path_to(draft.parents, last)
    tokens = [2, *draft.tokens]
    answers = [row(data.draw(st.integers(0, VOCAB - 1))) for _ in tokens]
    order = [-1, *path, *(n for n in range(len(draft)) if n not in path)][:rows]
    expected = {}
    for node in order:
        expected[tokens[node + 1]] = [int(answers[node + 1].argmax())]
    drafter = Recycle(rows=rows)
    drafter.observe(View([1]), seen(2, answers, draft, path, before))
    assert learnt(drafter) == expected


def test_a_part_of_a_prompt_says_nothing() -> None:
    drafter = Recycle()
    drafter.observe(View([1]), Seen(0, [1, 2], EMPTY, None, (), {}))
    assert len(drafter) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=6, max_size=20), st.integers(1, 3))
@examples(100)
def test_the_latest_counts_and_the_oldest_goes(pairs: list[tuple[int, int]], most: int) -> None:
    drafter, expected = Recycle(tokens=most), {}
    for token, after in pairs:
        drafter.observe(View([1]), seen(token, [row(after)]))
        expected.pop(token, None)
        expected[token] = [after]
        expected = dict(list(expected.items())[-most:])
        assert len(drafter) == len(expected)
    assert learnt(drafter) == expected


def test_the_array_may_change_after_it_was_seen() -> None:
    drafter, answers = Recycle(), row(4)[None]
    drafter.observe(View([1]), seen(2, answers))
    answers[:] = row(7)
    assert learnt(drafter) == {2: [4]}


@given(st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 5), min_size=1, unique=True)), st.integers(0, 12))
@examples(150)
def test_drafts_are_the_nodes_that_are_likeliest_to_be_reached(after: dict[int, list[int]], limit: int) -> None:
    drafter = Recycle()
    for token, tokens in after.items():
        drafter.observe(View([1]), seen(token, [row(*tokens)]))
    [draft] = drafter.propose([View([3, 0])], [limit])
    assert len(draft) <= limit
    survival = tree.survivals(draft)
    assert list(survival) == sorted(survival, reverse=True)
    assert set(draft.source) <= {"recycle"}
    whole = every_node(after, 0, 1.0)
    assert list(survival) == pytest.approx(sorted(whole, reverse=True)[:limit])
    for node, parent in enumerate(draft.parents):
        above = 0 if parent == tree.ROOT else draft.tokens[parent]
        shares = dict(sorted_out(row(*after[above])))
        assert draft.confidence[node] == pytest.approx(AGREEMENT * shares[draft.tokens[node]])
    assert len(tree.children(draft)) == len(draft), "no twins"


def every_node(after: dict[int, list[int]], token: int, reached: float) -> list[float]:
    """The chance of every node below a token that is worth drafting."""
    found = []
    for child, share in sorted_out(row(*after[token])) if token in after else []:
        if reached * AGREEMENT * share >= LEAST:
            found += [reached * AGREEMENT * share, *every_node(after, child, reached * AGREEMENT * share)]
    return found


def test_the_likeliest_branch_is_a_good_chain() -> None:
    drafter = Recycle()
    for token in range(6):
        drafter.observe(View([1]), seen(token, [row(token + 1, 11, step=1.5)]))
    [draft] = drafter.propose([View([0])], [16])
    assert not draft.is_chain
    assert tree.best_chain(draft).tokens[:3] == (1, 2, 3)
    assert draft.tokens[:2] == (1, 2)


def test_nothing_is_drafted_where_nothing_is_known() -> None:
    drafter = Recycle()
    seq = View([1])
    drafter.begin(seq)
    assert [len(d) for d in drafter.propose([seq, View([2])], [8, 0])] == [0, 0]
    drafter.observe(seq, seen(1, [row(2)]))
    assert [len(d) for d in drafter.propose([seq, seq], [0, 4])] == [0, 1]
    drafter.end(seq)
    assert learnt(drafter) == {1: [2]}, "it is not the sequence's"


@pytest.mark.parametrize("shared", [False, True])
def test_what_one_tenants_rows_showed_drafts_for_no_other(shared: bool) -> None:
    runner = ToyRunner(toy.LAWS["table"])
    made = registry.make(("recycle",), Surroundings(runner.info, share_history=shared))["recycle"]
    assert isinstance(made, Recycle)
    made.observe(View([1], tenant="mine"), seen(1, [row(2)]))
    assert learnt(made, "mine") == {1: [2]}, "or there would be nothing to find"
    assert learnt(made, "other") == learnt(made) == ({1: [2]} if shared else {})
