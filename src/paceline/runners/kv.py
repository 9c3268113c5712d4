"""The KV pool: which blocks hold whose tokens. Bookkeeping only; the runner owns the memory.

Full blocks carry a key, the hash of everything up to their end, and are shared by every sequence that starts the same
way; when nobody uses them they wait, least recently used first, to be reused or evicted. A sequence writes only to
blocks that are its own and carry no key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_EVERYTHING = 1 << 62

Move = Callable[[NDArray[np.int64], NDArray[np.int64]], None]


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence's place in the pool."""

    tokens: list[int]
    """The tokens whose keys and values are cached, in order."""
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Keys of the full blocks that may be shared, from the first."""
    shared: int = 0
    """Tokens from the start that other sequences may share: a prompt's. What is decoded is not, for a kernel that
    reads many rows at once would have rounded it differently."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def table(self) -> NDArray[np.int32]:
        return np.array(self.blocks, np.int32)


class Pool:
    """KV blocks of one runner."""

    def __init__(self, blocks: int, block_size: int, move: Move, reuse: bool = True) -> None:
        self.block_size = block_size
        self.num_blocks = blocks
        self._move = move
        self._reuse = reuse
        self._free = list(range(blocks - 1, -1, -1))
        self._users = [0] * blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._slots: dict[int, Slot] = {}

    @property
    def available(self) -> int:
        """Blocks that can be had now, idle ones included."""
        return len(self._free) + len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def open(self, tokens: Sequence[int], shared: int | None = None) -> Slot:
        """Start a sequence that will hold `tokens`; its first blocks are reused where they are cached.

        The last two of the shared tokens are never taken from the cache: the last one's row must run, for the answer,
        and not alone, for that may take another kernel.

        Args:
            shared: see `Slot`; None is all, those that are still to come included.
        """
        slot = Slot([], shared=_EVERYTHING if shared is None else shared)
        self._slots[id(slot)] = slot
        if not self._reuse:
            return slot
        key = b""
        reusable = (min(len(tokens), slot.shared) - 2) // self.block_size * self.block_size
        for start in range(0, reusable, self.block_size):
            part = tokens[start : start + self.block_size]
            key = _key(key, part)
            block = self._block_of.get(key)
            if block is None:
                break
            self._take(block)
            slot.blocks.append(block)
            slot.keys.append(key)
            slot.tokens += part
        return slot

    def room(self, slot: Slot) -> int:
        """Return how many more tokens a slot could be given room for now."""
        return (len(slot.blocks) + self.available) * self.block_size - slot.length

    def reserve(self, slot: Slot, rows: int) -> bool:
        """Give the slot room for `rows` more tokens; False, and nothing changed, when there are not enough blocks."""
        missing = self.blocks_for(slot.length + rows) - len(slot.blocks)
        if missing > self.available:
            return False
        slot.blocks += [self._new() for _ in range(missing)]
        return True

    def commit(self, slot: Slot, tokens: Sequence[int], rows: Sequence[int] | None = None) -> None:
        """Keep tokens that a forward pass has just cached, and drop what it cached beside them.

        Args:
            tokens: the tokens to keep.
            rows: which rows of the pass they are, ascending; None when they are its first.
        """
        start = slot.length
        assert self.blocks_for(start + len(tokens)) <= len(slot.blocks), "commit without reserve"
        if rows is not None and list(rows) != list(range(len(tokens))):
            source = np.array([self._place(slot, start + row) for row in rows], np.int64)
            target = np.array([self._place(slot, start + i) for i in range(len(tokens))], np.int64)
            moved = source != target
            self._move(source[moved], target[moved])
        slot.tokens += tokens
        self._name_full_blocks(slot)
        self._trim(slot)

    def rewind(self, slot: Slot, length: int) -> bool:
        """Forget all but the first `length` tokens; False, and nothing changed, when that takes a copy of a shared
        block and there is no block for it."""
        assert 0 <= length <= slot.length
        full = length // self.block_size
        reopened = length % self.block_size and full < len(slot.keys)
        freed = any(self._users[block] == 1 for block in slot.blocks[full + 1 :])
        if reopened and self._users[slot.blocks[full]] > 1 and not self.available and not freed:
            return False
        del slot.tokens[length:], slot.keys[full:]
        self._trim(slot)
        if reopened:
            self._own(slot, full)
        return True

    def close(self, slot: Slot) -> None:
        """End a sequence; its full blocks stay cached until their room is needed."""
        for block in reversed(slot.blocks):  # the end of a prefix is evicted before its start
            self._release(block)
        slot.blocks, slot.keys, slot.tokens = [], [], []
        del self._slots[id(slot)]

    def check(self) -> None:
        """Assert every invariant; for tests and idle moments."""
        users = [0] * self.num_blocks
        for slot in self._slots.values():
            assert len(slot.blocks) >= self.blocks_for(slot.length)
            assert len(set(slot.blocks)) == len(slot.blocks), "a block twice in one table"
            assert len(slot.keys) == self._nameable(slot)
            key = b""
            for i, found in enumerate(slot.keys):
                key = _key(key, slot.tokens[i * self.block_size : (i + 1) * self.block_size])
                assert key == found, "a key that is not of its tokens"
            for block in slot.blocks:
                users[block] += 1
            for block in slot.blocks[len(slot.keys) :]:
                assert self._users[block] == 1 and block not in self._key_of, "a shared block that is written to"
        assert users == self._users, "reference counts"
        free = set(self._free)
        assert len(free) == len(self._free), "a block free twice"
        assert all(self._users[b] == 0 and b not in self._key_of for b in free)
        assert all(self._users[b] == 0 and b in self._key_of for b in self._idle)
        assert len(free) + len(self._idle) + sum(n > 0 for n in users) == self.num_blocks, "a block is lost"
        assert {self._block_of[key]: key for key in self._block_of} == self._key_of

    def _place(self, slot: Slot, index: int) -> int:
        return slot.blocks[index // self.block_size] * self.block_size + index % self.block_size

    def _name_full_blocks(self, slot: Slot) -> None:
        for i in range(len(slot.keys), self._nameable(slot)):
            part = slot.tokens[i * self.block_size : (i + 1) * self.block_size]
            key = _key(slot.keys[-1] if slot.keys else b"", part)
            slot.keys.append(key)
            twin = self._block_of.get(key)
            if twin is None:
                self._key_of[slot.blocks[i]] = key
                self._block_of[key] = slot.blocks[i]
            else:  # another sequence cached the same text meanwhile: share its block
                self._release(slot.blocks[i])
                self._take(twin)
                slot.blocks[i] = twin

    def _nameable(self, slot: Slot) -> int:
        return min(slot.length, slot.shared) // self.block_size if self._reuse else 0

    def _own(self, slot: Slot, index: int) -> None:
        """Make a block that carries a key writable again: nameless when only this slot uses it, else copied."""
        block = slot.blocks[index]
        if self._users[block] == 1:
            del self._block_of[self._key_of.pop(block)]
            return
        fresh = self._new()
        offsets = np.arange(self.block_size, dtype=np.int64)
        self._move(block * self.block_size + offsets, fresh * self.block_size + offsets)
        self._release(block)
        slot.blocks[index] = fresh

    def _trim(self, slot: Slot) -> None:
        """Give back blocks beyond the last cached token."""
        keep = self.blocks_for(slot.length)
        for block in slot.blocks[keep:]:
            self._release(block)
        del slot.blocks[keep:]

    def _take(self, block: int) -> None:
        self._idle.pop(block, None)
        self._users[block] += 1

    def _new(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._users[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block]:
            return
        if block in self._key_of:
            self._idle[block] = None
        else:
            self._free.append(block)


def _key(before: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(before + np.array(tokens, np.int64).tobytes(), digest_size=16).digest()
