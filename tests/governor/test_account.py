"""The account: what may be lost against plain decoding, whatever happens."""

from __future__ import annotations

import random

import pytest

from paceline.governor.account import ADVANCE, EPSILON, LENT, LOAN, MOST, SLACK, Account


def drain(account: Account, loss: float = 0.5) -> None:
    while not account.overdrawn:
        account.book(-loss, 1 + loss)


@pytest.mark.parametrize("seed", range(20))
def test_no_stretch_of_steps_loses_more_than_is_stated(seed: int) -> None:
    """Steps win and lose as they please; when the account is overdrawn they are plain."""
    rng = random.Random(seed)
    account, largest, behind, worst = Account(), rng.choice((0.1, 1.0, 5.0)), 0.0, 0.0
    good = rng.random()
    for _ in range(5000):
        won = 0.0 if account.overdrawn else largest * (rng.random() if rng.random() < good else -rng.random())
        took = 1 + max(0.0, -won)
        account.book(won, took)
        behind = max(0.0, behind - won - EPSILON * took)
        worst = max(worst, behind)
    assert worst <= SLACK + MOST + largest


def test_a_collapse_after_a_good_hour_costs_no_more_than_a_short_one() -> None:
    account = Account()
    for _ in range(10_000):
        account.book(5.0, 1.0)
    steps = 0
    while not account.overdrawn:
        account.book(-1.0, 2.0)
        steps += 1
    assert steps <= MOST + 2


def test_overdrawn_it_waits_until_the_allowance_has_grown() -> None:
    account = Account()
    drain(account)
    short, steps = 1.0 - account.balance, 0
    while account.overdrawn:
        account.book(0.0, 1.0)
        steps += 1
    assert steps == pytest.approx(short / EPSILON, abs=2)
    assert account.allows(0.9)
    assert not account.allows(1.1)


def test_plain_steps_of_uneven_length_change_nothing_but_the_allowance() -> None:
    account = Account()
    before = account.balance
    for took in (0.5, 3.0, 1.0):
        account.book(0.0, took)
    assert account.balance == pytest.approx(before + EPSILON * 4.5)


def test_an_advance_may_overdraw_it_once() -> None:
    account = Account()
    account.book(-9.0, 10.0, advance=9.0)
    assert not account.overdrawn
    assert not account.advances(1.0), "no second one before it is paid back"
    assert not account.allows(0.1)
    for _ in range(3):
        account.book(2.5, 1.0)
    assert account.advances(1.0)
    for _ in range(10):
        account.book(2.5, 1.0)
    assert account.advance == 0
    drain(account)
    assert account.balance > -1


def test_an_advance_that_brings_nothing_is_the_last_for_long() -> None:
    account = Account()
    account.book(-9.0, 10.0, advance=9.0)
    drain(account)
    assert account.balance >= -9.0 - 0.5
    for _ in range(500):
        account.book(0.0, 1.0)
        assert not account.advances(1.0), "what was advanced has not been paid back"


def test_an_advance_is_bounded_by_what_was_won() -> None:
    account = Account()
    assert account.advances(SLACK + ADVANCE)
    assert not account.advances(SLACK + ADVANCE + 0.1)
    for _ in range(100):
        account.book(1.0, 1.0)
    assert account.advances(MOST + ADVANCE)
    assert not account.advances(MOST + ADVANCE + 0.1)


def test_what_was_not_verified_lends_a_new_start_a_few_times_only() -> None:
    account = Account()
    starts, lost = 0, 0.0
    for _ in range(2000):
        if account.overdrawn:
            account.would_have_won(1.0)  # a liar: right only while nobody verifies
            starts += not account.overdrawn
        else:
            account.book(-0.5, 1.5)
            lost += 0.5
    assert 1 <= starts <= LENT / LOAN + 1
    assert lost <= SLACK + LENT + 0.01 * 2000 + 1
