"""What every runner must do, on every family, held against plain `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paceline.core.tree import Draft, path_to
from paceline.core.types import ROOT
from paceline.runners.base import Span
from tests import tiny
from tests.runners.conftest import KINDS, Rig

PROMPT = tiny.tokens(70)
"""Crosses two block ends and every window."""
PARENTS = (ROOT, 0, 0, ROOT, 1, 1, 3, 2, 6)
"""Two roots, depth up to three, siblings; no node follows its own parent's row throughout."""
WINDOWED = {case for case, (_, keys) in tiny.CASES.items() if "sliding_window" in keys}
DEEP_TREES = [(kind, case) for kind in KINDS for case in tiny.CASES if kind == "torch" or case not in WINDOWED]
"""OpenVINO's windows count places in the cache: there the trees of a windowed model end with the window."""


def same(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 2e-4 * expected.std()


def tree(seed: int = 5) -> Draft:
    tokens = tiny.tokens(len(PARENTS), seed)
    return Draft(tuple(tokens), PARENTS, (1.0,) * len(PARENTS), ("test",) * len(PARENTS))


def chains(rig: Rig, prefix: Sequence[int], pending: int, draft: Draft) -> NDArray[np.float32]:
    """Return what each row of a drafted span should say: the end of its own chain."""
    answers = []
    for node in (ROOT, *range(len(draft))):
        path = [draft.tokens[i] for i in path_to(draft.parents, node)]
        answers.append(rig.oracle([*prefix, pending, *path])[-1])
    return np.array(answers)


def tree_prefix(rig: Rig) -> list[int]:
    """Return as long a prefix as leaves room for a tree that is exact."""
    return PROMPT[: min(len(PROMPT), rig.tree_context - len(PARENTS)) - 1]


def test_a_prompt_says_what_transformers_says(rig: Rig) -> None:
    found = rig.run(Span.causal(PROMPT, 0, rig.table(70), range(70)))
    expected = rig.oracle(PROMPT)
    assert expected.std() > 1
    same(found.logits, expected)


def test_only_wanted_rows_are_answered(rig: Rig) -> None:
    out = rig.run(
        Span.causal(PROMPT, 0, rig.table(70), [3, 40, 69]),
        Span.causal(PROMPT[:20], 0, rig.table(20, first=4), []),
        Span.causal(PROMPT[5:30], 0, rig.table(25, first=6), [0, 24]),
        hidden=(1,),
    )
    expected = np.concatenate([rig.oracle(PROMPT)[[3, 40, 69]], rig.oracle(PROMPT[5:30])[[0, 24]]])
    same(out.logits, expected)
    assert len(out.hidden[1]) == 70 + 20 + 25


def test_a_pass_may_want_nothing(rig: Rig) -> None:
    out = rig.run(Span.causal(PROMPT[:50], 0, rig.table(70), []))
    assert out.logits.shape == (0, rig.runner.info.vocab_size)
    same(rig.run(Span.causal(PROMPT[50:], 50, rig.table(70), range(20))).logits, rig.oracle(PROMPT)[50:])


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_chunks_and_scattered_blocks_change_nothing(rig: Rig, seed: int | None) -> None:
    table, answers, start = rig.table(70, seed), [], 0
    for size in (1, 7, 25, 1, 34, 1, 1):
        span = Span.causal(PROMPT[start : start + size], start, table, range(size))
        answers.append(rig.run(span).logits)
        start += size
    same(np.concatenate(answers), rig.oracle(PROMPT))


def test_a_tree_says_what_its_chains_say(rig: Rig) -> None:
    prefix, draft = tree_prefix(rig), tree()
    table = rig.table(len(prefix) + 10, seed=3)
    if prefix:
        rig.fill(prefix, table)
    found = rig.run(Span.drafted(7, draft, len(prefix), table)).logits
    same(found, chains(rig, prefix, 7, draft))


@pytest.mark.parametrize(("kind", "case"), DEEP_TREES)
def test_a_tree_may_be_deeper_than_a_window(rigs: Callable[[str, str], Rig], kind: str, case: str) -> None:
    """Two branches side by side, so that a node's place in the cache runs ahead of its position."""
    rig, depth, prefix = rigs(kind, case), 20, PROMPT[:10]
    assert rig.tree_context > len(prefix) + 2 * depth
    parents = (ROOT, ROOT, *range(2 * depth - 2))
    draft = Draft(tuple(tiny.tokens(2 * depth, seed=4)), parents, (1.0,) * 2 * depth, ("test",) * 2 * depth)
    table = rig.table(60, seed=5)
    rig.fill(prefix, table)
    found = rig.run(Span.drafted(7, draft, len(prefix), table)).logits
    for branch in (0, 1):
        chain = rig.oracle([*prefix, 7, *draft.tokens[branch::2]])[len(prefix) :]
        same(found[[0, *range(1 + branch, 1 + 2 * depth, 2)]], chain)


def test_a_chain_is_a_tree_with_one_branch(rig: Rig) -> None:
    draft, table = Draft.chain(PROMPT[61:], "test"), rig.table(70, seed=4)
    rig.fill(PROMPT[:60], table)
    same(rig.run(Span.drafted(PROMPT[60], draft, 60, table)).logits, rig.oracle(PROMPT)[60:])


def test_batch_mates_change_nothing(rig: Rig) -> None:
    """A prefill, its continuation, a plain row, two trees and a chain, in one pass."""
    short, draft = tree_prefix(rig)[-8:], tree()
    places = np.split(np.random.default_rng(0).permutation(18).astype(np.int32), 6)
    rig.fill(PROMPT[:40], places[1])
    rig.fill(PROMPT[10:60], places[2])
    rig.fill(short[:3], places[3])
    rig.fill(short, places[4])
    rig.fill(PROMPT[20:60], places[5])
    found = rig.run(
        Span.causal(PROMPT[:50], 0, places[0], [10, 49]),
        Span.causal(PROMPT[40:], 40, places[1], range(30)),
        Span.causal([9], 50, places[2], [0]),
        Span.drafted(9, draft, 3, places[3]),
        Span.drafted(11, draft, len(short), places[4]),
        Span.drafted(PROMPT[60], Draft.chain(PROMPT[61:66], "test"), 40, places[5]),
    )
    expected = [
        rig.oracle(PROMPT)[[10, 49]],
        rig.oracle(PROMPT)[40:],
        rig.oracle([*PROMPT[10:60], 9])[-1:],
        chains(rig, short[:3], 9, draft),
        chains(rig, short, 11, draft),
        rig.oracle(PROMPT[20:66])[40:],
    ]
    same(found.logits, np.concatenate(expected))


def test_sequences_may_share_the_blocks_of_a_prefix(rig: Rig) -> None:
    size = rig.runner.info.block_size
    first = np.array([5, 9, 2], np.int32)
    rig.fill(PROMPT[: size + 4], first)
    other = [*PROMPT[:size], *tiny.tokens(6, seed=8)]
    found = rig.run(
        Span.causal(other[size:], size, np.array([5, 7], np.int32), range(6)),
        Span.causal(PROMPT[size + 4 : 60], size + 4, first, range(56 - size)),
    )
    same(found.logits, np.concatenate([rig.oracle(other)[size:], rig.oracle(PROMPT)[size + 4 : 60]]))


def test_hidden_states_are_those_between_the_layers(rig: Rig) -> None:
    """Of every row, whatever is answered."""
    layers = tuple(range(rig.runner.info.layers))
    rig.fill(PROMPT[:30], rig.table(70))
    other = Span.causal(PROMPT[:20], 0, rig.table(20, first=4), [])
    out = rig.run(other, Span.causal(PROMPT[30:], 30, rig.table(70), [0, 17, 39]), hidden=layers)
    assert sorted(out.hidden) == list(layers)
    for layer, state in enumerate(rig.oracle.hidden(PROMPT)):
        same(out.hidden[layer], np.concatenate([state[:20], state[30:]]))


def test_the_last_hidden_state_is_what_the_head_reads(rig: Rig) -> None:
    last, head = rig.runner.info.layers, rig.oracle.model.lm_head
    out = rig.run(Span.causal(PROMPT, 0, rig.table(70), [3, 69]), hidden=(last, 0))
    assert list(out.hidden) == [last, 0]
    with torch.inference_mode():
        answered = head(torch.from_numpy(out.hidden[last])).numpy()
    same(answered, rig.oracle(PROMPT))
    same(out.hidden[0], rig.oracle.hidden(PROMPT)[0])


def test_a_tree_has_hidden_states_too(rig: Rig) -> None:
    prefix, draft = tree_prefix(rig), tree()
    table, layer = rig.table(len(prefix) + 10, seed=3), rig.runner.info.layers - 1
    if prefix:
        rig.fill(prefix, table)
    found = rig.run(Span.drafted(7, draft, len(prefix), table), hidden=(layer,)).hidden[layer]
    paths = [[draft.tokens[i] for i in path_to(draft.parents, node)] for node in (ROOT, *range(len(draft)))]
    same(found, np.array([rig.oracle.hidden([*prefix, 7, *path])[layer][-1] for path in paths]))


def test_embeddings_are_rows_of_the_table(rig: Rig) -> None:
    found = rig.runner.embed(np.array([5, 299, 5], np.int64))
    table = rig.oracle.model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(found, table[[5, 299, 5]])
    assert found.dtype == np.float32


@pytest.mark.parametrize("node", [4, 7, 8, 3])
def test_an_accepted_path_is_moved_together_and_decoding_goes_on(rig: Rig, node: int) -> None:
    prefix, draft = tree_prefix(rig), tree()
    table, cached = rig.table(100, seed=6), len(prefix)
    if prefix:
        rig.fill(prefix, table)
    rig.run(Span.drafted(7, draft, cached, table))
    path = path_to(draft.parents, node)
    rows = [0, *(i + 1 for i in path)]
    rig.runner.move(
        slots(rig, table, [cached + row for row in rows]), slots(rig, table, range(cached, cached + len(rows)))
    )
    text = [*prefix, 7, *(draft.tokens[i] for i in path)]
    rest = tiny.tokens(12, seed=9)
    same(rig.run(Span.causal(rest, len(text), table, range(12))).logits, rig.oracle([*text, *rest])[len(text) :])


def test_a_move_reads_everything_before_it_writes(rig: Rig) -> None:
    table = rig.table(40, seed=7)
    rig.fill(PROMPT[:35], table)
    pair = slots(rig, table, [3, 33])
    before = rig.run(Span.causal([9], 35, table, [0])).logits
    rig.runner.move(pair, pair[::-1].copy())
    rig.runner.move(pair, pair[::-1].copy())
    np.testing.assert_array_equal(rig.run(Span.causal([9], 35, table, [0])).logits, before)


def test_rejected_rows_are_overwritten(rig: Rig) -> None:
    table = rig.table(70, seed=8)
    rig.fill(PROMPT[:40], table)
    rig.run(Span.drafted(9, Draft.chain(tiny.tokens(8, seed=3), "test"), 40, table))
    same(rig.run(Span.causal(PROMPT[40:], 40, table, range(30))).logits, rig.oracle(PROMPT)[40:])


def test_allocating_again_forgets(rig: Rig) -> None:
    rig.fill(PROMPT, rig.table(70))
    rig.runner.allocate(4)
    same(rig.run(Span.causal(PROMPT[:9], 0, rig.table(9, first=3), range(9))).logits, rig.oracle(PROMPT[:9]))


def slots(rig: Rig, table: NDArray[np.int32], places: Sequence[int]) -> NDArray[np.int64]:
    """Return the slots in the cache of a sequence's token places."""
    at, size = np.asarray(places, np.int64), rig.runner.info.block_size
    return table[at // size].astype(np.int64) * size + at % size
