"""Alarms as an engine's own texts set them off."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.governor.account import Account
from paceline.governor.alarms import Alarms
from paceline.governor.base import Share, StepReport
from paceline.governor.fixed import Fixed

from .rig import CHAOS, RHYME, Rig, ask, crew, make
from .test_equality import prompts


class Watched(Fixed):
    """A fixed length, and alarms."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.alarms, self._account = Alarms(), Account()

    def observe(self, step: StepReport) -> list[Share]:
        found = super().observe(step)
        self.alarms.observe(step, self.costs, self._account)
        return found


def watched(drafters: str, law: Any = CHAOS) -> Rig:
    rig = make(crew(law)[drafters](), law, length=4, context=400, blocks=400)
    rig.engine.governor = Watched(4)
    return rig


def test_a_drafter_that_is_always_wrong() -> None:
    rig = watched("wrong")
    rig.run([ask([1, 2], ignore_eos=True, max_tokens=60)])
    [alarm] = rig.engine.alarms.values()
    assert alarm.name == "acceptance_collapse"
    assert alarm.text.startswith("oracle: 0 of ") or alarm.text.startswith("oracle: 1 of ")
    assert "since it began" in alarm.text


@pytest.mark.parametrize("drafters", ["none", "lookup", "model", "right", "often right", "tree", "lookup, tree"])
def test_what_works_sets_none_off(drafters: str) -> None:
    rig = watched(drafters)
    for seed in range(3):
        rig.run(ask(p, temperature=1.0, seed=seed, ignore_eos=True, max_tokens=60) for p in prompts(4, seed))
    assert not rig.engine.alarms
    assert isinstance(rig.engine.governor, Watched) and not rig.engine.governor.alarms.raised


def test_a_text_that_runs_in_circles() -> None:
    """Greedy decoding of a law that sees two tokens comes back to where it was."""
    rig = watched("eager lookup", RHYME)
    [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=300)])
    alarm = rig.engine.alarms["repetition"]
    said, period = done.token_ids, int(alarm.text.split("its last ")[1].split()[0])
    assert said[-100:] == said[-100 - period : -period]
    for seed in range(3):
        rig.run([ask([1, 2], temperature=1.5, seed=seed, ignore_eos=True, max_tokens=100)])
    assert not rig.engine.alarms, "the next answers are none"


def test_a_governor_that_watches_nothing_has_no_alarms() -> None:
    assert make({}).engine.alarms == {}
