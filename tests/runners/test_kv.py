"""The KV pool, as bookkeeping and as what stands in the memory that it deals out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.runners.kv import Pool, Slot
from tests.core.strategies import examples

NOTHING = -1


class Memory:
    """Where a runner would keep keys and values: here the tokens themselves."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.size = block_size
        self.cells = np.full(blocks * block_size, NOTHING, np.int64)
        self.moves = 0

    def move(self, source: Any, target: Any) -> None:
        self.moves += 1
        self.cells[target] = self.cells[source]

    def places(self, slot: Slot, begin: int, end: int) -> Any:
        at = np.arange(begin, end)
        return slot.table[at // self.size].astype(np.int64) * self.size + at % self.size

    def read(self, slot: Slot) -> list[int]:
        return [int(token) for token in self.cells[self.places(slot, 0, slot.length)]]

    def write(self, slot: Slot, tokens: list[int]) -> None:
        self.cells[self.places(slot, slot.length, slot.length + len(tokens))] = tokens


def made(blocks: int, block_size: int = 4, reuse: bool = True) -> tuple[Pool, Memory]:
    memory = Memory(blocks, block_size)
    return Pool(blocks, block_size, memory.move, reuse), memory


def add(pool: Pool, memory: Memory, slot: Slot, tokens: list[int]) -> None:
    assert pool.reserve(slot, len(tokens))
    memory.write(slot, tokens)
    pool.commit(slot, tokens)


class Sharing(RuleBasedStateMachine):
    """Sequences over few tokens, so that they share beginnings; each beside the plain list of what it should hold."""

    @initialize(
        blocks=st.integers(1, 9), block_size=st.integers(1, 4), reuse=st.sampled_from([True, True, True, False])
    )
    def begin(self, blocks: int, block_size: int, reuse: bool) -> None:
        self.pool, self.memory = made(blocks, block_size, reuse)
        self.slots: list[Slot] = []
        self.texts: list[list[int]] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), shared=st.none() | st.integers(0, 12))
    def open(self, tokens: list[int], shared: int | None) -> None:
        slot = self.pool.open(tokens, shared)
        assert slot.tokens == tokens[: slot.length]
        assert slot.length <= max(0, min(len(tokens), len(tokens) if shared is None else shared) - 2)
        self.slots.append(slot)
        self.texts.append(list(slot.tokens))

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), rows=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def run_a_pass(self, data: st.DataObject, rows: list[int]) -> None:
        """Rows are written; a path of them is kept, or none, or as many as were asked for from the first."""
        i = data.draw(st.integers(0, len(self.slots) - 1))
        slot, before = self.slots[i], list(self.slots[i].blocks)
        available = self.pool.available
        if not self.pool.reserve(slot, len(rows)):
            assert slot.blocks == before
            assert self.pool.available == available
            assert self.pool.blocks_for(slot.length + len(rows)) - len(before) > available
            return
        self.memory.write(slot, rows)
        path = data.draw(st.none() | st.sets(st.integers(0, len(rows) - 1)).map(sorted))
        kept = rows[: data.draw(st.integers(0, len(rows)))] if path is None else [rows[row] for row in path]
        self.pool.commit(slot, kept, path)
        self.texts[i] += kept

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def reserve_and_wait(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        self.pool.reserve(slot, data.draw(st.integers(0, 6)))

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.slots) - 1))
        length = data.draw(st.integers(0, len(self.texts[i])))
        if self.pool.rewind(self.slots[i], length):
            del self.texts[i][length:]
        else:
            assert self.pool.available == 0

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.slots) - 1))
        self.pool.close(self.slots.pop(i))
        del self.texts[i]

    @invariant()
    def books_and_memory_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        for slot, text in zip(self.slots, self.texts, strict=True):
            assert slot.tokens == text
            assert self.memory.read(slot) == text

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for slot in self.slots:
                self.pool.close(slot)
            self.pool.check()
            assert self.pool.available == self.pool.num_blocks


TestSharing = Sharing.TestCase
TestSharing.settings = examples(60)


@pytest.mark.long
@pytest.mark.timeout(1200)
class TestSharingAtLength(Sharing.TestCase):
    settings = examples(2000)


def test_a_prefix_is_shared_while_both_run_and_after_one_has_ended() -> None:
    pool, memory = made(8)
    first = pool.open([1] * 12)
    add(pool, memory, first, [1] * 12)
    second = pool.open([1] * 12)
    assert second.blocks == first.blocks[:2], "the last block is read again, for its answer"
    add(pool, memory, second, [1] * 4)
    assert second.blocks == first.blocks, "two of the same content become one"
    assert pool.available == 5
    pool.close(first)
    pool.check()
    assert pool.available == 5
    pool.close(second)
    assert pool.available == 8
    assert pool.open([1] * 12).length == 8


@pytest.mark.parametrize(("length", "reused"), [(1, 0), (5, 0), (6, 4), (9, 4), (10, 8), (13, 8), (14, 12), (30, 12)])
def test_two_tokens_are_always_left_to_run(length: int, reused: int) -> None:
    pool, memory = made(12)
    add(pool, memory, pool.open([7] * 12), [7] * 12)
    assert pool.open([7] * length).length == reused


