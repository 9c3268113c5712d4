"""The profile at start, on machines whose clock is simulated: curves, contexts, changes, busy moments, time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from paceline.governor.curve import Curve
from paceline.governor.profile import BOUND, PROFILED_ROWS, Point, Subject, profile, seconds_of, still_true

SHORT, LONG = 64, 2048


@dataclass
class Clock:
    """Time that passes take; from one moment to another the machine is busy."""

    now: float = 0.0
    busy: tuple[float, float] = (math.inf, math.inf)
    factor: float = 3.0

    def spend(self, seconds: float) -> None:
        begin, end = self.busy
        self.now += seconds * (self.factor if begin <= self.now < end else 1.0)

    def __call__(self) -> float:
        return self.now


class Times(Curve):
    """A curve as a book."""

    def scale(self, factor: float) -> None:
        self.drift *= factor


@dataclass
class Model:
    """Passes of one model on a clock."""

    clock: Clock
    takes: Callable[[int, int], float]
    change: float = 0.0
    prepare: float = 0.0
    curve: Times = field(default_factory=Times)
    ran: list[Point] = field(default_factory=list)
    first: tuple[Point, ...] = tuple((rows, SHORT) for rows in PROFILED_ROWS[:5])
    then: tuple[Point, ...] = tuple((rows, SHORT) for rows in PROFILED_ROWS[5:10])

    def run(self, rows: int, context: int) -> None:
        if rows not in {point[0] for point in self.ran}:
            self.clock.spend(self.prepare)
        elif rows != self.ran[-1][0]:
            self.clock.spend(self.change)
        self.ran.append((rows, context))
        self.clock.spend(self.takes(rows, context))

    @property
    def subject(self) -> Subject:
        return Subject(self.run, self.curve, self.first, self.then)


def flat(rows: int, context: int) -> float:
    return 0.010 + 0.001 * rows


def test_all_points_are_measured_at_three_moments() -> None:
    model = Model(Clock(), flat, change=0.005, prepare=0.1)
    profile([model.subject], 60.0, model.clock)
    assert set(model.ran) == {*model.first, *model.then}
    assert [model.ran.count(point) for point in model.first] == [6] * 5, "each time a pass before it"
    assert [model.curve.seconds(rows, SHORT) for rows in PROFILED_ROWS[:10]] == pytest.approx(
        [flat(rows, 0) for rows in PROFILED_ROWS[:10]]
    )


def test_cliffs_and_stairs_are_measured_as_they_are() -> None:
    def cliff(rows: int, context: int) -> float:
        return 0.01 if rows == 1 else 0.05 + 0.03 * (rows > 8)

    model = Model(Clock(), cliff, change=0.005)
    profile([model.subject], 60.0, model.clock)
    for rows in PROFILED_ROWS[:10]:
        assert model.curve.seconds(rows, SHORT) == pytest.approx(cliff(rows, SHORT)), rows
    assert model.curve.measured_rows == sorted(PROFILED_ROWS[:10])


def test_two_contexts_tell_what_a_token_to_look_back_at_costs() -> None:
    def takes(rows: int, context: int) -> float:
        return 0.05 + 0.001 * rows + 2e-6 * rows * (context + 1)

    model = Model(Clock(), takes)
    model.first = (*model.first, (1, LONG), (8, LONG))
    model.then = (*model.then, (2, LONG), (4, LONG), (16, LONG))
    profile([model.subject], 60.0, model.clock)
    for rows in (1, 2, 4, 8, 16):
        for context in (SHORT, 1000, LONG, 8000):
            assert model.curve.seconds(rows, context) == pytest.approx(takes(rows, context - 1), rel=0.01)
    assert model.curve.seconds(6, 8000) == pytest.approx(takes(6, 7999), rel=0.02), "between them"


def test_what_context_costs_is_filled_in_where_there_was_no_time() -> None:
    def takes(rows: int, context: int) -> float:
        return 0.05 + 0.02 * (rows > 2) + 1e-6 * (rows + 3) * (context + 1)

    model = Model(Clock(), takes)
    model.first = (*model.first, (1, LONG), (8, LONG))
    profile([model.subject], 60.0, model.clock)
    for rows in (2, 3, 4, 6):
        assert model.curve.seconds(rows, SHORT + 1) == pytest.approx(takes(rows, SHORT), rel=0.01)
        assert model.curve.seconds(rows, 8001) == pytest.approx(takes(rows, 8000), rel=0.01)
    assert model.curve.seconds(16, 8001) - model.curve.seconds(16, 1) == pytest.approx(2 * 11e-6 * 8000, rel=0.01)


def test_a_context_that_costs_nothing_costs_nothing_elsewhere() -> None:
    model = Model(Clock(), lambda rows, context: 0.05 - 0.001 * (context == LONG))
    model.first = (*model.first, (1, LONG))
    profile([model.subject], 60.0, model.clock)
    assert model.curve.seconds(32, 8000) == pytest.approx(0.05, rel=0.01)


def test_rows_that_fill_a_pass_up_look_at_nothing() -> None:
    subject = Subject(lambda rows, context: None, Times(2), (), (), least_rows=2)
    assert subject.looks((1, 99)) == 50
    assert subject.looks((2, 99)) == subject.looks((7, 99)) == 100


def test_what_a_change_costs() -> None:
    clock = Clock()
    models = [Model(clock, flat, change, prepare=0.2) for change in (0.006, 0.0, 0.0001)]
    found = profile([model.subject for model in models], 60.0, clock)
    assert found == [pytest.approx(0.006), 0.0, 0.0], "the last is next to nothing"
    for model in models:
        assert model.curve.seconds(4, SHORT) == pytest.approx(flat(4, 0)), "no pass that changed counts"


def test_the_first_pass_of_a_number_of_rows_is_no_change() -> None:
    model = Model(Clock(), lambda rows, context: 0.1, prepare=0.2)
    model.then = ()
    assert profile([model.subject], 2.0, model.clock) == [0.0]
    assert model.curve.measured_rows == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("begin", [0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 2.0])
def test_a_busy_moment_makes_nothing_look_slow(begin: float) -> None:
    clock = Clock(busy=(begin, begin + 0.3))
    target, draft = Model(clock, flat), Model(clock, lambda rows, context: 0.004)
    draft.first, draft.then = ((1, SHORT),), ((2, SHORT), (4, SHORT), (8, SHORT))
    profile([target.subject, draft.subject], 60.0, clock)
    for rows in PROFILED_ROWS[:10]:
        assert target.curve.seconds(rows, SHORT) == pytest.approx(flat(rows, 0)), rows
    for rows in (1, 2, 4, 8):
        assert draft.curve.seconds(rows, SHORT) == pytest.approx(0.004), rows


def test_control_a_machine_that_is_busy_all_the_time_looks_slow() -> None:
    clock = Clock(busy=(0.0, math.inf))
    model = Model(clock, flat)
    profile([model.subject], 60.0, clock)
    assert model.curve.seconds(1, SHORT) == pytest.approx(3 * flat(1, 0))


def test_models_are_measured_in_turns() -> None:
    """Where there is time for a few points only, a machine that gets busy slows both models' alike."""
    order: list[str] = []
    clock = Clock()
    models = {name: Model(clock, lambda rows, context: 0.1) for name in ("target", "draft")}

    def watched(name: str) -> Subject:
        model = models[name]
        model.then = ()

        def run(rows: int, context: int) -> None:
            order.append(name)
            model.run(rows, context)

        return Subject(run, model.curve, model.first)

    profile([watched("target"), watched("draft")], 1.5, clock)
    assert order[:8] == ["target", "target", "draft", "draft"] * 2


