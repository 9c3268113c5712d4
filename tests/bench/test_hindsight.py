"""Hindsight: the fast sums equal whole simulations, and nobody beats the one who knows everything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from paceline.bench.hindsight import LENGTHS, choices, hindsight, oracle
from paceline.bench.processes import constant, episodes, lookup_track, model_track, random_texts, random_world, world
from paceline.bench.simulation import Simulation, simulate
from paceline.bench.tracks import Chain, Text, Track
from paceline.bench.worlds import World, profiled
from paceline.governor.fixed import Fixed


@pytest.mark.parametrize("seed", range(12))
def test_a_fixed_length_takes_what_its_simulation_takes(seed: int) -> None:
    """With one drafter there is no choice to make; every length is simulated by the engine's desk."""
    rng = random.Random(seed)
    drawn = random_world(rng)
    texts = random_texts(rng, 120, 2, [rng.choice(("lookup", "model"))])
    found = {choice.length: choice.seconds for choice in choices(drawn, texts)}
    assert tuple(found) == LENGTHS
    for length in (0, 1, 4, 16):
        # One text after the other, each on a machine of its own, as the sums have it.
        runs = [Simulation(drawn.quiet, [text], Fixed(length, profiled(drawn.quiet, ()))).run() for text in texts]
        assert found[length] == pytest.approx(sum(run.ideal for run in runs))


@pytest.mark.parametrize("seed", range(12))
def test_nobody_beats_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    drawn = random_world(rng)
    texts = random_texts(rng, 120, 2, ("lookup", "model"))
    best = hindsight(drawn, texts)
    assert oracle(drawn, texts) <= best.seconds
    assert oracle(drawn, texts) <= simulate(drawn, texts).ideal
    assert best.seconds == min(choice.seconds for choice in choices(drawn, texts))
    plain = next(choice for choice in choices(drawn, texts) if choice.length == 0)
    assert best.seconds <= plain.seconds


def brute(world: World, text: Text, done: int = 1) -> float:
    """Try everything that the oracle may do."""
    if done >= text.length:
        return 0.0
    least = float("inf")
    for name, track in text.tracks.items():
        chain = track.chains[done]
        for count in range(16 if chain else 1):
            right = min(count, chain.right if chain else 0, text.length - done - 1)
            took = world.other + count * world.drafts.get(name, 0.0) + world.forward(1 + count, text.prompt + done)
            least = min(least, took * world.drift(done) + brute(world, text, done + 1 + right))
    return least


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_does_the_best_of_all_that_can_be_done(seed: int) -> None:
    rng = random.Random(seed)
    text = random_texts(rng, 5, 1, ("lookup", "model"))[0]
    drawn = replace(random_world(rng), switch=0.0)
    assert oracle(drawn, [text]) == pytest.approx(brute(drawn, text))


def chains(right: int, confidence: float, length: int = 60) -> Track:
    return Track([Chain(right, (confidence,) * 8)] * length)


def test_of_several_drafters_the_first_with_a_guess_or_the_surest_drafts() -> None:
    tracks = {"lookup": chains(0, 0.3), "suffix": chains(7, 0.9)}
    best = hindsight(World(), [Text(60, tracks)])
    assert (best.name, best.length) == ("lookup+suffix", 8) or best.name == "suffix"
    named = {(choice.name, choice.length): choice.seconds for choice in choices(World(), [Text(60, tracks)])}
    assert named["lookup+suffix", 8] == named["suffix", 8] < named["lookup>suffix", 8]
    seldom = {"lookup": Track([Chain(3, (0.5,) * 8) if i % 3 else None for i in range(60)]), "suffix": chains(3, 0.4)}
    named = {(choice.name, choice.length): choice.seconds for choice in choices(World(), [Text(60, seldom)])}
    assert named["lookup>suffix", 3] == named["suffix", 3] < named["lookup", 3]


def test_every_set_of_three_drafters_that_is_worth_a_look_is_tried() -> None:
    tracks = {name: chains(1, 0.5) for name in ("prediction", "suffix", "model")}
    names = {choice.name for choice in choices(World(), [Text(60, tracks)])}
    assert len(names) == 3 + 2 * 3 + 2
    assert {"prediction", "suffix>model", "prediction+suffix+model"} <= names


def test_changes_of_rows_are_paid_for_as_the_engine_pays() -> None:
    """A drafter with a guess at every other step: rows are kept, filled up, while that is cheaper than a change."""
    tracks = {"lookup": Track([Chain(0, (0.9,) * 4) if i % 2 else None for i in range(41)])}
    switching = World(lambda rows: 1 + 0.1 * (rows - 1), other=0.0, switch=0.5)
    text = Text(41, tracks)
    named = {choice.length: choice.seconds for choice in choices(switching, [text])}
    assert named[0] == pytest.approx(40 + 0.5)
    unpaid = {choice.length: choice.seconds for choice in choices(replace(switching, switch=0.0), [text])}
    assert unpaid[1] == pytest.approx(20 * 1.1 + 20)
    assert unpaid[1] < named[1] < unpaid[1] + 20 * 0.5


@pytest.mark.parametrize("batch", [2, 4])
def test_batches_are_simulated(batch: int) -> None:
    rng = random.Random(batch)
    tracks = [
        {"lookup": lookup_track(rng, episodes(rng, 60, 0.5)), "model": model_track(rng, constant(rng, 60))}
        for _ in range(batch)
    ]
    texts = [Text(60, made, prompt=20) for made in tracks]
    shared = world("+20%")
    found = list(choices(shared, texts, batch))
    assert {choice.name for choice in found} == {"lookup", "model", "lookup+model"}
    for choice in found:
        if choice.length == 0:
            plain = Simulation(shared, texts, Fixed(0, profiled(shared, ())), batch).run()
            assert choice.seconds == pytest.approx(plain.ideal)
