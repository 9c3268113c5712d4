"""Who runs in the next step: continuous batching, chunked prefill, pre-emption when blocks run out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from paceline.engine.sequence import LiveSequence
from paceline.runners.kv import Pool

LEAST_CHUNK = 4
"""Fewest prompt rows that a prompt is cut into."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a sequence's tokens that are not cached yet."""

    seq: LiveSequence
    rows: int

    @property
    def is_output(self) -> bool:
        """Whether it was generated, before a pre-emption."""
        return self.seq.cache_len >= self.seq.prompt_len

    @property
    def finishes(self) -> bool:
        """Whether the sequence decodes after it: its last row decides, with an empty draft."""
        return self.rows == self.seq.missing


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's work; every sequence has room for its rows, a decoding one for the pending token."""

    decoding: list[LiveSequence]
    prefill: list[Chunk]

    def __bool__(self) -> bool:
        return bool(self.decoding or self.prefill)


class Scheduler:
    """First come, first served. The last to come is the first to be pre-empted: it loses its blocks and waits in front.

    Args:
        sequences: most that run at a time.
        share_output: whether generated tokens, too, may serve others from the cache.
        prefill_rows: most prompt rows of a step, so that a long prompt does not stall those that decode.
    """

    def __init__(self, pool: Pool, sequences: int, prefill_rows: int, share_output: bool = False) -> None:
        self._pool, self._most, self._prefill_rows = pool, sequences, prefill_rows
        self._share_output = share_output
        self.waiting: deque[LiveSequence] = deque()
        self.running: list[LiveSequence] = []
        self.preemptions = 0

    def add(self, seq: LiveSequence) -> None:
        self.waiting.append(seq)

    def remove(self, seq: LiveSequence) -> None:
        """Take a sequence out, whether it waits or runs, and give its blocks back."""
        if seq in self.waiting:
            self.waiting.remove(seq)
            return
        self.running.remove(seq)
        self._evict(seq)

    def next(self) -> Plan:
        plan = Plan([], [])
        budget = self._prefill_rows
        preempted = self.preemptions
        for seq in list(self.running):
            if seq not in self.running:  # pre-empted by one before it
                continue
            rows = self._rows(seq, budget)
            if not rows or not self._make_room(seq, rows):
                continue
            budget -= self._plan(plan, seq, rows)
        while (
            self.waiting and budget >= LEAST_CHUNK and len(self.running) < self._most and self.preemptions == preempted
        ):
            seq = self.waiting[0]
            if not self._admit(seq):
                break
            rows = self._rows(seq, budget)
            if not rows:
                break
            reserved = self._make_room(seq, rows)
            assert reserved, "admission has checked"
            budget -= self._plan(plan, seq, rows)
        return plan

    def _rows(self, seq: LiveSequence, budget: int) -> int:
        """Return how many rows of a sequence to run: one that decodes, or a part of a prompt within the budget.

        A prompt's rows never run one alone, for that may take another kernel; and what was generated before a
        pre-emption does not run in one chunk with the prompt, for it is to run as it did before.
        """
        if seq.missing == 1:
            return 1
        left = seq.prompt_len - seq.cache_len
        if left <= 0:
            return min(seq.missing, budget)
        if left <= budget:
            return left
        return budget - (left == budget + 1) if budget >= LEAST_CHUNK else 0

    def _plan(self, plan: Plan, seq: LiveSequence, rows: int) -> int:
        """Return how much of the prefill budget is used."""
        if rows == seq.missing == 1 and seq.num_tokens > seq.prompt_len:
            plan.decoding.append(seq)
            return 0
        plan.prefill.append(Chunk(seq, rows))
        return rows

    def _admit(self, seq: LiveSequence) -> bool:
        """Start the first in line if all it has to read, and one token more for all that run, fits."""
        slot = self._pool.open(seq.tokens, None if self._share_output else seq.prompt_len)
        needed = self._pool.blocks_for(seq.num_tokens) - len(slot.blocks)
        spare = self._pool.available - needed
        if spare < len(self.running) and self.running:
            self._pool.close(slot)
            return False
        seq.slot = slot
        self.running.append(self.waiting.popleft())
        return True

    def _make_room(self, seq: LiveSequence, rows: int) -> bool:
        """Reserve rows, pre-empting later sequences if need be; False when it had to give way itself."""
        assert seq.slot is not None
        while not self._pool.reserve(seq.slot, rows):
            last = self.running.pop()
            self._evict(last)
            self.waiting.appendleft(last)
            self.preemptions += 1
            if last is seq:
                return False
        return True

    def _evict(self, seq: LiveSequence) -> None:
        if seq.slot is not None:
            self._pool.close(seq.slot)
            seq.slot = None
