"""What a drafter has cached of a text, where the pool is small and texts share blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.drafters.reading import Reader, Taken, ahead, common
from paceline.models.toy import ToyLaw
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner

LAW = ToyLaw(vocab_size=18, order=None, seed=4)


def made(blocks: int) -> tuple[Reader, Pool]:
    runner = ToyRunner(LAW, 200, 4)
    runner.allocate(blocks)
    pool = Pool(blocks, 4, runner.move)
    return Reader(runner, pool), pool


def read(reader: Reader, seq_id: int, tokens: Sequence[int]) -> bool:
    """Whether there was room; what is answered is then right."""
    reading = reader.settle(seq_id, tokens)
    assert reading is not None
    answers = reader.catch_up([reading])
    assert not answers or answers[0].tolist() == LAW.logits(tokens).tolist()
    return bool(answers)


def draft(reader: Reader, seq_id: int, tokens: Sequence[int], drafted: Sequence[int]) -> None:
    """Read a text, then a chain after it, a pass a token."""
    reading = reader.settle(seq_id, tokens)
    assert reading is not None
    reader.catch_up([reading])
    for token in drafted:
        reader.keep(reading, range(len(reading.ahead)))
        assert reader.go_on(reading, [token], [-1])
        reader.run([ahead(reading, [0])])
    reader.keep(reading, [0])


def test_where_a_shared_block_cannot_be_copied_the_text_is_read_anew() -> None:
    """Two texts share the block that one of them has to leave halfway, and no block is free to copy it to."""
    reader, pool = made(4)
    text = [1, 2, 3, 4, 5]
    draft(reader, 1, text, [6, 7, 8])
    draft(reader, 2, text, [6, 7, 8])
    assert pool.available == 2, "both blocks are shared"
    assert read(reader, 3, [9] * 8)
    assert pool.available == 0
    assert not read(reader, 2, [*text, 9]), "there is no room for what it would be"
    pool.check()
    reader.end(1)
    assert read(reader, 2, [*text, 9])
    pool.check()
    for seq_id in (2, 3):
        reader.end(seq_id)
    assert pool.available == 4


def test_a_pass_that_has_no_room_is_not_run() -> None:
    reader, pool = made(2)
    reading = reader.settle(1, [1, 2, 3, 4, 5, 6, 7])
    assert reading is not None
    reader.catch_up([reading])
    assert not reader.go_on(reading, [1, 2], [-1, -1])
    assert reading.ahead == []
    assert reader.go_on(reading, [1], [-1])
    pool.check()
    assert reader.run([]) == []


@pytest.mark.parametrize("count", [1, 30, 31, 32, 33, 90])
def test_a_text_is_known_again_by_its_end(count: int) -> None:
    taken, tokens = Taken(), list(range(count))
    assert taken.more(tokens) == 0
    assert taken.more(tokens) == count
    tokens.append(5)
    assert taken.more(tokens) == count
    tokens[-1:] = [6, 7]
    assert taken.more(tokens) == 0
    del tokens[-1]
    assert taken.more(tokens) == 0
    assert taken.more([*tokens, 1]) == count + 1


def test_common_prefixes() -> None:
    assert [common([], [1]), common([1, 2], [1, 3]), common([1, 2], [1, 2, 3]), common([4], [5])] == [0, 1, 2, 0]
