"""Worlds and texts at random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from paceline.bench.tracks import Text, Track, track
from paceline.bench.worlds import Curve, World

CURVES: dict[str, Curve] = {
    "flat": lambda rows: 1.0,
    "+5%": lambda rows: 1 + 0.05 * (rows - 1),
    "+20%": lambda rows: 1 + 0.2 * (rows - 1),
    "+60%": lambda rows: 1 + 0.6 * (rows - 1),
    "linear": lambda rows: float(rows),
    "cliff at 8": lambda rows: 1 + 0.03 * (rows - 1) + (1.5 if rows > 8 else 0.0),
    "stairs of 4": lambda rows: 1 + 0.4 * ((rows - 1) // 4),
    "cliff at 2": lambda rows: 1.0 if rows == 1 else 5.0,
}
DRAFTS = (0.005, 0.05, 0.15, 0.4, 1.5)
"""Seconds of a model's drafted token."""
CATCH_UP = 0.03
"""Share of them that a token takes which the model has not read yet."""


def world(curve: str | Curve = "flat", draft: float = 0.05, catch_up: float = CATCH_UP, **rest: object) -> World:
    """Return a world with a model that drafts; everything else as `World` has it."""
    chosen = CURVES[curve] if isinstance(curve, str) else curve
    return World(chosen, drafts={"model": draft}, reading={"model": catch_up * draft}, **rest)  # type: ignore[arg-type]


def model_track(rng: random.Random, rates: Sequence[float], informative: bool = True, sampled: bool = False) -> Track:
    """A model's guesses: each position has a chance of its own, and the confidence knows it, or does not."""
    chances = [_beta(rng, rate) for rate in rates]
    hits = [rng.random() < chance for chance in chances]
    sure = [round(min(1.0, max(0.0, chance * rng.gauss(1.0, 0.05))), 2) for chance in chances]
    return track(hits, sure if informative else [0.9] * len(hits), sampled=sampled)


def lookup_track(rng: random.Random, copying: Sequence[bool], informative: bool = True) -> Track:
    """A lookup's guesses: nearly all right where the text repeats, now and then one by chance elsewhere."""
    hits, sure, has = [], [], []
    streak = 0
    for copies in copying:
        hit = rng.random() < (0.985 if copies else 0.15)
        streak = min(streak + 1, 8) if copies and hit else rng.choice((2, 2, 2, 3))
        hits.append(hit)
        has.append(copies or rng.random() < 0.4)
        sure.append(1 - 0.6 ** (max(streak, 2) - 0.5) if informative else 0.9)
    return track(hits, sure, has, flat=True, wrong=2)


def constant(rng: random.Random, length: int) -> list[float]:
    return [rng.uniform(0.02, 0.97)] * length


def drifting(rng: random.Random, length: int) -> list[float]:
    low, high, period = rng.uniform(0.05, 0.5), rng.uniform(0.5, 0.95), rng.uniform(100, 600)
    phase = rng.uniform(0, 2 * math.pi)
    return [low + (high - low) * (0.5 + 0.5 * math.sin(phase + 2 * math.pi * i / period)) for i in range(length)]


def bursty(rng: random.Random, length: int) -> list[float]:
    low, high, stay = rng.uniform(0.05, 0.4), rng.uniform(0.8, 0.97), 1 - 1 / rng.uniform(10, 80)
    rates, good = [], rng.random() < 0.5
    for _ in range(length):
        good = good if rng.random() < stay else not good
        rates.append(high if good else low)
    return rates


def episodes(rng: random.Random, length: int, share: float) -> list[bool]:
    """Stretches of repetition that make up about this share of the text."""
    marks: list[bool] = []
    copies = False
    while len(marks) < length:
        mean = 60 * (share if copies else 1 - share) + 1
        marks += [copies] * max(1, round(rng.expovariate(1 / mean)))
        copies = not copies
    return marks[:length]


PROCESSES: dict[str, Callable[[random.Random, int], list[float]]] = {
    "constant": constant,
    "drifting": drifting,
    "bursty": bursty,
}


def random_texts(rng: random.Random, length: int, requests: int, names: Sequence[str]) -> list[Text]:
    """Return texts of one kind: their chances come from one process, whose numbers are each text's own unless it is
    constant."""
    kind, share, informative = rng.choice(list(PROCESSES)), rng.random(), rng.random() < 0.7
    rates = PROCESSES[kind](rng, length)
    texts = []
    for _ in range(requests):
        rates = rates if kind == "constant" else PROCESSES[kind](rng, length)
        tracks = {
            name: model_track(rng, rates, informative)
            if name == "model"
            else lookup_track(rng, episodes(rng, length, share), informative)
            for name in names
        }
        texts.append(Text(length, tracks, rng.choice((20, 100, 400)), category=kind))
    return texts


def random_world(rng: random.Random, curve: str | None = None) -> World:
    """Return a world with a curve of its own, a machine that drifts, and measurements more or less good."""
    draft, slope, noise = rng.choice(DRAFTS), rng.uniform(-0.3, 0.5), rng.choice((0.0, 0.02, 0.05))
    return world(
        curve or rng.choice(list(CURVES)),
        draft,
        attention=rng.choice((0.0, 0.0, 0.02, 0.2)),
        switch=rng.choice((0.0, 0.0, 0.1, 0.25)),
        least_rows=rng.choice((1, 1, 1, 2)),
        noise=noise,
        outliers=rng.choice((0.0, 0.005)) if noise else 0.0,
        drift=lambda position: 1 + slope * position / 1000,
        believed=(math.exp(rng.gauss(0, 0.2)), math.exp(rng.gauss(0, 0.2))) if rng.random() < 0.25 else (1.0, 1.0),
    )


def _beta(rng: random.Random, mean: float, weight: float = 2.0) -> float:
    mean = min(max(mean, 0.01), 0.99)
    return rng.betavariate(weight * mean, weight * (1 - mean))
