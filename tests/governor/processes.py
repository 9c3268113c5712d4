"""Worlds and texts at random, and what the best fixed choice would have made of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from paceline.governor.fixed import Fixed

from .simulate import Curve, Simulation, Text, Track, World, simulate

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
COARSE = (0, 1, 2, 4, 8)


def hindsight(world: World, texts: Sequence[Text], batch: int = 1) -> tuple[float, str]:
    """Return the least ideal time of any fixed length of any drafters, and which that was."""
    quiet = replace(world, noise=0.0, outliers=0.0)
    names = tuple(texts[0].tracks)
    best = (math.inf, "")
    for chosen in [(name,) for name in names] + ([names] if len(names) > 1 else []):
        cut = [replace(text, tracks={name: text.tracks[name] for name in chosen}) for text in texts]
        for length in LENGTHS if batch == 1 else COARSE:
            if batch == 1:
                seconds = sum(_alone(quiet, text, chosen, length) for text in cut)
            else:
                seconds = Simulation(quiet, cut, Fixed(length), batch).run().ideal
            best = min(best, (seconds, f"{'+'.join(chosen)}:{length}"))
    return best


def _alone(world: World, text: Text, chosen: Sequence[str], length: int) -> float:
    """Return what one text takes at a fixed length; the first drafter that has a guess drafts."""
    seconds, done, read = world.curve(text.prompt) + world.other, 1, 0
    runs = {name: _runs(text.tracks[name].hits) for name in chosen}
    while done < text.length:
        most, took, right = min(length, text.length - done - 1), world.other, 0
        name = next((n for n in chosen if (has := text.tracks[n].has) is None or has[done]), None) if most else None
        if name == "model":
            took += world.draft * (most + world.catch_up * max(0, text.prompt + done - read - 1))
            read = text.prompt + done + most - 1
        if name:
            right = min(runs[name][done], most)
        took += world.curve(1 + (most if name else 0))
        seconds += took * world.drift(done)
        done += 1 + right
    return seconds


def _runs(hits: Sequence[bool]) -> list[int]:
    """Return for each position how many guesses from there on are right, one after the other."""
    found = [0] * (len(hits) + 1)
    for at in reversed(range(len(hits))):
        found[at] = found[at + 1] + 1 if hits[at] else 0
    return found


def _beta(rng: random.Random, mean: float, weight: float = 2.0) -> float:
    mean = min(max(mean, 0.01), 0.99)
    return rng.betavariate(weight * mean, weight * (1 - mean))


def model_track(rng: random.Random, rates: Sequence[float], informative: bool = True, sampled: bool = False) -> Track:
    """A model's guesses: each position has a chance of its own, and the confidence knows it, or does not."""
    chances = [_beta(rng, rate) for rate in rates]
    hits = [rng.random() < chance for chance in chances]
    sure = [min(1.0, max(0.0, chance * rng.gauss(1.0, 0.05))) for chance in chances]
    return Track(hits, sure if informative else [0.9] * len(hits), sampled=sampled)


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
    return Track(hits, sure, has, flat=True)


def constant(rate: float, length: int) -> list[float]:
    return [rate] * length


def drifting(rng: random.Random, length: int) -> list[float]:
    low, high, period = rng.uniform(0.05, 0.5), rng.uniform(0.5, 0.95), rng.uniform(100, 600)
    phase = rng.uniform(0, 2 * math.pi)
    return [low + (high - low) * (0.5 + 0.5 * math.sin(phase + 2 * math.pi * i / period)) for i in range(length)]


def bursty(rng: random.Random, length: int, low: float = 0.2, high: float = 0.95, stay: float = 0.97) -> list[float]:
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


def random_texts(rng: random.Random, length: int, requests: int, names: Sequence[str]) -> list[Text]:
    """Texts of one kind."""
    kind, rate, share = rng.choice(("constant", "drifting", "bursty")), rng.uniform(0.02, 0.97), rng.random()
    informative = rng.random() < 0.7
    texts = []
    for _ in range(requests):
        rates = {
            "constant": lambda: constant(rate, length),
            "drifting": lambda: drifting(rng, length),
            "bursty": lambda: bursty(rng, length),
        }[kind]()
        made = {
            "lookup": lambda: lookup_track(rng, episodes(rng, length, share), informative),
            "model": lambda rates=rates: model_track(rng, rates, informative),
        }
        texts.append(Text(length, {name: made[name]() for name in names}, prompt=rng.choice((20, 100, 400))))
    return texts


def random_world(rng: random.Random, curve: str | None = None) -> World:
    slope, noise = rng.uniform(-0.3, 0.5), rng.choice((0.0, 0.02, 0.05))
    return World(
        curve=CURVES[curve or rng.choice(list(CURVES))],
        draft=rng.choice(DRAFTS),
        noise=noise,
        outliers=rng.choice((0.0, 0.005)) if noise else 0.0,
        drift=lambda position: 1 + slope * position / 1000,
    )


@dataclass(frozen=True)
class Cell:
    """One random draw of everything, and how the governor did."""

    seed: int
    label: str
    speedup: float
    best: float
    """Speed-up of the best fixed choice in hindsight."""
    loss: float
    """Time beyond plain, in plain steps, less 1 % of the time."""

    @property
    def regret(self) -> float:
        return 1 - self.speedup / self.best


def cell(seed: int, length: int = 512, requests: int = 2, batch: int = 1, curve: str | None = None) -> Cell:
    rng = random.Random(seed)
    names = rng.choice((("lookup",), ("model",), ("lookup", "model")))
    world = random_world(rng, curve)
    texts = random_texts(rng, length, requests, names)
    result = simulate(world, texts, batch, seed=seed)
    best, choice = hindsight(world, texts, batch)
    name = curve or next(n for n, c in CURVES.items() if c is world.curve)
    label = f"{name} draft={world.draft} noise={world.noise} {'+'.join(names)} best={choice}"
    return Cell(seed, label, result.speedup, result.plain / best, result.worst_loss())


def cells(seeds: Sequence[int], **rest: Any) -> Iterator[Cell]:
    return (cell(seed, **rest) for seed in seeds)


def summary(found: Sequence[Cell]) -> str:
    regrets = sorted(c.regret for c in found)
    losses = sorted(c.loss for c in found)
    return (
        f"{len(found)} cells: regret mean {fmean(regrets):.2%}, median {median(regrets):.2%}, "
        f"90 % {regrets[int(0.9 * len(regrets))]:.2%}, worst {regrets[-1]:.2%}; "
        f"worst loss {losses[-1]:.1f} plain steps; slower than plain in {sum(c.speedup < 0.99 for c in found)}"
    )
