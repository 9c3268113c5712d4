"""Passes that keep their number of rows: asked of the runner, reported, and without any effect on the text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from paceline.governor.account import MOST, SLACK
from paceline.governor.adaptive import Adaptive
from paceline.governor.costs import Costs

from .rig import CHAOS, RHYME, Oracle, Rig, ask, make
from .test_equality import same


def costly_changes() -> Costs:
    costs = Costs(least_rows=2)
    for rows in (1, 2, 4, 8, 16, 32):
        costs.learn(rows, 0.010 + 0.0005 * rows)
    costs.switch_s = 0.005
    return costs


class Machine:
    """A clock that only passes of the target move, by what `costly_changes` says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passes: list[tuple[int, int]] = []
        """Rows that each pass needed, and was asked to have."""
        self._ran = 0

    def drive(self, rig: Rig) -> None:
        forward = rig.runner.forward

        def timed(spans: Any, want: Any) -> Any:
            needed = sum(len(span.tokens) for span in spans)
            self.passes.append((needed, want.rows))
            ran = max(needed, want.rows, 2)
            self.now += 0.010 + 0.0005 * ran + 0.005 * (ran != self._ran)
            self._ran = ran
            return forward(spans, want)

        rig.runner.forward = timed  # type: ignore[method-assign]


def driven(drafters: Any, law: Any = CHAOS, **options: Any) -> tuple[Rig, Machine]:
    machine = Machine()
    rig = make(drafters, law, clock=lambda: machine.now, **options)
    rig.engine.governor.costs = costly_changes()
    machine.drive(rig)
    return rig, machine


def test_passes_of_drafts_are_filled_up() -> None:
    rig, machine = driven({"oracle": Oracle(CHAOS, miss=0.4)}, length=5)
    same(rig, [ask([1, 2, 3], seed=s, ignore_eos=True) for s in (1, 2)])
    decoding = [(needed, asked) for needed, asked in machine.passes if asked]
    assert decoding
    assert all(asked >= needed for needed, asked in decoding)
    assert any(asked > needed > 2 for needed, asked in decoding)
    assert machine.passes[0][1] == 0, "a pass with a prompt is as large as it is"


def test_plain_decoding_has_the_rows_that_it_needs() -> None:
    rig, machine = driven({}, length=5)
    same(rig, [ask([1, 2, 3], ignore_eos=True)])
    assert {asked for _, asked in machine.passes[1:]} == {2}


def test_what_a_change_costs_is_in_the_account() -> None:
    """Guesses that are always wrong: what they lose, changes and filled-up plain steps included, is bounded."""
    rig, machine = driven({"oracle": Oracle(RHYME, miss=1.0)}, RHYME)
    governor = rig.engine.governor = Adaptive(8, costly_changes(), ("oracle",))
    same(rig, [ask([1, 2, 3], seed=s, ignore_eos=True, max_tokens=80) for s in range(3)])
    steps = [(needed, asked) for needed, asked in machine.passes if asked]
    plain = 0.010 + 0.0005 * 3
    lost = sum(0.010 + 0.0005 * asked for _, asked in steps) / plain - len(steps)
    lost += sum(0.005 for (_, a), (_, b) in pairwise(steps) if a != b) / plain
    assert lost < SLACK + MOST
    assert governor.account.balance < SLACK
