"""The account of all requests is the sum of theirs, and a request's is the sum of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.core.types import RULES, SpeculationParams, SpeculationReport, StepTrace
from paceline.drafters.lookup import Lookup
from paceline.governor.base import Share, StepReport
from paceline.governor.fixed import Fixed
from tests.core.strategies import examples

from .rig import CHAOS, RHYME, VOCAB, Oracle, Rig, Script, ask, crew, make
from .test_equality import prompts

COUNTS = ("steps", "plain_steps", "drafted", "verified", "accepted")
TIMES = ("draft_ms", "verify_ms", "other_ms", "wasted_ms", "saved_ms")
BY_DRAFTER = ("drafted", "verified", "accepted", "shared")


def counted(reports: Iterable[SpeculationReport]) -> tuple[Counter[Any], Counter[Any]]:
    """Return everything that is counted, and every time, under names of their own."""
    counts, times = Counter[Any](), Counter[Any]()
    for report in reports:
        counts.update({name: getattr(report, name) for name in COUNTS})
        counts.update({("depth", depth): n for depth, n in enumerate(report.accepted_at)})
        counts.update({("reason", str(code)): n for code, n in report.reasons.items()})
        times.update({name: getattr(report, name) for name in TIMES})
        for name, drafter in report.by_drafter.items():
            counts.update({(name, kind): getattr(drafter, kind) for kind in BY_DRAFTER})
            times.update({name: drafter.draft_ms})
    return counts, times


def check(rig: Rig) -> None:
    live = [seq.tally.report(seq.request.speculation) for seq in rig.engine._live.values()]
    counts, times = counted([*(done.speculation for done in rig.done.values()), *live])
    total = rig.engine.report()
    found, took = counted([total])
    assert +found == +counts
    assert dict(took) == pytest.approx(dict(times) | dict.fromkeys(took.keys() - times.keys(), 0.0))
    assert total.trace == ()


class Life(RuleBasedStateMachine):
    @initialize(drafters=st.sampled_from(sorted(crew())), length=st.integers(1, 9), blocks=st.integers(16, 40))
    def begin(self, drafters: str, length: int, blocks: int) -> None:
        self.rig = make(crew(RHYME)[drafters](), RHYME, length=length, blocks=blocks, context=60)

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
        most=st.integers(1, 20),
        mode=st.sampled_from(["auto", "auto", "off", "always"]),
        stops=st.sets(st.integers(0, VOCAB - 1), max_size=3),
    )
    def add(self, prompt: list[int], most: int, mode: Any, stops: set[int]) -> None:
        self.rig.add(ask(prompt, SpeculationParams(mode), max_tokens=most, stop_token_ids=tuple(stops)))

    @precondition(lambda self: self.rig.engine._live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.engine.abort(data.draw(st.sampled_from(sorted(self.rig.engine._live))))
        self.rig.step()

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()

    @invariant()
    def totals_are_sums(self) -> None:
        if hasattr(self, "rig"):
            check(self.rig)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.drain()
            check(self.rig)


TestLife = Life.TestCase
TestLife.settings = examples(40)


def test_what_failed_and_what_nobody_asked_for_counts_as_well() -> None:
    rig = make(crew()["often right"](), length=4)
    for i in range(3):
        rig.engine.add(ask([i, 2], ignore_eos=True))
    while len(rig.engine._live) == 3 and rig.engine._live[0].tally.steps < 4:
        rig.engine.step()
    before = rig.engine.report()
    assert before.accepted > 0
    rig.engine.abort(0)
    rig.engine.forget([0])
    assert rig.engine.report() == before, "ended, and not a count is lost"
    rig.runner.forward = lambda *given: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        rig.engine.step()
    assert rig.engine.report().accepted == before.accepted
    assert not rig.engine._live


def test_the_account_of_all_names_the_loosest_rule() -> None:
    rig = make(crew()["right"]())
    assert (rig.engine.report().rule, rig.engine.report().steps) == ("coupled", 0)
    for rule_ in ("ratio", "coupled", "typical", "block"):
        rig.run([ask([1], SpeculationParams(rule=rule_), max_tokens=3)])
        total = rig.engine.report()
        loosest = "typical" if "typical" in {r.speculation.rule for r in rig.requests.values()} else "ratio"
        assert (total.rule, total.lossless) == (loosest, loosest != "typical")
    assert RULES[-1] == "typical"
    rig.engine.limit(SpeculationParams("off"))
    assert rig.engine.report().mode == "off"


class TestTrace:
    """`Rig` holds every trace's sums against the counts."""

    def test_every_step_says_what_became_of_it(self) -> None:
        rig = make({"oracle": Oracle(CHAOS)}, length=4)
        [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=13)])
        first, *others = done.speculation.trace
        assert first == StepTrace(0, 0, 0, None), "the prompt's"
        assert others == [(4, 4, 4, None), (4, 4, 4, None), (1, 1, 1, None)]

    def test_reasons_stand_where_they_were_found(self) -> None:
        rig = make(crew()["none"]())
        [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=5)])
        assert done.speculation.trace == ((0, 0, 0, None),) + ((0, 0, 0, "requested_off"),) * 4
        rig = make({"oracle": Oracle(CHAOS, miss=1.0), "lookup": Lookup()}, length=8, context=20)
        [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=64)])
        reasons = [step.reason for step in done.speculation.trace]
        assert reasons == [None] * 10 + ["context_limit"] * 8, "its last steps have room for fewer than 8"

    def test_the_first_of_several_reasons_is_told(self) -> None:
        flawed = Script(lambda seqs, limits: [None] * len(seqs))
        rig = make({"odd": flawed})
        [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=6)])
        assert done.speculation.reasons == {"draft_invalid": 4, "nothing_to_draft": 4}
        assert [step.reason for step in done.speculation.trace] == [None, *["draft_invalid"] * 4, None]

    def test_tokens_after_a_stop_are_in_no_step(self) -> None:
        rig = make({"oracle": Oracle(CHAOS)}, length=8)
        whole, _ = rig.expected(ask([1, 2], ignore_eos=True))
        stop = next(t for i, t in enumerate(whole) if 3 <= i <= 6 and t not in whole[:i])
        [done] = rig.run([ask([1, 2], ignore_eos=True, stop_token_ids=(stop,))])
        kept = len(done.token_ids) - 2
        assert done.token_ids[-1] == stop and 0 < kept < 7
        assert done.speculation.trace[1:] == ((kept, kept, kept, None),)

    def test_steps_that_are_alike_share_their_record(self) -> None:
        rig = make(crew()["often right"](), length=3)
        [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=80)])
        trace = done.speculation.trace
        assert len({id(step) for step in trace}) == len(set(trace)) < len(trace) / 2


