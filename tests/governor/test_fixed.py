"""The governor that always drafts the same length."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import SpeculationParams
from paceline.governor.base import Limit, Outcome, Reason, StepReport
from paceline.governor.costs import Costs
from paceline.governor.fixed import Fixed

AUTO = SpeculationParams()


@dataclass
class Seq:
    speculation: SpeculationParams = AUTO
    room: int = 100
    meets_context: bool = False
    id: int = 0
    num_tokens: int = 9


@pytest.mark.parametrize(
    ("seq", "limit"),
    [
        (Seq(), Limit(5)),
        (Seq(SpeculationParams(mode="always")), Limit(5)),
        (Seq(SpeculationParams(mode="off")), Limit(0, Reason.REQUESTED_OFF)),
        (Seq(SpeculationParams(mode="off", max_draft=9)), Limit(0, Reason.REQUESTED_OFF)),
        (Seq(SpeculationParams(max_draft=0)), Limit(0, Reason.REQUESTED_OFF)),
        (Seq(SpeculationParams(max_draft=3)), Limit(3)),
        (Seq(SpeculationParams(max_draft=64)), Limit(5)),
        (Seq(room=5), Limit(5)),
        (Seq(room=4), Limit(4)),
        (Seq(room=0), Limit(0)),
        (Seq(room=4, meets_context=True), Limit(4, Reason.CONTEXT_LIMIT)),
        (Seq(SpeculationParams(max_draft=3), room=4, meets_context=True), Limit(3)),
    ],
)
def test_limits(seq: Seq, limit: Limit) -> None:
    assert Fixed(5).plan([seq]) == [limit]


def test_a_batch_is_planned_one_by_one() -> None:
    assert [limit.nodes for limit in Fixed(5).plan([Seq(), Seq(room=2), Seq()])] == [5, 2, 5]
    assert Fixed(5).plan([]) == []


def test_it_trims_what_is_longer() -> None:
    long, short = Draft.chain(range(9), "a"), Draft.chain([1, 2], "a")
    assert [draft.tokens for draft in Fixed(4).trim([Seq()] * 3, [long, short, EMPTY])] == [(0, 1, 2, 3), (1, 2), ()]
    assert Fixed(4).value(Seq(), long) == 9


def outcome(drafted: int) -> Outcome:
    draft = Draft.chain(range(drafted), "a")
    return Outcome(Seq(), draft, draft, (1,))


def test_it_measures_steps_that_read_no_prompt() -> None:
    costs = Costs()
    governor = Fixed(4, costs)
    assert not governor.costs.known
    governor.observe(StepReport([outcome(0)], prefill_rows=7, draft_s=0.1, forward_s=5.0, other_s=0.1))
    governor.observe(StepReport([], prefill_rows=0, draft_s=0.1, forward_s=5.0, other_s=0.1))
    assert not costs.known
    governor.observe(StepReport([outcome(0), outcome(3)], prefill_rows=0, draft_s=0.1, forward_s=0.25, other_s=0.05))
    assert costs.forward(5) == pytest.approx(0.25)


def test_reports_add_up() -> None:
    plain = StepReport([outcome(0), outcome(0)], 0, 0.5, 1.0, 0.25)
    assert (plain.seconds, plain.rows, plain.is_plain) == (1.75, 2, True)
    assert not StepReport([outcome(0), outcome(2)], 0, 0.5, 1.0, 0.25).is_plain
    assert StepReport([outcome(0), outcome(2)], 0, 0.5, 1.0, 0.25).rows == 4
    assert not StepReport([outcome(0)], 4, 0.5, 1.0, 0.25).is_plain