def test_what_lies_beyond_the_shared_tokens_is_not_found_by_others() -> None:
    pool, memory = made(12)
    slot = pool.open([1] * 6, shared=6)
    add(pool, memory, slot, [1] * 16)
    assert len(slot.keys) == 1
    assert pool.open([1] * 16).length == 4
    assert pool.open([1] * 16, shared=5).length == 0
    pool.check()


def test_the_longest_unused_prefix_goes_first_and_its_end_before_its_start() -> None:
    pool, memory = made(6, block_size=2)
    for token in (1, 2):
        slot = pool.open([token] * 4)
        add(pool, memory, slot, [token] * 4)
        pool.close(slot)
    pool.close(pool.open([1] * 6))
    slot = pool.open([3] * 6)
    add(pool, memory, slot, [3] * 6)
    assert pool.open([2] * 6).length == 2, "its end is gone"
    assert pool.open([1] * 6).length == 4


def test_without_reuse_nothing_is_kept() -> None:
    pool, memory = made(4, reuse=False)
    slot = pool.open([1] * 8)
    add(pool, memory, slot, [1] * 8)
    assert not slot.keys
    pool.close(slot)
    assert pool.open([1] * 8).length == 0
    pool.check()


def test_rewinding_into_a_shared_block_copies_it() -> None:
    pool, memory = made(4)
    first, second = pool.open([1] * 4), pool.open([1] * 4)
    add(pool, memory, first, [1] * 4)
    add(pool, memory, second, [1] * 4)
    assert first.blocks == second.blocks
    assert pool.rewind(second, 2)
    add(pool, memory, second, [9, 9])
    assert memory.read(first) == [1] * 4
    assert memory.read(second) == [1, 1, 9, 9]
    assert memory.moves == 1
    pool.check()


def test_rewinding_a_block_of_its_own_takes_its_name_away() -> None:
    pool, memory = made(4)
    slot = pool.open([1] * 8)
    add(pool, memory, slot, [1] * 8)
    assert pool.rewind(slot, 6)
    add(pool, memory, slot, [2, 2])
    assert memory.moves == 0
    assert pool.open([1] * 8).length == 4
    pool.check()


def test_rewinding_without_a_block_for_the_copy_changes_nothing() -> None:
    pool, memory = made(2)
    first = pool.open([1] * 4)
    add(pool, memory, first, [1] * 4)
    second = pool.open([1] * 6)
    assert pool.reserve(first, 4)
    assert not pool.rewind(second, 2)
    assert second.tokens == [1] * 4
    pool.check()
    assert pool.rewind(second, 0)
    assert memory.read(first) == [1] * 4
    pool.check()


def test_a_path_is_moved_together_across_a_block_border() -> None:
    pool, memory = made(4)
    slot = pool.open([0])
    add(pool, memory, slot, [0, 1, 2])
    assert pool.reserve(slot, 7)
    memory.write(slot, [10, 11, 12, 13, 14, 15, 16])
    pool.commit(slot, [10, 12, 15, 16], [0, 2, 5, 6])
    assert memory.read(slot) == [0, 1, 2, 10, 12, 15, 16]
    assert memory.moves == 1
    assert len(slot.blocks) == 2
    pool.check()


def test_first_rows_are_not_moved() -> None:
    pool, memory = made(4)
    slot = pool.open([0])
    assert pool.reserve(slot, 5)
    memory.write(slot, [5, 6, 7, 8, 9])
    pool.commit(slot, [5, 6, 7], [0, 1, 2])
    assert memory.moves == 0


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda pool, slot: pool._free.append(slot.blocks[0]), id="free though in use"),
        pytest.param(lambda pool, slot: pool._free.append(pool._free[-1]), id="free twice"),
        pytest.param(lambda pool, slot: pool._free.pop(), id="lost"),
        pytest.param(lambda pool, slot: slot.blocks.append(slot.blocks[0]), id="twice in a table"),
        pytest.param(lambda pool, slot: slot.blocks.pop(), id="missing"),
        pytest.param(lambda pool, slot: slot.tokens.__setitem__(0, 9), id="other tokens"),
        pytest.param(lambda pool, slot: slot.keys.pop(), id="unnamed"),
        pytest.param(lambda pool, slot: pool._users.__setitem__(slot.blocks[-1], 2), id="miscounted"),
        pytest.param(lambda pool, slot: pool._block_of.clear(), id="names that lead nowhere"),
    ],
)
def test_check_finds_what_is_wrong(spoil: Any) -> None:
    pool, memory = made(8)
    slot = pool.open([1] * 6)
    add(pool, memory, slot, [1] * 6)
    pool.check()
    spoil(pool, slot)
    with pytest.raises(AssertionError):
        pool.check()


def test_a_commit_needs_room() -> None:
    pool, _ = made(2)
    with pytest.raises(AssertionError, match="without reserve"):
        pool.commit(pool.open([1]), [1])
