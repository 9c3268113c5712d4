"""The EAGLE-3 drafter against passes over the whole text, whatever came before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import SamplingParams
from paceline.drafters import eagle as module
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.eagle_draft import DEPTH, WIDTH
from paceline.drafters.features import Features
from paceline.drafters.shaped import Head
from paceline.models.heads import Heads
from paceline.runners.kv import Pool
from tests.core.strategies import examples
from tests.heads import NumpyStepHead

from .heads_world import VOCAB, Life, chain, eagle, heads_of, same_chain, same_tree, some_path, some_tree, tree
from .views import View

HEADS = {
    "plain": heads_of(),
    "small": heads_of(draft_vocab_size=23, own_embed=True, norm_before_residual=True),
    "normed": heads_of(norm_output=True, tap_norms=True, input_norm=True, biases=frozenset("qkv")),
}
EMBED = np.random.default_rng(4).normal(size=(VOCAB, 20)).astype(np.float32)
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.2, top_p=0.9),
    SamplingParams(repetition_penalty=1.5, presence_penalty=0.5),
    SamplingParams(temperature=0.9, top_k=7, frequency_penalty=0.4, logit_bias={3: -np.inf, 5: 2.0}),
]


class Rig:
    """A drafter and its pool, which is checked after every call."""

    def __init__(
        self,
        heads: Heads = HEADS["plain"],
        tree_context: int | None = None,
        blocks: int = 100,
        block_size: int = 4,
        reuse: bool = False,
        least: float = 0.0,
        runner: NumpyStepHead | None = None,
    ) -> None:
        self.heads, self.trees, self.least = heads, tree_context, least
        self.embed = heads.tensors["embed"] if heads.config.own_embed else EMBED
        self.runner = runner or NumpyStepHead(heads, self.embed, block_size)
        self.runner.allocate(blocks)
        self.pool = Pool(blocks, self.runner.block_size, self.runner.move, reuse)
        names = np.arange(VOCAB) if heads.draft_to_target is None else heads.draft_to_target
        self.drafter = EagleDrafter(
            self.runner, self.pool, heads.config.taps, Head(VOCAB, names), tree_context, lambda: self.least
        )

    def life(self, tokens: list[int], first: int = 0, **view: Any) -> Life:
        life = Life(View(list(tokens), **view), self.drafter, first)
        life.prefill(len(tokens))
        return life

    def propose(self, lives: list[Life], limits: list[int]) -> list[Any]:
        drafts = self.drafter.propose([life.view for life in lives], limits)
        self.pool.check()
        return drafts

    def check(self, life: Life, draft: Any, limit: int, first: int | None = None) -> None:
        """Assert that this is what a pass over the whole text drafts."""
        view = life.view
        if len(view.tokens) - 1 <= (life.first if first is None else first):
            assert not draft, "nothing was seen of it"
            return
        answer = eagle(self.heads, self.embed, view, life.first if first is None else first)
        branches = self.trees is None or len(view.tokens) + limit <= self.trees
        if branches and view.rule in ("coupled", "typical"):
            same_tree(draft, tree(self.heads, view, answer, limit, WIDTH, DEPTH, self.least))
        else:
            same_chain(draft, chain(self.heads, view, answer, limit, self.least))

    def finish(self, lives: list[Life]) -> None:
        for life in lives:
            self.drafter.end(life.view)
            self.pool.check()
        assert self.pool.available == self.pool.num_blocks, "blocks were not given back"


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(HEADS)),
    st.sampled_from(PARAMS),
    st.sampled_from(["coupled", "coupled", "ratio", "block", "typical"]),
    st.sampled_from([None, 0, 16]),
    st.sampled_from([0.0, 0.0, 0.2]),
    st.sampled_from([1, 3, 4]),
    st.booleans(),
)
@examples(100)
def test_it_drafts_as_if_it_had_read_everything_now(
    seed: int, heads: str, params: SamplingParams, rule: Any, trees: int | None, least: float, size: int, reuse: bool
) -> None:
    """After drafts of its own and of others, accepted and rejected, while it was asked and while it was not, with
    several sequences of which some share their start, and some start where the target's cache ends."""
    dice = random.Random(seed)
    rig = Rig(HEADS[heads], trees, block_size=size, reuse=reuse, least=least)
    start, lives = text(seed, 9), []
    for i in range(3):
        prompt = start[: dice.randrange(0, 10)] + text(seed + i, dice.randrange(1, 6))
        first = 0 if reuse else dice.choice([0, 0, dice.randrange(len(prompt))])
        life = Life(View(list(prompt), i, rule, params, seed=seed), rig.drafter, first)
        while life.seen < len(prompt) - 1:
            life.prefill(dice.randrange(1, 6))
        lives.append(life)
    for _ in range(6):
        asked = [life for life in lives if dice.random() < 0.6]
        limits = [dice.randrange(0, 7) for _ in asked]
        drafts = rig.propose(asked, limits)
        for life, draft, limit in zip(asked, drafts, limits, strict=True):
            if limit:
                rig.check(life, draft, limit)
            else:
                assert not draft
        own = {id(life): draft for life, draft in zip(asked, drafts, strict=True)}
        for life in lives:
            draft = own.get(id(life)) if dice.random() < 0.5 else None
            draft = some_tree(dice, dice.randrange(5)) if draft is None else draft
            life.verify(draft, some_path(dice, draft), dice.randrange(VOCAB), dice.choice([0, 0, 3]))
    rig.finish(lives)


