"""Which tokens a cut head can name, against a list that is made one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.trim import frequent
from paceline.models import toy
from tests.core.strategies import examples

TOKENIZER = toy.tokenizer()
TOTAL = 259
SPECIAL = (256, 257, 258)


def reference(size: int, always: list[int], counts: list[int]) -> list[int]:
    chosen = [*SPECIAL, *always]
    said = [token for token in range(min(TOTAL, len(counts))) if counts[token]]
    for token in [*sorted(said, key=lambda token: (-counts[token], token)), *range(TOTAL)]:
        if token not in chosen and len(set(chosen)) < size:
            chosen.append(token)
    return sorted(set(chosen))


@examples(200)
@given(
    st.integers(0, TOTAL - 1),
    st.lists(st.integers(0, TOTAL - 1), max_size=8),
    st.lists(st.sampled_from([0, 0, 1, 2, 900]), max_size=300),
)
def test_forced_tokens_then_what_was_said_then_the_lowest_ids(size: int, always: list[int], counts: list[int]) -> None:
    found = frequent(TOKENIZER, size, always, np.array(counts, np.int64))
    assert found is not None and found.dtype == np.int64
    assert found.tolist() == reference(size, always, counts)
    assert len(found) == max(size, len({*SPECIAL, *always}))


def test_without_counts_lower_ids_are_more_frequent() -> None:
    found = frequent(TOKENIZER, 100, always=(180, 3))
    assert found is not None
    assert found.tolist() == [*range(96), 180, *SPECIAL]


def test_counts_of_a_larger_table_and_ends_that_have_no_token() -> None:
    counts = np.zeros(400, np.int64)
    counts[[200, 300, 399]] = 5
    found = frequent(TOKENIZER, 10, always=(350,), counts=counts)
    assert found is not None
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 200, *SPECIAL]


@pytest.mark.parametrize("size", [TOTAL, TOTAL + 1, 1000])
def test_what_is_no_larger_is_not_cut(size: int) -> None:
    assert frequent(TOKENIZER, size, counts=np.ones(TOTAL, np.int64)) is None
