"""The books: what is won and lost against plain decoding, in all and by request; nothing vanishes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import SpeculationParams
from paceline.governor.account import SLACK, Account, shares
from paceline.governor.base import Outcome, StepReport
from paceline.governor.costs import Costs
from paceline.governor.ledger import Ledger
from paceline.governor.turn import Turn
from tests.core.strategies import examples


@dataclass
class Seq:
    id: int = 0
    num_tokens: int = 100
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    room: int = 50
    meets_context: bool = False
    tree_room: int = 0


def outcome(verified: int = 0, tokens: int = 1, request: int = 0, source: str = "model") -> Outcome:
    draft = Draft.chain([1] * verified, source) if verified else EMPTY
    return Outcome(Seq(request), draft, draft, (1,) * tokens)


def ledger(epsilon: float = 0.01) -> Ledger:
    costs = Costs()
    for rows in (1, 2, 4, 8, 16):
        costs.learn(rows, 1.0 + 0.1 * (rows - 1))
    return Ledger(costs, epsilon)


def step(*outcomes: Outcome, draft_s: float = 0.0, forward_s: float = 1.0, **rest: float) -> StepReport:
    by = {"model": draft_s} if draft_s else {}
    return StepReport(outcomes, int(rest.get("prefill_rows", 0)), draft_s, forward_s, 0.0, by)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
    st.floats(0, 3),
    st.floats(-2, 5),
)
@examples(200)
def test_shares_sum_to_what_the_step_won(each: list[tuple[int, int]], draft_s: float, extra: float) -> None:
    outcomes = [outcome(n, 1 + min(n, right), i) for i, (n, right) in enumerate(each)]
    found = shares(step(*outcomes, draft_s=draft_s), 0.25, extra)
    gained = sum(len(o.tokens) - 1 for o in outcomes)
    assert sum(share.saved_s for share in found) == pytest.approx(gained * 0.25 - extra)
    assert all(0 <= share.wasted_s <= max(0.0, extra) + 1e-12 for share in found)


def test_only_those_who_drafted_pay_for_it() -> None:
    plain, losing = shares(step(outcome(), outcome(4, 1, 1), draft_s=0.5), 0.5, 0.9)
    assert plain.saved_s == 0
    assert losing.saved_s == pytest.approx(-0.9)
    assert losing.wasted_s == pytest.approx(0.9)


def test_what_became_text_was_not_wasted() -> None:
    [share] = shares(step(outcome(4, 5)), 1.0, 0.4)
    assert share.wasted_s == 0
    assert share.saved_s == pytest.approx(3.6)


def test_a_slow_step_without_a_draft_wasted_nothing() -> None:
    [nobody] = shares(step(outcome()), 1.0, 0.4)
    assert nobody.wasted_s == 0
    [asked] = shares(step(outcome(), draft_s=0.1), 1.0, 0.4)
    assert asked.wasted_s == pytest.approx(0.1), "what drafting took, not what the machine did"


def test_drafting_in_vain_is_charged_to_all_that_it_was_for() -> None:
    found = shares(step(outcome(), outcome(request=1), draft_s=0.4), 0.5, 0.4)
    assert [share.saved_s for share in found] == pytest.approx([-0.2, -0.2])
    assert [share.wasted_s for share in found] == pytest.approx([0.2, 0.2])


def test_a_plain_step_wins_and_loses_nothing_however_long_it_took() -> None:
    books = ledger()
    before = books.account.balance
    [share] = books.book(step(outcome(), forward_s=3.0), Turn(plain_s=1.0), is_ordinary=True, counts=True)
    assert share.saved_s == 0
    assert books.account.balance == pytest.approx(before + 0.01 * 3)
    assert books.since_plain == 0


def test_a_plain_step_that_is_hard_to_believe_does_not_count_as_measured() -> None:
    costs = Costs()
    costs.learn(1, 1.0)
    books, plain = Ledger(costs), step(outcome(), forward_s=3.0)
    for seconds, told in ((3.0, False), (1.0, True)):
        costs.learn(1, seconds)
        assert costs.target.surprised != told
        books.book(plain, Turn(plain_s=1.0), is_ordinary=True, counts=True)
        assert (books.since_plain == 0) is told


def test_a_step_that_accepts_all_wins_its_tokens() -> None:
    books = ledger()
    [share] = books.book(
        step(outcome(3, 4), draft_s=0.5, forward_s=1.3), Turn(plain_s=1.0), is_ordinary=True, counts=True
    )
    assert share.saved_s == pytest.approx(3 - 0.8)
    assert books.account.balance == pytest.approx(SLACK + 3 - 0.8 + 0.01 * 1.8)
    assert books.since_plain == 1


def test_with_prompts_in_the_pass_only_what_drafts_added_counts() -> None:
    books = ledger()
    turn = Turn(sequences=1, rows=8, plain_s=1.0)
    found = books.book(step(outcome(2, 1), forward_s=9.0, prefill_rows=7), turn, is_ordinary=False, counts=True)
    assert found[0].saved_s == pytest.approx(-0.2, rel=0.01), "two rows more; the prompt's own time is nobody's loss"


def test_requests_that_always_speculate_are_not_the_accounts_business() -> None:
    books = ledger()
    before = books.account.balance
    [share] = books.book(step(outcome(4, 1), forward_s=3.0), Turn(plain_s=1.0), is_ordinary=True, counts=False)
    assert share.saved_s == pytest.approx(-2)
    assert books.account.balance == before


def test_a_pass_that_the_machine_held_up_is_not_held_against_speculation() -> None:
    books = ledger()
    [share] = books.book(step(outcome(3, 1), forward_s=60.0), Turn(plain_s=1.0), is_ordinary=True, counts=True)
    assert share.saved_s == pytest.approx(1 - 3 * 1.3), "three times what four rows take, and no more"


def test_a_request_that_loses_among_others_that_win_goes_on_plainly() -> None:
    books, turn = ledger(), Turn(sequences=2, rows=2, plain_s=1.1)
    losing, winning = outcome(4, 1, request=1), outcome(4, 5, request=2)
    for _ in range(100):
        if books.overdrawn(losing.seq):
            break
        books.book(step(losing, winning, forward_s=2.0), turn, is_ordinary=True, counts=True)
    assert books.overdrawn(losing.seq)
    assert not books.overdrawn(winning.seq)
    assert not books.account.overdrawn


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.05])
def test_a_drafter_that_always_loses_costs_the_slack_and_epsilon_of_the_time(epsilon: float) -> None:
    account, time, lost = Account(epsilon), 0.0, 0.0
    for _ in range(20_000):
        took = 1.0 if account.overdrawn else 1.5
        time, lost = time + took, lost + took - 1
        account.book(1 - took, took)
    assert lost <= SLACK + 0.5 + epsilon * time
    assert lost >= min(SLACK, 0.8 * epsilon * time), "and the allowance is used"


def test_each_time_it_is_overdrawn_it_stays_plain_longer_until_it_wins() -> None:
    account = Account(0.01)
    waits = []
    for _ in range(4):
        while not account.overdrawn:
            account.book(-0.5, 1.5)
        wait = 0
        while account.overdrawn:
            account.book(0.0, 1.0)
            wait += 1
        waits.append(wait)
    assert waits[0] < waits[1] < waits[2]
    assert waits[3] == pytest.approx(waits[2], rel=0.1), "up to a bound"
    while account.balance <= SLACK + 1:
        account.book(1.0, 1.0)
    while not account.overdrawn:
        account.book(-0.5, 1.5)
    wait = 0
    while account.overdrawn:
        account.book(0.0, 1.0)
        wait += 1
    assert wait == pytest.approx(waits[0], rel=0.1)