def test_what_the_governor_takes_is_in_the_next_steps_time() -> None:
    """Planning is in a step's own time; learning from it comes after its end."""

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    class Slow(Fixed):
        def observe(self, step: StepReport) -> list[Share]:
            reports.append(step)
            clock.now += 5.0
            return super().observe(step)

    def forward(*given: Any) -> Any:
        clock.now += 1.0
        return whole(*given)

    clock, reports = Clock(), list[StepReport]()
    rig = make(crew()["right"](), length=3, clock=clock)
    rig.engine.governor = Slow(3)
    whole, rig.runner.forward = rig.runner.forward, forward  # type: ignore[method-assign]
    [done] = rig.run([ask([1, 2], ignore_eos=True, max_tokens=9)])
    assert [(step.forward_s, step.other_s) for step in reports] == [(1.0, 0.0), (1.0, 5.0), (1.0, 5.0)]
    assert done.speculation.other_ms == pytest.approx(10_000)


def test_shares_are_the_governors() -> None:
    class Generous(Fixed):
        def observe(self, step: StepReport) -> list[Share]:
            super().observe(step)
            return [Share(0.25 * (1 + outcome.seq.id), 0.5) for outcome in step.outcomes]

    rig = make(crew()["right"](), length=3, sequences=2, prefill_rows=100)
    rig.engine.governor = Generous(3)
    requests = [ask(p, ignore_eos=True, max_tokens=9) for p in prompts(2, seed=1)]
    for i, done in enumerate(rig.run(replace(r) for r in requests)):
        steps = done.speculation.steps
        assert done.speculation.saved_ms == pytest.approx(250 * (1 + i) * steps)
        assert done.speculation.wasted_ms == pytest.approx(500 * steps)
