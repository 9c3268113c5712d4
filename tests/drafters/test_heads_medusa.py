"""The Medusa drafter against heads that are asked anew for every branch, and the factory of both kinds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import SamplingParams
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.eagle_draft import WIDTH
from paceline.drafters.heads import ParallelHeads, StepHeads, drafter
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.shaped import Head
from paceline.models.heads import Heads
from paceline.runners.base import RunnerInfo
from paceline.runners.kv import Pool
from tests.core.strategies import examples
from tests.heads import EAGLE3, MEDUSA, NumpyParallelHead, NumpyStepHead, make

from .heads_world import VOCAB, Life, medusa, same_tree, some_path, some_tree, tree
from .test_heads import EMBED, PARAMS
from .views import View

HEADS = make(MEDUSA, seed=3)
INFO = RunnerInfo(VOCAB, 9, 512, 4, 64)


def made(least: float = 0.0, trees: int | None = None) -> MedusaDrafter:
    names = np.arange(VOCAB, dtype=np.int64)
    return MedusaDrafter(NumpyParallelHead(HEADS), MEDUSA.taps[0], Head(VOCAB, names), trees, lambda: least)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(PARAMS),
    st.sampled_from(["coupled", "coupled", "ratio", "block", "typical"]),
    st.sampled_from([None, 0, 12]),
    st.sampled_from([0.0, 0.2]),
)
@examples(100)
def test_it_drafts_the_likeliest_products(
    seed: int, params: SamplingParams, rule: Any, trees: int | None, least: float
) -> None:
    dice = random.Random(seed)
    drafter = made(least, trees)
    lives = [
        Life(View([dice.randrange(VOCAB) for _ in range(n)], n, rule, params, seed=seed), drafter) for n in (1, 4, 7)
    ]
    for life in lives:
        life.prefill(dice.randrange(1, 8))
    for _ in range(4):
        limits = [dice.randrange(0, 9) for _ in lives]
        drafts = drafter.propose([life.view for life in lives], limits)
        for life, draft, limit in zip(lives, drafts, limits, strict=True):
            view = life.view
            if not limit or life.seen < max(len(view.tokens) - 1, 1):
                assert not draft
                continue
            branches = rule in ("coupled", "typical") and (trees is None or len(view.tokens) + limit <= trees)
            width = WIDTH if branches else 1
            same_tree(draft, tree(HEADS, view, medusa(HEADS, view), limit, width, MEDUSA.count, least))
            assert branches or draft.is_chain
        for life, draft in zip(lives, drafts, strict=True):
            shown = draft if dice.random() < 0.5 else some_tree(dice, 4)
            life.verify(shown, some_path(dice, shown), dice.randrange(VOCAB), dice.choice([0, 2]))
    for life in lives:
        drafter.end(life.view)
    assert not drafter._newest


def test_its_state_is_that_of_the_newest_committed_position() -> None:
    """Not that of a rejected node, and not an older one."""
    drafter = made()
    life = Life(View([1, 2, 3, 4]), drafter)
    life.prefill(2)
    assert not drafter.propose([life.view], [4])[0]
    life.verify(some_tree(random.Random(1), 6), [], 9)
    [draft] = drafter.propose([life.view], [4])
    same_tree(draft, tree(HEADS, life.view, medusa(HEADS, life.view), 4, WIDTH, MEDUSA.count))
    stale = View([1, 2, 3])
    with pytest.raises(AssertionError):
        same_tree(draft, tree(HEADS, stale, medusa(HEADS, stale), 4, WIDTH, MEDUSA.count))


def test_strangers_and_faults() -> None:
    drafter = made()
    view = View([1, 2, 3], id=4)
    assert not drafter.propose([view], [3])[0]
    drafter.end(view)
    life = Life(view, drafter)
    life.prefill(5)
    drafter._runner = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        drafter.propose([view], [3])
    drafter._runner = NumpyParallelHead(HEADS)
    same_tree(drafter.propose([view], [3])[0], tree(HEADS, view, medusa(HEADS, view), 3, WIDTH, MEDUSA.count))


class Failing:
    count = MEDUSA.count

    def forward(self, features: Any) -> Any:
        raise RuntimeError("broken")


def loaded(heads: Heads) -> StepHeads | ParallelHeads:
    if heads.config.kind == "medusa":
        return ParallelHeads(heads, NumpyParallelHead(heads))
    runner = NumpyStepHead(heads, EMBED)
    runner.allocate(20)
    return StepHeads(heads, runner, Pool(20, runner.block_size, runner.move))


@pytest.mark.parametrize("config", [EAGLE3, replace(EAGLE3, draft_vocab_size=13), MEDUSA])
@pytest.mark.parametrize("reach", [0, None])
def test_the_drafter_of_either_kind(config: Any, reach: int | None) -> None:
    heads = make(config)
    shuffled = heads.draft_to_target
    if shuffled is not None:  # in whatever order the map is
        shuffled = np.random.default_rng(0).permutation(shuffled)
    made = drafter(loaded(replace(heads, draft_to_target=shuffled)), replace(INFO, tree_context=reach))
    assert isinstance(made, MedusaDrafter if config.kind == "medusa" else EagleDrafter)
    life = Life(View([5, 6, 7, 8, 9]), made)
    life.prefill(9)
    [draft] = made.propose([life.view], [6])
    assert draft and draft.is_chain == (reach == 0)
    assert set(draft.source) == {"heads"}
    if shuffled is not None:
        assert set(draft.tokens) <= set(shuffled.tolist())