@pytest.mark.parametrize(("each", "least"), [(0.001, 10), (0.01, 10), (0.05, 8), (0.1, 5), (0.3, 2)])
def test_it_ends_in_time_with_the_most_telling_points_measured(each: float, least: int) -> None:
    clock = Clock()
    target = Model(clock, lambda rows, context: each * (1 + rows / 10), change=each / 5, prepare=each)
    draft = Model(clock, lambda rows, context: each / 3)
    draft.first, draft.then = ((1, SHORT),), ((8, SHORT),)
    profile([target.subject, draft.subject], 3.0, clock)
    assert clock.now <= 3.0 + 2 * each, "a point with more rows than any before takes longer than any before"
    assert target.curve.seconds(1, SHORT) == pytest.approx(1.1 * each)
    assert draft.curve.seconds(1, SHORT) == pytest.approx(each / 3)
    done = [rows for rows in PROFILED_ROWS if rows in target.curve.measured_rows]
    assert done == list(PROFILED_ROWS[: len(done)]), "none before a more telling one"
    assert len(done) >= least


@pytest.mark.parametrize("budget", [1.0, 1.5, 1.9, 2.5, 3.0, 4.1])
def test_no_point_is_begun_that_would_end_too_late(budget: float) -> None:
    model = Model(Clock(), lambda rows, context: 0.3)
    profile([model.subject], budget, model.clock)
    assert model.clock.now <= budget < model.clock.now + 0.6 + 1e-9


