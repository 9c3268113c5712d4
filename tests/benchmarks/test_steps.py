"""Whose time it is, and what a step would gain, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.scripts import script

pair, stopwatch = script("pair"), script("stopwatch")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Thing:
    """Waits by turning its clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self) -> str:
        self.clock.now += 1
        self.inner(2)
        self.inner(3)
        self.clock.now += 4
        return "done"

    def inner(self, seconds: float) -> None:
        self.clock.now += seconds

    def fails(self) -> None:
        self.clock.now += 7
        raise ValueError("no")


def test_a_part_has_its_own_time_alone() -> None:
    clock = Clock()
    watch, thing = stopwatch.Stopwatch(clock), Thing(clock)
    watch.watch(thing, "outer", "whole")
    watch.watch(thing, "inner", "part")
    clock.now += 100  # before and between calls nobody's
    assert thing.outer() == "done"
    clock.now += 100
    assert watch.seconds == {"whole": 5, "part": 5}
    assert watch.calls == {"whole": 1, "part": 2}
    watch.reset()
    assert not watch.seconds and not watch.calls


def test_what_raises_is_timed_too() -> None:
    clock = Clock()
    watch, thing = stopwatch.Stopwatch(clock), Thing(clock)
    watch.watch(thing, "fails", "bad")
    watch.watch(thing, "inner", "part")
    with pytest.raises(ValueError, match="no"):
        thing.fails()
    thing.inner(1)
    assert watch.seconds == {"bad": 7, "part": 1}


def test_what_a_cell_is_bound_by() -> None:
    cell: dict[str, Any] = {
        "draft_ms_a_step": 30,
        "verify_ms_a_step": 60,
        "other_ms_a_step": 10,
        "acceptance_length": 3,
    }
    assert pair.bounds(cell) == {
        "target pass halved": pytest.approx(100 / 70),
        "draft halved": pytest.approx(100 / 85),
        "accepted doubled": pytest.approx(5 / 3),
    }
