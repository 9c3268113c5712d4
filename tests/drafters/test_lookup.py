"""Lookup against a search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.tree import Draft
from paceline.core.types import Verdict
from paceline.drafters.base import Seen
from paceline.drafters.lookup import LONGEST, SHORTEST, Lookup, confidence
from tests.core.strategies import examples

from .views import View


def search(tokens: list[int], limit: int, longest: int, shortest: int) -> list[int]:
    """Look for the longest end of the text that stood before, the last time it did."""
    for n in range(min(longest, len(tokens)), shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + limit]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.lists(st.integers(1, 6), max_size=30),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 6),
)
@examples(150)
def test_it_follows_the_longest_and_most_recent_match(
    tokens: list[int], grows: list[int], limit: int, shortest: int, more: int
) -> None:
    """At whatever pace the text grows."""
    drafter, seq = Lookup(shortest + more, shortest), View(tokens[:1])
    drafter.begin(seq)
    for n in [0, *grows, len(tokens)]:
        seq.tokens = tokens[: min(len(tokens), len(seq.tokens) + n)]
        [draft] = drafter.propose([seq], [limit])
        assert list(draft.tokens) == search(seq.tokens, limit, shortest + more, shortest)
        assert draft.is_chain
    drafter.end(seq)


def test_confidence_grows_with_the_match() -> None:
    drafter = Lookup()
    found = {}
    for n in range(SHORTEST, LONGEST + 3):
        seq = View([*range(50, 50 + n), 1, 2, 3, 99, *range(50, 50 + n)], id=n)
        drafter.begin(seq)
        [draft] = drafter.propose([seq], [3])
        assert draft.tokens == (1, 2, 3)
        assert len(set(draft.confidence)) == 1
        assert set(draft.source) == {"lookup"}
        found[n] = draft.confidence[0]
    assert found[2] < found[3] < found[8] == found[9] == found[10] == confidence(8) < 1
    assert 0 < confidence(1) < confidence(2)


def test_sequences_do_not_see_each_other() -> None:
    drafter = Lookup()
    one, two = View([1, 2, 3, 1, 2], id=1), View([9, 1, 2], id=2)
    drafter.begin(one)
    drafter.begin(two)
    first, second = drafter.propose([one, two], [4, 4])
    assert (first.tokens, second.tokens) == ((3, 1, 2), ())
    drafter.observe(one, Seen(4, [2, 3], Draft.chain([3], "lookup"), Verdict((0,), 1), [], {}))
    drafter.end(one)
    drafter.begin(one)
    assert [len(d) for d in drafter.propose([two, one], [0, 1])] == [0, 1]
