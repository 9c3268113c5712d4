"""The line in front of the engine, held against what fairness means."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paceline.server.admission import Line


def filled(most: int = 1000, **waiting: list[float]) -> Line[str]:
    line: Line[str] = Line(most)
    for key, costs in waiting.items():
        for i, cost in enumerate(costs):
            line.put(key, cost, f"{key}{i}")
    return line


def drained(line: Line[str]) -> list[str]:
    return list(iter(line.take, None))


def test_one_key_is_served_in_order():
    assert drained(filled(a=[5, 1, 9])) == ["a0", "a1", "a2"]


def test_keys_take_turns_by_what_they_ask_for():
    assert drained(filled(a=[1] * 4, b=[1] * 4)) == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert drained(filled(a=[3] * 3, b=[1] * 5)) == ["a0", "b0", "b1", "b2", "a1", "b3", "b4", "a2"]


def test_a_newcomer_does_not_wait_for_the_crowd():
    line = filled(crowd=[1] * 50)
    for _ in range(10):
        line.take()
    line.put("new", 1, "new0")
    assert line.take() == "new0"


def test_staying_away_saves_no_claim():
    line = filled(a=[1] * 10, b=[1])
    for _ in range(9):
        line.take()
    for i in range(5):
        line.put("b", 1, f"late{i}")
    turns = drained(line)[:4]
    assert sum(item.startswith("late") for item in turns) == 2, "half of the turns, and not all that it missed"


def test_bound_and_removal():
    line = filled(3, a=[1, 1], b=[1])
    assert line.is_full
    [*items] = line
    assert line.remove(items[1]) and not line.remove(items[1])
    assert not line.is_full and len(line) == 2
    assert drained(line) == ["a0", "b0"]
    assert line.take() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
def test_while_all_wait_none_falls_behind_by_more_than_one_item(asked):
    """The bound of start-time fair queueing: shares of keys that always wait differ by at most an item of each."""
    line: Line[tuple[str, int]] = Line(1000)
    for key, cost in asked:
        line.put(key, cost, (key, cost))
    left, got = Counter(key for key, _ in asked), Counter(dict.fromkeys(left_keys(asked), 0))
    while all(left.values()):
        key, cost = line.take()
        left[key], got[key] = left[key] - 1, got[key] + cost
        if all(left.values()):
            assert max(got.values()) - min(got.values()) <= 2 * 50


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=60))
def test_all_come_out_once_each_key_in_order(asked):
    line: Line[tuple[str, int]] = Line(1000)
    for i, (key, cost) in enumerate(asked):
        line.put(key, cost, (key, i))
    out = list(iter(line.take, None))
    assert sorted(i for _, i in out) == list(range(len(asked)))
    for key in "abc":
        mine = [i for k, i in out if k == key]
        assert mine == sorted(mine)


def left_keys(asked: list[tuple[str, int]]) -> set[str]:
    return {key for key, _ in asked}