@pytest.mark.parametrize("trees", [None, 0])
def test_asking_twice_gives_the_same(trees: int | None) -> None:
    rig = Rig(tree_context=trees)
    life = rig.life(text(1, 7))
    [first], [second] = (rig.propose([life], [5]) for _ in range(2))
    assert first.tokens == second.tokens and first.parents == second.parents
    rig.check(life, second, 5)
    rig.finish([life])


def test_being_off_runs_nothing_and_coming_back_runs_what_is_new() -> None:
    rig = Rig(tree_context=0)
    life = rig.life(text(2, 30))
    for i in range(10):
        life.verify(some_tree(random.Random(i), 3), [], i)
    assert rig.runner.rows == 0
    [draft] = rig.propose([life], [3])
    assert rig.runner.rows == 39 + 2  # the last token's row is run by nobody
    rig.check(life, draft, 3)
    life.verify(draft, [0, 1], 5)
    before = rig.runner.rows
    [draft] = rig.propose([life], [3])
    assert rig.runner.rows == before + 3 + 2, "rows of drafted tokens are made anew, of the target's states"
    rig.check(life, draft, 3)
    rig.finish([life])


def test_long_texts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CATCH_UP_ROWS", 7)
    rig = Rig(tree_context=0)
    lives = [rig.life(text(i, length), id=i) for i, length in enumerate((40, 3, 12))]
    for life, draft in zip(lives, rig.propose(lives, [4, 4, 4]), strict=True):
        rig.check(life, draft, 4)
    rig.finish(lives)


