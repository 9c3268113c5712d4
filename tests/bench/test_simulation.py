"""The simulator: tracks, what a world charges, and that the governor sees of it what the engine would show."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.machine import Machine
from paceline.bench.processes import (
    CURVES,
    PROCESSES,
    constant,
    episodes,
    model_track,
    random_texts,
    random_world,
    world,
)
from paceline.bench.simulation import Simulation, adaptive, simulate
from paceline.bench.tracks import REACH, WORD, WRONG, Chain, Text, Track, track
from paceline.bench.worlds import World, profiled
from paceline.core.tree import EMPTY
from paceline.governor.base import StepReport
from paceline.governor.fixed import Fixed


def one(hits: list[bool], name: str = "lookup", **rest: Any) -> Text:
    return Text(len(hits), {name: track(hits, [0.9] * len(hits))}, **rest)


def fixed(length: int, world: World) -> Fixed:
    return Fixed(length, profiled(world, ()))


def test_a_draft_is_the_beginning_of_what_is_guessed() -> None:
    chains = Track([None, Chain(2, (0.9, 0.8, 0.5, 0.5), wrong=7)])
    assert chains.draft("suffix", 0, 4) is EMPTY
    assert chains.draft("suffix", 1, 0) is EMPTY
    draft = chains.draft("suffix", 1, 3)
    assert draft.tokens == (WORD + 1, WORD + 2, 7)
    assert draft.confidence == (0.9, 0.8, 0.5)
    assert draft.is_chain
    assert set(draft.source) == {"suffix"}
    assert len(chains.draft("suffix", 1, 9)) == 4
    assert chains.draft("suffix", 1, 4, least=0.5).tokens == (WORD + 1, WORD + 2, 7), "the last one is the first below"


@pytest.mark.parametrize("seed", range(10))
def test_a_track_by_position_is_right_as_far_as_its_hits_go(seed: int) -> None:
    rng = random.Random(seed)
    hits = [rng.random() < 0.7 for _ in range(60)]
    has = [rng.random() < 0.6 for _ in hits]
    made = track(hits, [rng.random() for _ in hits], has, flat=bool(seed % 2))
    for at in range(60):
        draft = made.draft("lookup", at, 9)
        right = [token == WORD + at + i for i, token in enumerate(draft.tokens)]
        if not has[at]:
            assert not right
            continue
        assert len(right) == min(9, 60 - at, REACH)
        assert all(r for r in right[: right.index(False)]) if False in right else all(hits[at : at + len(right)])
        if False in right:
            first = right.index(False)
            assert all(hits[at : at + first])
            assert not hits[at + first]
            assert set(draft.tokens[first:]) == {WRONG}


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_steps_commit_what_is_right_and_take_what_the_world_says(length: int) -> None:
    """Counted by hand: guesses are right but for every fifth position."""
    hits = [i % 5 != 4 for i in range(101)]
    flat = World(lambda rows: 1 + 0.1 * (rows - 1), other=0.5, drafts={"lookup": 0.25})
    result = Simulation(flat, [one(hits)], fixed(length, flat)).run()
    done, expected, count = 1, 0.0, 0
    while done < 101:
        drafted = min(length, 101 - done - 1)
        right = next((i for i in range(drafted) if not hits[done + i]), drafted)
        expected += 1 + 0.1 * drafted + 0.5 + 0.25 * drafted
        done, count = done + right + 1, count + 1
    assert done == 101
    assert len(result.steps) == count
    assert result.tokens == 100
    assert result.ideal == pytest.approx(expected)
    assert result.plain == pytest.approx(1.5 * 100)
    (tally,) = result.tallies
    assert tally.accepted == 100 - count
    assert tally.drafted == tally.verified == sum(step.verified for step in result.steps)
    assert tally.plain_steps == 1 + sum(not step.verified for step in result.steps), "the first reads the prompt"


def test_plain_decoding_is_neither_faster_nor_slower_than_itself() -> None:
    slow = replace(world("+20%"), attention=0.5, drift=lambda position: 1 + position / 100)
    texts = [one([True] * 50, prompt=p, after=a) for p, a in ((10, 0), (400, 20), (30, 30), (30, 400))]
    for batch, switch in ((1, 0.0), (3, 0.0), (1, 0.3)):
        result = Simulation(replace(slow, switch=switch), texts, fixed(0, slow), batch).run()
        assert result.speedup == pytest.approx(1.0)
        assert result.worst_loss(0.0) == pytest.approx(0.0, abs=1e-9)
        assert sum(step.tokens for step in result.steps) == 4 * 49


def test_what_context_rows_and_changes_cost() -> None:
    machine = Machine(World(lambda rows: float(rows), other=0.0, attention=10.0, switch=0.5, least_rows=2), seed=0)
    assert machine.forward([100], 2, 0) == pytest.approx(2 + 10 * 0.1 + 0.5)
    assert machine.forward([100], 2, 0) == pytest.approx(2 + 10 * 0.1)
    assert machine.forward([100, 300], 4, 0) == pytest.approx(4 + 10 * 0.4 + 0.5), "rows that fill up look at nothing"
    assert machine.forward_with_prompt([100], 6, 0) == pytest.approx(7 + 10 * (0.1 + 6 * 0.003))
    assert machine.forward([100, 300], 4, 0) == pytest.approx(4 + 10 * 0.4 + 0.5), "a prompt's pass changes the rows"
    assert machine.prompt([100], 6, 0) == pytest.approx(7 - 2 + 10 * 6 * 0.003)


def test_noise_is_measured_and_not_what_is_compared() -> None:
    text = one([True, False] * 100)
    exact, noisy = world("+5%"), world("+5%", noise=0.2, outliers=0.1)
    results = [Simulation(w, [text], fixed(2, w), seed=3) for w in (exact, noisy)]
    ideal = [simulation.run().ideal for simulation in results]
    assert ideal[0] == ideal[1]
    assert results[0]._machine.clock.now == pytest.approx(results[0]._machine.clock.ideal)
    assert results[1]._machine.clock.now > 1.05 * results[1]._machine.clock.ideal


def test_a_drafter_reads_what_it_has_missed_once() -> None:
    slow = World(lambda rows: 1.0, other=0.0, drafts={"model": 0.1}, reading={"model": 0.01})
    text = one([True] * 40, "model", prompt=100)
    result = Simulation(slow, [text], fixed(4, slow)).run()
    took = [step.ideal for step in result.steps]
    assert took[0] == pytest.approx(1 + 0.4 + 0.01 * 100)
    assert took[1] == pytest.approx(1 + 0.4 + 0.01), "the last guess was not read when it was made"
    assert took[2] == pytest.approx(took[1])


def test_a_batch_shares_passes_and_drafters() -> None:
    slow = World(lambda rows: float(rows), other=0.0, drafts={"model": 0.1}, draft_row=0.5)
    texts = [one([True] * 41, "model", prompt=1), one([False] * 41, "model", prompt=1)]
    result = Simulation(slow, texts, fixed(3, slow), batch=2).run()
    full = [step for step in result.steps if step.sequences == 2 and step.drafted == 6]
    assert len(full) >= 8
    assert all(step.tokens == 5 for step in full)
    assert {round(step.ideal, 9) for step in full} == {round(8 + 0.1 * (3 + 0.5 * 3), 9)}
    assert {step.plain for step in full} == {5 / 2 * 2.0}


def test_texts_come_when_the_others_have_so_many_tokens() -> None:
    flat = World()
    texts = [one([False] * 30), one([False] * 30, after=10), one([False] * 30, after=10), one([False] * 5, after=200)]
    result = Simulation(flat, texts, fixed(0, flat), batch=4).run()
    assert [step.sequences for step in result.steps[:12]] == [1] * 9 + [1, 2, 3]
    assert result.steps[-1].sequences == 1, "whoever is left does not wait for nobody"
    assert len(result.tallies) == 4


class Watching(Fixed):
    """Keeps what it was told."""

    def __init__(self, length: int, world: World) -> None:
        super().__init__(length, profiled(world, ()))
        self.reports: list[StepReport] = []

    def observe(self, step: StepReport) -> Any:
        self.reports.append(step)
        return super().observe(step)


def test_the_governor_is_told_what_the_engine_would_tell_it() -> None:
    switching = replace(world("+5%", draft=0.1), switch=0.2)
    text = Text(60, {"lookup": track([True] * 60, [0.9] * 60), "model": track([True] * 60, [0.8] * 60)}, prompt=50)
    governor = Watching(3, switching)
    Simulation(switching, [text], governor).run()
    first, *others = governor.reports
    assert (first.prefill_rows, first.ran, first.tokens) == (50, 0, 1)
    for report in others:
        assert report.prefill_rows == 0
        assert report.ran >= report.rows
        assert report.draft_s == pytest.approx(sum(report.draft_s_by.values()))
        assert set(report.draft_s_by) <= {"lookup", "model"}
        (outcome,) = report.outcomes
        assert outcome.drafted.drafters == ({"lookup", "model"} if outcome.drafted else set())
    assert others[-1].outcomes[0].seq.num_tokens == 50 + 60


def test_trees_are_verified_where_there_is_room_for_them() -> None:
    """One drafter is right where the other is wrong, for no reason that can be learnt; only a tree has both."""
    rng = random.Random(2)
    hits = [rng.random() < 0.5 for _ in range(200)]
    tracks = {
        "lookup": track(hits, [0.5] * 200, wrong=5),
        "suffix": track([not hit for hit in hits], [0.5] * 200, wrong=6),
    }
    flat = World()
    chains, trees = (
        Simulation(flat, [Text(200, tracks)], adaptive(flat, tuple(tracks)), tree_room=room).run() for room in (0, 1000)
    )
    assert trees.tokens == chains.tokens
    assert len(trees.steps) < len(chains.steps)


@pytest.mark.parametrize("seed", range(5))
def test_random_draws_are_repeatable_and_in_their_ranges(seed: int) -> None:
    drawn = [random_texts(random.Random(seed), 80, 2, ("lookup", "model")) for _ in range(2)]
    assert drawn[0] == drawn[1]
    for text in drawn[0]:
        for name, made in text.tracks.items():
            assert len(made.chains) == 80
            assert name == "lookup" or all(made.chains)
            assert all(0 <= c <= 1 for chain in made.chains if chain for c in chain.confidence)
    for process in PROCESSES.values():
        assert all(0 < rate < 1 for rate in process(random.Random(seed), 300))
    share = episodes(random.Random(seed), 20_000, 0.25)
    assert sum(share) / 20_000 == pytest.approx(0.25, abs=0.1)
    some = random_world(random.Random(seed))
    assert some.curve in CURVES.values()
    assert some.quiet.noise == some.quiet.outliers == 0
    assert some.quiet.believed == (1.0, 1.0)


def test_a_simulation_is_repeatable() -> None:
    rng = random.Random(0)
    noisy = world("+20%", noise=0.05, outliers=0.01)
    texts = [Text(150, {"model": model_track(rng, constant(rng, 150))})]
    first, second, other = (simulate(noisy, texts, seed=seed) for seed in (1, 1, 2))
    assert first.steps == second.steps
    assert first.steps != other.steps


def test_what_the_profile_shows_may_be_wrong() -> None:
    told = replace(world("+20%", draft=0.1), believed=(1.5, 0.5), switch=0.2)
    costs = profiled(told, ("model", "lookup"))
    assert costs.forward(4) == pytest.approx(1.5 * 1.6)
    assert costs.draft("model", 1) == pytest.approx(0.05)
    assert costs.catch_up("model", 10) == pytest.approx(10 * 0.5 * 0.003)
    assert costs.switch_s == pytest.approx(0.3)
    assert costs.draft("lookup", 1) == 0
