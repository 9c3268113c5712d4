"""The toy runner: a mistake in blocks, rows, masks or positions shows."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.tree import Draft, path_to
from paceline.core.types import ROOT
from paceline.models.toy import ToyLaw
from paceline.runners.base import Span, Want
from paceline.runners.toy import WIDTH, ToyRunner

LAW = ToyLaw(vocab_size=30, order=None)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
TABLE = np.array([5, 0, 3, 1], np.int32)


@pytest.fixture
def runner() -> ToyRunner:
    runner = ToyRunner(LAW, context=64, block_size=4)
    runner.allocate(6)
    return runner


def expected(*texts: list[int]) -> np.ndarray:
    return np.array([LAW.logits(text) for text in texts])


def test_it_says_what_it_is() -> None:
    info = ToyRunner(LAW, context=64, block_size=4, can_rewind=False).info
    assert (info.vocab_size, info.context, info.block_size, info.can_rewind) == (30, 64, 4, False)
    assert (info.name, info.tree_context) == ("toy", None)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 14])
def test_chunks_over_scattered_blocks(runner: ToyRunner, chunk: int) -> None:
    for start in range(0, 14, chunk):
        part = TEXT[start : start + chunk]
        found = runner.forward([Span.causal(part, start, TABLE, range(len(part)))]).logits
        np.testing.assert_array_equal(found, expected(*(TEXT[: start + i + 1] for i in range(len(part)))))


def test_only_wanted_rows_and_no_rows(runner: ToyRunner) -> None:
    out = runner.forward([Span.causal(TEXT, 0, TABLE, [2, 13]), Span.causal([7], 0, np.array([2], np.int32), [])])
    np.testing.assert_array_equal(out.logits, expected(TEXT[:3], TEXT))
    assert out.logits.dtype == np.float32
    empty = runner.forward([Span.causal([7], 0, np.array([2], np.int32), [])])
    assert empty.logits.shape == (0, 30)


def test_a_tree(runner: ToyRunner) -> None:
    draft = Draft((7, 8, 9, 7, 2), (ROOT, ROOT, 0, 2, 1), (1.0,) * 5, ("t",) * 5)
    runner.forward([Span.causal(TEXT[:6], 0, TABLE, [])])
    found = runner.forward([Span.drafted(TEXT[6], draft, 6, TABLE)]).logits
    paths = [[draft.tokens[i] for i in path_to(draft.parents, node)] for node in (ROOT, *range(5))]
    np.testing.assert_array_equal(found, expected(*([*TEXT[:7], *path] for path in paths)))


def test_hidden_states_are_of_what_a_row_sees_and_of_the_layer(runner: ToyRunner) -> None:
    """Of every row, whatever is answered; the same text gives the same state by whatever way it came there."""
    whole = runner.forward([Span.causal(TEXT, 0, TABLE, [])], Want((0, 7))).hidden
    assert whole[0].shape == (14, WIDTH)
    assert len(np.unique(np.concatenate([whole[0], whole[7]]))) == 2 * 14 * WIDTH
    draft = Draft((8, TEXT[7], TEXT[8]), (ROOT, ROOT, 1), (1.0,) * 3, ("t",) * 3)
    runner.allocate(6)
    runner.forward([Span.causal(TEXT[:6], 0, TABLE, [])])
    found = runner.forward([Span.drafted(TEXT[6], draft, 6, TABLE)], Want((7,))).hidden
    np.testing.assert_array_equal(found[7][[0, 2, 3]], whole[7][[6, 7, 8]])
    assert not np.isin(found[7][1], whole[7]).any()


def test_embeddings_are_of_the_token(runner: ToyRunner) -> None:
    found = runner.embed(np.array([4, 1, 4]))
    np.testing.assert_array_equal(found[0], found[2])
    assert found.shape == (3, WIDTH)
    assert not np.isin(found[0], found[1]).any()


def test_moving(runner: ToyRunner) -> None:
    runner.forward([Span.causal(TEXT[:8], 0, TABLE, [])])
    first, third = TABLE[0] * 4, TABLE[0] * 4 + 2
    pair = np.array([first, third], np.int64)
    runner.move(pair, pair[::-1].copy())
    found = runner.forward([Span.causal([7], 8, TABLE, [0])]).logits
    np.testing.assert_array_equal(found, expected([4, 1, 3, *TEXT[3:8], 7]))


def test_mistakes_show(runner: ToyRunner) -> None:
    runner.forward([Span.causal(TEXT[:6], 0, TABLE, [])])
    with pytest.raises(AssertionError, match="never written"):
        runner.forward([Span.causal([1], 9, TABLE, [0])])
    wrong = Span(np.array([1]), 6, TABLE, np.array([0], np.int32), positions=np.array([9]))
    with pytest.raises(AssertionError, match="position"):
        runner.forward([wrong])
    runner.allocate(6)
    with pytest.raises(AssertionError, match="never written"):
        runner.forward([Span.causal([1], 6, TABLE, [0])])