def test_what_was_given_up_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long text that nobody asked about, the newest part is kept, and drafted from at its true positions."""
    monkeypatch.setattr(Features.__init__, "__defaults__", (8,))
    rig = Rig(tree_context=0)
    life = Life(View(text(3, 40)), rig.drafter)
    while life.seen < 39:
        life.prefill(5)
    kept = rig.drafter._states[0].features
    assert kept.end == 39 and 8 <= kept.end - kept.begin < 8 + 5
    begin = kept.begin
    [draft] = rig.propose([life], [4])
    rig.check(life, draft, 4, first=begin)
    rig.finish([life])


def test_a_gap_weakens_nobody_else() -> None:
    """A sequence that starts behind a gap must not lend its rows, not even to a text that begins as its rows do."""
    rig, prompt = Rig(reuse=True), text(5, 14)
    gap = rig.life(prompt, first=4, id=1)
    [draft] = rig.propose([gap], [5])
    rig.check(gap, draft, 5)
    others = [rig.life(prompt, id=2), rig.life(prompt[4:], id=3)]
    for life, draft in zip(others, rig.propose(others, [5, 5]), strict=True):
        rig.check(life, draft, 5)
    rig.finish([gap, *others])


def test_what_the_targets_cache_skips_is_taken_from_the_heads_own() -> None:
    rig, prompt = Rig(reuse=True), text(6, 15)
    first = rig.life(prompt, id=1)
    rig.propose([first], [4])
    rig.drafter.end(first.view)
    before = rig.runner.rows
    second = rig.life(prompt, first=12, id=2)
    [draft] = rig.propose([second], [4])
    rig.check(second, draft, 4, first=0)  # as if nothing had been skipped
    assert rig.runner.rows - before < 14
    rig.finish([second])


def test_texts_that_differ_in_their_first_token_alone_share_nothing() -> None:
    rig, rest = Rig(reuse=True), text(7, 13)
    lives = [rig.life([first, *rest], id=first) for first in (1, 2)]
    for life in lives:
        rig.check(life, rig.propose([life], [4])[0], 4)
    rig.finish(lives)


def test_a_sequence_that_is_not_known_from_its_last_position_gets_no_draft() -> None:
    rig = Rig()
    life = Life(View([1, 2, 3, 4]), rig.drafter)
    assert not rig.propose([life], [4])[0], "nothing was read yet"
    life.prefill(2)
    assert not rig.propose([life], [4])[0], "position 2 was not"
    life.prefill(2)
    assert rig.propose([life], [4])[0]
    alone = Life(View([7], id=1), rig.drafter)
    assert not rig.propose([alone], [4])[0], "there is no position before the first token"
    stranger = View([1, 2, 3], id=9)
    assert not rig.drafter.propose([stranger], [4])[0]
    rig.drafter.end(stranger)
    rig.finish([life, alone])


class Broken(NumpyStepHead):
    """Fails at a chosen call, before or after it has written."""

    fails_at, late = -1, False
    error: type[BaseException] = RuntimeError

    def forward(self, spans: Any, features: Any) -> Any:
        return self._call(lambda: NumpyStepHead.forward(self, spans, features))

    def fuse(self, taps: Any) -> Any:
        return self._call(lambda: NumpyStepHead.fuse(self, taps))

    def _call(self, work: Callable[[], Any]) -> Any:
        self.fails_at -= 1
        if self.fails_at == 0 and not self.late:
            raise self.error("broken")
        found = work()
        if self.fails_at == 0:
            raise self.error("broken")
        return found


@pytest.mark.parametrize("trees", [None, 0])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_fault_anywhere_leaves_everything_sound(
    trees: int | None, late: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CATCH_UP_ROWS", 6)
    faults = 0
    for at in range(1, 14):
        runner = Broken(HEADS["plain"], EMBED)
        rig = Rig(tree_context=trees, runner=runner)
        lives = [rig.life(text(i, 8 + i), id=i) for i in range(2)]
        runner.fails_at, runner.late, runner.error = at, late, error
        try:
            rig.propose(lives, [4, 4])
        except error:
            faults += 1
        rig.pool.check()
        held = rig.pool.num_blocks - rig.pool.available
        assert held == sum(rig.pool.blocks_for(s.slot.length) for s in rig.drafter._states.values() if s.slot)
        runner.fails_at = -1
        for life in lives:  # each alone, as an engine would ask again
            rig.check(life, rig.propose([life], [4])[0], 4)
            life.verify(some_tree(random.Random(at), 2), [], 3)
        for life, draft in zip(lives, rig.propose(lives, [3, 3]), strict=True):
            rig.check(life, draft, 3)
        rig.finish(lives)
    assert faults >= 6


@pytest.mark.parametrize("blocks", range(1, 14))
def test_a_full_pool_costs_drafts_and_nothing_else(blocks: int) -> None:
    rig = Rig(tree_context=0, blocks=blocks)
    lives = [rig.life(text(i, 9 + 4 * i), id=i) for i in range(3)]
    drafted = 0
    for step in range(4):
        for life, draft in zip(lives, rig.propose(lives, [4, 4, 4]), strict=True):
            if draft:
                drafted += 1
                rig.check(life, draft, 4)
            life.verify(some_tree(random.Random(step), 2), [], step)
    assert drafted or blocks < 12, "there is room for everybody"
    assert not drafted or blocks > 2, "the shortest has 8 rows, and 3 of its draft"
    rig.finish(lives)


def test_the_reference_notices() -> None:
    """A wrong position, a wrong state or a stale row makes another draft: the equality above can fail."""
    rig = Rig(tree_context=0)
    life = rig.life(text(8, 12))
    [draft] = rig.propose([life], [5])
    with pytest.raises(AssertionError):
        rig.check(life, draft, 5, first=1)
    rig.heads = HEADS["normed"]
    with pytest.raises(AssertionError):
        rig.check(life, draft, 5)


def test_features_keep_the_newest() -> None:
    kept = Features(most=6)
    rows = np.arange(40, dtype=np.float32)[:, None]
    kept.add(0, rows[:3])
    kept.add(1, rows[1:5])  # two are known
    np.testing.assert_array_equal(kept.take(0, 5), rows[:5])
    np.testing.assert_array_equal(kept.take(2, 4), rows[2:4])
    kept.add(5, rows[5:9])
    assert (kept.begin, kept.end) == (3, 9)
    np.testing.assert_array_equal(kept.take(3, 9), rows[3:9])
    kept.add(20, rows[20:22])
    assert (kept.begin, kept.end) == (20, 22), "what lies before a gap is of no use"
    kept.add(3, rows[3:9])
    kept.add(22, rows[22:22])
    assert (kept.begin, kept.end) == (20, 22)
    kept.drop(22)
    assert (kept.begin, kept.end) == (22, 22)
