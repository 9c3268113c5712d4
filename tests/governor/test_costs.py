"""Costs: measured curves with cliffs and stairs, outliers, drift; no clock but a simulated one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.governor.costs import STEADY_ROWS, Costs
from tests.core.strategies import examples

PROFILED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def learnt(curve, rows=PROFILED_ROWS) -> Costs:
    costs = Costs()
    for n in rows:
        costs.learn(n, curve(n))
    return costs


def test_nothing_is_known_before_a_measurement() -> None:
    costs = Costs()
    assert not costs.known
    assert costs.plain_seconds(1) is None
    assert costs.forward(3) == 0
    assert costs.draft("model", 1) == 0
    assert costs.catch_up("model", 100) == 0


def test_cliffs_are_kept_and_the_rest_is_a_line() -> None:
    costs = learnt(lambda rows: 1.0 if rows == 1 else 5.0)
    assert [costs.forward(rows) for rows in (1, 2, 5, 32, 100)] == pytest.approx([1, 5, 5, 5, 5])
    stairs = learnt(lambda rows: 1.0 + (rows > 8))
    assert stairs.forward(8) == pytest.approx(1)
    assert stairs.forward(10) == pytest.approx(1.5)
    assert stairs.forward(12) == pytest.approx(2)
    line = learnt(lambda rows: 2.0 + rows)
    assert line.forward(5) == pytest.approx(7)
    assert line.forward(100) == pytest.approx(102)


def test_a_falling_end_is_not_continued_downwards() -> None:
    costs = learnt(lambda rows: 1.0 / rows, rows=(1, 2))
    assert costs.forward(50) == pytest.approx(0.5)


def test_a_cliff_between_measured_points_is_found_where_it_is_met() -> None:
    costs = learnt(lambda rows: 1.0 + (rows > 8))
    for _ in range(8):
        costs.learn(9, 2.0)
        costs.learn(1, 1.0)
    assert costs.forward(9) == pytest.approx(2, rel=0.1)
    assert costs.forward(8) == pytest.approx(1, rel=0.1)


def test_one_outlier_is_no_news_and_several_are() -> None:
    costs = learnt(lambda rows: 1.0)
    for _ in range(30):
        costs.learn(1, 1.0)
    costs.learn(1, 10.0)
    assert costs.forward(1) == pytest.approx(1, rel=0.03)
    for _ in range(12):
        costs.learn(1, 5.0)
    assert costs.forward(1) == pytest.approx(5, rel=0.15)


def test_an_outlier_at_first_sight_between_neighbours_makes_no_cliff() -> None:
    costs = learnt(lambda rows: 1.0)
    costs.learn(5, 3.0)
    assert costs.forward(5) < 1.5


def test_what_slows_all_passes_is_seen_in_any_of_them() -> None:
    """Plain steps are rare while drafts pay; their cost must follow all the same."""
    costs = learnt(lambda rows: 1 + 0.05 * rows)
    for _ in range(20):
        costs.learn(5, 1.25)
    for step in range(600):
        costs.learn(5, 1.25 * (1 + step / 1200))
    assert costs.forward(1) == pytest.approx(1.05 * 1.5, rel=0.06)


def test_what_slows_one_kind_of_pass_is_not_taken_for_all() -> None:
    costs = learnt(lambda rows: 1.0)
    for _ in range(40):
        costs.learn(1, 1.0)
        costs.learn(6, 2.0)
    assert costs.forward(1) == pytest.approx(1, rel=0.05)
    assert costs.forward(6) == pytest.approx(2, rel=0.1)


def test_a_long_unseen_point_is_corrected_at_once() -> None:
    costs = learnt(lambda rows: 1.0)
    for _ in range(2000):
        costs.learn(6, 1.0)
    for _ in range(6):
        costs.learn(1, 0.8)
    assert costs.forward(1) == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_noise_averages_out(seed: int) -> None:
    rng, costs = random.Random(seed), learnt(lambda rows: 1.0)
    for _ in range(500):
        costs.learn(rng.choice((1, 4, 6)), rng.gauss(1, 0.05) * (3 if rng.random() < 0.01 else 1))
    assert costs.forward(1) == pytest.approx(1, rel=0.05)


def test_what_surrounds_the_pass_goes_with_the_tokens() -> None:
    costs = Costs()
    costs.learn(1, 1.0)
    costs.learn(4, 1.0)
    for _ in range(50):
        costs.observe_rest(1, 0.1)
        costs.observe_rest(4, 0.4)
    costs.observe_rest(1, 50.0)
    assert costs.plain_seconds(1) == pytest.approx(1.1, rel=0.03)
    assert costs.plain_seconds(4) == pytest.approx(1.4, rel=0.03)


def test_drafts_by_drafter_and_batch() -> None:
    costs = learnt(lambda rows: 0.5)
    costs.learn_draft("model", 1, 0.1)
    for _ in range(60):
        costs.observe_draft("model", 0.8, 4)
        costs.observe_draft("model", 1.2, 4, sequences=8)
    assert costs.draft("model", 1) == pytest.approx(0.2, rel=0.05)
    assert costs.draft("model", 8) == pytest.approx(0.3, rel=0.05)
    assert costs.draft("model", 1) < costs.draft("model", 4) < costs.draft("model", 8)
    costs.observe_draft("other", 0.6, 3, sequences=2)
    assert costs.draft("other", 1) == pytest.approx(0.2), "the batch seen speaks for those not seen yet"


def test_catching_up_is_not_taken_for_drafting() -> None:
    costs = learnt(lambda rows: 0.5)
    costs.learn_draft("model", 1, 0.1)
    costs.observe_draft("model", 0.4 + 2.0, 4, missed=200)
    assert costs.draft("model", 1) == pytest.approx(0.1)
    assert costs.catch_up("model", 50) == pytest.approx(0.5)


def test_a_long_context_makes_the_rows_dear_not_the_pass() -> None:
    costs = Costs()
    for rows in (1, 4):
        costs.learn(rows, 10.0, 64)
        costs.learn(rows, 10.0 + 0.002 * rows * (2048 - 64), 2048)
    assert costs.forward(1, 1000) == pytest.approx(10 + 0.002 * (1000 - 64), rel=0.01)
    assert costs.forward(4, 8000) == pytest.approx(10 + 0.008 * (8000 - 64), rel=0.01)
    assert costs.forward(4, 64) == pytest.approx(10, rel=0.01)


def test_rows_that_fill_a_pass_up_look_back_at_nothing() -> None:
    costs = steps(switch=100.0)
    for rows in (1, 2, 4, 8, 16):
        costs.learn(rows, 10.0 + rows + rows * 10.0, 1000)
    costs.observe(8, 18.0, 8)
    assert costs.next_pass(2, context=1000) == pytest.approx(18 + 20, rel=0.02)


def test_a_state_restores_what_was_measured() -> None:
    costs = steps()
    costs.learn(4, 20.0, 1000)
    costs.learn_draft("model", 2, 0.5)
    costs.profiled_draft["model"] = 0.04
    costs.catch_up_s["model"] = 0.01
    costs.observe_rest(1, 0.3)
    again = Costs.restore(json.loads(json.dumps(costs.state())))
    assert again.state() == costs.state()
    assert again.forward(3, 500) == costs.forward(3, 500)
    assert again.plain_seconds(1) == costs.plain_seconds(1)
    assert again.draft("model", 2) == pytest.approx(0.5)
    assert again.slowdown("model") == pytest.approx(0.5 / 11 / 0.04)


def test_a_drafter_that_does_not_run_slows_down_with_the_machine() -> None:
    costs = learnt(lambda rows: 1.0)
    costs.learn_draft("model", 1, 0.3)
    costs.profiled_draft["model"] = 0.3
    for _ in range(60):
        costs.learn(1, 2.0)
    assert costs.draft("model", 1) == pytest.approx(0.6, rel=0.05)
    assert costs.slowdown("model") == pytest.approx(1)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda v: (
            st.lists(v, max_size=4)
            | st.dictionaries(
                st.sampled_from(["target", "others", "drafts", "points", "1", "drift", "least_rows", "switch_s"]),
                v,
                max_size=4,
            )
        ),
    )
)
@examples(200)
def test_no_other_state_is_taken(value: Any) -> None:
    state = steps().state()
    for name in state:
        try:
            costs = Costs.restore({**state, name: value})
        except ValueError:
            continue
        assert 0 <= costs.forward(3, 100) < 1e30


def steps(switch: float = 5.0, least: int = 1) -> Costs:
    """A row costs 1 and a pass 10, so much more where the number of rows is new."""
    costs = Costs(least)
    for rows in (1, 2, 4, 8, 16, 64):
        costs.learn(rows, 10.0 + rows)
    costs.switch_s = switch
    return costs


def run_steadily(costs: Costs, needs: Sequence[int], plain: bool = False) -> list[int]:
    """Return how many rows run for each need, on a machine that takes what the costs say."""
    ran = []
    for rows in needs:
        chosen = costs.steady(rows, plain)
        took = costs.next_pass(rows, plain)
        changed = not ran or chosen != ran[-1]
        assert took == pytest.approx(10 + max(chosen, 1) + 5 * changed, rel=0.05)
        costs.observe(rows, 10.0 + chosen + 5 * changed, chosen)
        ran.append(chosen)
    return ran


def test_a_pass_is_filled_up_while_that_is_cheaper_than_a_change() -> None:
    assert run_steadily(steps(), [4, 1, 3, 4, 1]) == [4, 4, 4, 4, 4]
    assert run_steadily(steps(), [4, 1, 1, 1]) == [4, 4, 1, 1], "3 were lost, 3 more would be as much as a change"
    assert run_steadily(steps(), [16, 1]) == [16, 1], "at once, where one pass loses more"


def test_drafts_grow_to_common_sizes_and_plain_steps_to_their_own() -> None:
    assert run_steadily(steps(), [3, 5, 7, 7]) == [4, 6, 8, 8]
    assert run_steadily(steps(), [3, 3, 5, 5], plain=True) == [3, 3, 5, 5]


def test_where_a_change_costs_nothing_passes_are_as_needed() -> None:
    costs = steps(switch=0.0)
    for rows in (3, 1, 7, 2):
        assert costs.steady(rows) == rows
        assert costs.next_pass(rows) == costs.forward(rows)
        assert costs.observe(rows, 10.0 + rows)


def test_rows_that_a_pass_has_anyway_are_free() -> None:
    costs = steps(least=2)
    assert costs.forward(1) == costs.forward(2)
    assert costs.steady(1) == 2
    assert costs.observe(1, 12.0) is False, "the first is a change"
    assert costs.observe(1, 12.0) is True
    assert costs.next_pass(2) == pytest.approx(costs.next_pass(1))


def test_a_prompt_makes_the_next_pass_a_change() -> None:
    costs = steps()
    run_steadily(costs, [4, 4])
    costs.disturb()
    assert costs.steady(1, plain=True) == 1
    assert costs.next_pass(4) == pytest.approx(19, rel=0.05)


def test_what_a_change_costs_is_learnt_apart_from_the_curve() -> None:
    costs, before = steps(), steps().forward(4)
    for _ in range(60):
        costs.disturb()
        costs.observe(4, 14.0 + 2.0, 4)
    assert costs.switch_s == pytest.approx(2.0, abs=0.3)
    assert costs.forward(4) == pytest.approx(before)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=80))
@examples(100)
def test_filling_up_never_loses_much_against_exact_numbers(needs: list[int]) -> None:
    """Beyond the passes themselves, at most twice what changes to the very number would cost, and a round-up."""
    ran = run_steadily(steps(), needs)
    changes = sum(5 for a, b in zip([0, *ran], ran, strict=False) if a != b)
    extra = changes + sum(a - b for a, b in zip(ran, needs, strict=True))
    exact = sum(5 for a, b in zip([0, *needs], needs, strict=False) if a != b)
    rounded = sum(next(n for n in STEADY_ROWS if n >= rows) - rows for rows in needs)
    assert extra <= 2 * exact + rounded + 5