def test_a_point_or_two_of_each_model_are_measured_whatever_the_time() -> None:
    clock = Clock()
    models = [Model(clock, lambda rows, context: 5.0), Model(clock, lambda rows, context: 1.0)]
    profile([replace(models[0].subject, at_least=2), models[1].subject], 3.0, clock)
    assert [model.curve.measured_rows for model in models] == [[1, 8], [1]]


def test_a_slow_model_has_its_telling_points_twice_before_the_others() -> None:
    model = Model(Clock(), flat)
    profile([model.subject], 60.0, model.clock)
    begun = model.ran[::2]
    assert begun[:10] == [*model.first, *model.first]
    assert begun[10:15] == list(model.then)


def slowed(model: Model, factor: float) -> None:
    before = model.takes
    model.takes = lambda rows, context: factor * before(rows, context)


def profiled(clock: Clock) -> list[Model]:
    models = [Model(clock, flat, change=0.005), Model(clock, lambda rows, context: 0.004)]
    models[1].first, models[1].then = ((1, SHORT),), ((2, SHORT),)
    profile([model.subject for model in models], 60.0, clock)
    for model in models:
        model.ran.clear()
    return models


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.2])
def test_curves_that_are_still_true_follow_what_a_few_passes_show(factor: float) -> None:
    clock = Clock()
    models = profiled(clock)
    slowed(models[0], factor)
    worst = still_true([model.subject for model in models], clock)
    assert worst == pytest.approx(max(factor, 1 / factor))
    assert worst <= BOUND
    assert [models[0].curve.seconds(rows, SHORT) for rows in (1, 3, 32)] == pytest.approx(
        [factor * flat(rows, 0) for rows in (1, 3, 32)]
    )
    assert models[1].curve.seconds(1, SHORT) == pytest.approx(0.004)
    assert {point for model in models for point in model.ran} == {(1, SHORT), (8, SHORT)}
    assert sum(len(model.ran) for model in models) == 9, "three points, each prepared and timed twice"


@pytest.mark.parametrize("factor", [0.5, 1.3, 10.0, 0.0])
@pytest.mark.parametrize("which", [0, 1])
def test_curves_that_are_not_true_any_more_are_found_and_left(factor: float, which: int) -> None:
    clock = Clock()
    models = profiled(clock)
    slowed(models[which], factor)
    assert not still_true([model.subject for model in models], clock) <= BOUND
    assert [model.curve.drift for model in models] == [1.0, 1.0]


def test_one_number_of_rows_that_differs_is_enough() -> None:
    clock = Clock()
    models = profiled(clock)
    models[0].takes = lambda rows, context: flat(rows, context) * (1.5 if rows == 8 else 1)
    assert still_true([model.subject for model in models], clock) == pytest.approx(1.5)


def test_a_curve_that_says_nothing_is_not_true() -> None:
    model = Model(Clock(), flat)
    assert not still_true([model.subject], model.clock) <= BOUND
    assert not still_true([], model.clock) <= BOUND, "nor is none"


def test_one_slow_pass_does_not_refute_a_curve() -> None:
    clock = Clock()
    models = profiled(clock)
    clock.busy = (clock.now + flat(1, 0), clock.now + 1.5 * flat(1, 0))
    assert still_true([model.subject for model in models], clock) == pytest.approx(1.0)


def test_the_time_of_one_thing() -> None:
    clock, times = Clock(), iter([9.0, 0.2, 5.0, 0.3])
    assert seconds_of(lambda: clock.spend(next(times)), clock) == pytest.approx(0.3)
