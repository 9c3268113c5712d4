"""The governor against whole texts: what it may lose, what it must win, how it turns off and comes back.

All time is simulated. A loss is in plain steps; what one of a request's requests may cost besides is the longest step
that was ever tried, with all that a drafter has to read in it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median

import pytest

from paceline.core.tree import Draft
from paceline.core.types import SpeculationParams
from paceline.governor.account import MOST, SLACK
from paceline.governor.fixed import Fixed

from .processes import CURVES, DRAFTS, cells, constant, hindsight, lookup_track, model_track, summary
from .simulate import RIGHT, WRONG, Result, Simulation, Text, Track, World, adaptive, simulate

log = logging.getLogger(__name__)


def longest(result: Result) -> float:
    return max(step.ideal / step.each for step in result.steps if step.sequences)


def assert_bounded(result: Result) -> None:
    assert result.worst_loss() <= SLACK + MOST + longest(result)


def track(hits: list[bool], confidence: float = 1.0) -> Track:
    return Track(hits, [confidence] * len(hits))


@dataclass(frozen=True)
class Spiteful(Track):
    """Right until it is trusted."""

    trust: Callable[[], float] = lambda: 0.0
    name: str = "model"

    def draft(self, name: str, begin: int, limit: int, least: float = 0.0) -> Draft:
        token = RIGHT if self.trust() < 0.8 else WRONG
        return Draft.chain([token] * min(limit, len(self.hits) - begin), name)


@pytest.mark.parametrize("name", ["lookup", "model"])
@pytest.mark.parametrize("curve", CURVES)
def test_always_wrong_and_sure_of_it(name: str, curve: str) -> None:
    for draft in DRAFTS:
        world = World(CURVES[curve], draft=draft)
        result = simulate(world, [Text(1000, {name: track([False] * 1000)})])
        assert 0.99 * result.ideal - result.plain <= (SLACK + longest(result)) * world.plain(1)
        assert_bounded(result)


@pytest.mark.parametrize("name", ["lookup", "model"])
@pytest.mark.parametrize("curve", CURVES)
def test_right_until_it_is_trusted(name: str, curve: str) -> None:
    for draft in DRAFTS:
        world = World(CURVES[curve], draft=draft)
        governor = adaptive(world, (name,))
        nothing = [True] * 1000
        spite = Spiteful(nothing, [], trust=lambda g=governor: g.acceptance.at_depth(0, name, 1))
        result = Simulation(world, [Text(1000, {name: spite})], governor).run()
        assert_bounded(result)
        assert 0.99 * result.ideal - result.plain <= (SLACK + longest(result)) * world.plain(1)


@pytest.mark.parametrize("period", [3, 20, 150])
@pytest.mark.parametrize("curve", ["+20%", "+60%", "cliff at 2"])
def test_good_and_bad_by_turns(curve: str, period: int) -> None:
    hits = [i // period % 2 == 0 for i in range(1500)]
    for confidence in (1.0, 0.5):
        tracks = {"lookup": track(hits, confidence), "model": track(hits[::-1], confidence)}
        assert_bounded(simulate(World(CURVES[curve]), [Text(1500, tracks)]))


def test_requests_that_each_make_a_drafter_read_in_vain() -> None:
    """Every request starts well enough to be read for, and a drafter takes long to read."""
    world = World(CURVES["+5%"], draft=0.05, catch_up=1.0)
    texts = [Text(60, {"model": track([i < 3 for i in range(60)], 0.95)}, prompt=200) for _ in range(40)]
    result = simulate(world, texts)
    assert_bounded(result)
    assert 0.99 * result.ideal - result.plain <= (SLACK + longest(result)) * world.plain(1)


def test_a_machine_that_slows_down_and_measures_badly() -> None:
    world = World(CURVES["+5%"], noise=0.1, outliers=0.02, drift=lambda position: 1 + position / 1000)
    result = simulate(world, [Text(2000, {"model": track([False] * 2000)})])
    assert result.ideal <= 1.03 * result.plain
    assert simulate(world, [Text(2000, {"model": track([True] * 2000)})]).speedup > 4


def test_probes_are_bounded() -> None:
    """A drafter that is never right: after it is known, at most half a percent of the time goes into trying it."""
    world = World(CURVES["+5%"], draft=0.1)
    rng = random.Random(0)
    result = simulate(world, [Text(3000, {"model": model_track(rng, constant(0.03, 3000))})])
    late = result.steps[500:]
    assert sum(step.ideal - step.plain for step in late) <= 0.006 * sum(step.plain for step in late)
    assert sum("model" in step.asked for step in late) >= 1


@pytest.mark.parametrize("rate", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("draft", [0.005, 0.05, 0.15])
@pytest.mark.parametrize("curve", ["flat", "+5%", "+20%", "stairs of 4"])
def test_a_good_drafter_reaches_the_best_fixed_length(curve: str, draft: float, rate: float) -> None:
    world = World(CURVES[curve], draft=draft)
    texts = [Text(1000, {"model": model_track(random.Random(seed), constant(rate, 1000))}) for seed in range(2)]
    assert simulate(world, texts).ideal <= hindsight(world, texts)[0] / 0.97


def test_regret_over_random_cells() -> None:
    found = list(cells(range(1000, 1060), length=384))
    regrets = sorted(max(0.0, cell.regret) for cell in found)
    log.info(summary(found))
    assert fmean(regrets) <= 0.015, summary(found)
    assert median(regrets) <= 0.005, summary(found)
    assert regrets[int(0.8 * len(regrets))] <= 0.03, summary(found)
    assert max(cell.loss for cell in found) <= SLACK + MOST + 10, summary(found)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(10))
def test_regret_over_ten_thousand_processes(part: int, record_property) -> None:
    found = list(cells(range(10_000 + 1000 * part, 11_000 + 1000 * part), length=384))
    log.info(summary(found))
    record_property("regret", summary(found))
    assert fmean(max(0.0, cell.regret) for cell in found) <= 0.015, summary(found)
    assert fmean(cell.regret for cell in found) <= 0.0, summary(found)
    assert max(cell.loss for cell in found) <= SLACK + MOST + 20, summary(found)


def test_free_text_then_a_copy_then_free_text() -> None:
    """Up to the most within five rounds, and back down."""
    rng = random.Random(4)
    copies = [300 <= i < 700 for i in range(1000)]
    sure = [0.97 if c and i >= 303 else 0.55 for i, c in enumerate(copies)]
    hits = [c or rng.random() < 0.1 for c in copies]
    lookup = Track(hits, sure, [c or rng.random() < 0.4 for c in copies], flat=True)
    tracks = {"lookup": lookup, "model": model_track(rng, [0.15] * 1000)}
    result = simulate(World(CURVES["+5%"], draft=0.15), [Text(1000, tracks)])
    before, copy, after = ([], [], [])
    for step in result.steps:
        (before if step.position < 300 else copy if step.position < 690 else after).append(step.verified)
    assert fmean(before[100:]) < 0.5
    assert max(copy[:8]) == 16, "three of these rounds pass before the match is long"
    assert fmean(copy[10:-1]) > 14
    assert fmean(after[5:]) < 0.5


def test_an_off_period_spoils_nothing() -> None:
    """Asked for off in between, a drafter is as right afterwards as if it had never been off."""
    rng = random.Random(1)
    good = model_track(rng, constant(0.8, 600))
    off = SpeculationParams(mode="off")
    world = World(CURVES["+5%"], draft=0.05)
    texts = [Text(600, {"model": good}), Text(600, {"model": good}, speculation=off), Text(600, {"model": good})]
    result = Simulation(world, texts, adaptive(world, ("model",))).run()
    first, silent, back = result.tallies
    assert silent.drafted == 0
    assert back.accepted / back.verified == pytest.approx(first.accepted / first.verified, abs=0.03)
    assert back.accepted >= 0.97 * first.accepted


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_sampled_drafts_are_verified_whole_or_not_at_all(rule) -> None:
    rng = random.Random(2)
    sampled = replace(model_track(rng, constant(0.7, 400)), sampled=True)
    world = World(CURVES["+20%"], draft=0.05)
    text = Text(400, {"model": sampled}, speculation=SpeculationParams(rule=rule))
    result = simulate(world, [text])
    assert all(step.verified in (0, step.drafted) for step in result.steps)
    assert result.speedup > 1.1
    wrong = replace(text, tracks={"model": replace(sampled, hits=[False] * 400)})
    assert_bounded(simulate(world, [wrong]))


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("curve", ["flat", "+5%", "+20%", "linear"])
def test_batches(curve: str, batch: int) -> None:
    """Never far below plain decoding, nor below the best fixed length for this batch."""
    rng = random.Random(batch)
    world = World(CURVES[curve], draft=0.05)
    tracks = [
        {
            "lookup": lookup_track(rng, [i % 3 == 0] * 150),
            "model": model_track(rng, constant(rng.choice((0.5, 0.8, 0.9)), 150)),
        }
        for i in range(2 * batch + 2)
    ]
    texts = [Text(150, t, prompt=40) for t in tracks]
    result = simulate(world, texts, batch)
    assert_bounded(result)
    fixed = min(Simulation(world, texts, Fixed(n), batch).run().ideal for n in (0, 1, 2, 4, 8))
    assert result.ideal <= fixed * 1.04
    if curve == "linear" and batch >= 4:
        assert sum(step.verified for step in result.steps if step.sequences == batch) <= 10 * batch


def test_a_request_may_ask_for_less() -> None:
    good = {"lookup": track([True] * 300), "model": track([True] * 300)}
    world = World(CURVES["+5%"])
    asks = [
        SpeculationParams(mode="off"),
        SpeculationParams(max_draft=2),
        SpeculationParams(drafters=("model",)),
        SpeculationParams(mode="always"),
    ]
    off, short, named, always = (simulate(world, [Text(300, good, speculation=ask)]) for ask in asks)
    assert off.tallies[0].drafted == 0
    assert off.tallies[0].reasons.keys() == {"requested_off"}
    assert max(step.verified for step in short.steps) == 2
    assert all("lookup" not in step.asked for step in named.steps)
    assert {step.verified for step in always.steps[1:-1]} == {4}
