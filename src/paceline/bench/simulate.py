"""The governor against random worlds and texts, or recorded ones: what it makes of them, and what could be made.

python -m paceline.bench.simulate --cells 300 --seed 0
python -m paceline.bench.simulate --recorded traces.jsonl
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from paceline.bench import recorded
from paceline.bench.hindsight import hindsight, oracle
from paceline.bench.processes import CURVES, random_texts, random_world
from paceline.bench.simulation import Result, Step, simulate
from paceline.bench.tracks import Text
from paceline.bench.worlds import World
from paceline.errors import PacelineError

CREWS = (("lookup",), ("model",), ("lookup", "model"))
LENGTH, REQUESTS = 384, 2
"""Tokens of a random text, and how many there are in a cell."""
SAME = 0.99
"""Speed-up below which something is slower than plain decoding."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One world with its texts, and how the governor did there."""

    label: str
    speedup: float
    best: float
    """Speed-up of the best fixed choice in hindsight."""
    oracle: float
    """Of one that knows what will be accepted."""
    loss: float
    """Largest time lost over any stretch, in plain steps, less epsilon of that stretch's time."""
    longest: float
    """The longest step, in plain steps."""
    steps: int

    @property
    def regret(self) -> float:
        """Share of the time that the best fixed choice would have saved; negative where the governor was faster."""
        return 1 - self.speedup / self.best

    @property
    def beyond(self) -> float:
        """Share of the time that one who knows everything would have saved."""
        return 1 - self.speedup / self.oracle


def cell(world: World, texts: Sequence[Text], label: str, seed: int = 0) -> Cell:
    """Run texts one by one through the governor, and hold it against hindsight."""
    return _judged(world, texts, simulate(world, texts, seed=seed), label)


def random_cell(seed: int, length: int = LENGTH, requests: int = REQUESTS, curve: str | None = None) -> Cell:
    """Draw a world and texts, and run them."""
    rng = random.Random(seed)
    names = rng.choice(CREWS)
    curve = curve or rng.choice(list(CURVES))
    world = random_world(rng, curve)
    texts = random_texts(rng, length, requests, names)
    return cell(world, texts, f"seed={seed} {curve} {texts[0].category} {_described(world)}", seed)


def random_cells(seeds: Iterable[int]) -> Iterator[Cell]:
    return map(random_cell, seeds)


def recorded_cells(path: Path) -> list[Cell]:
    """Run recorded prompts one after the other through one governor, and judge it by category: each has the fixed
    choice that is best for it alone."""
    world, texts = recorded.load(path)
    result = simulate(world, texts)
    parts = list(zip(texts, _by_text(texts, result.steps), strict=True))
    found = []
    for category in dict.fromkeys(text.category for text in texts):
        mine = [text for text in texts if text.category == category]
        steps = [step for text, part in parts if text.category == category for step in part]
        if steps:
            found.append(_judged(world, mine, replace(result, steps=steps), f"{category or 'all'} ({len(mine)})"))
    return found


def _by_text(texts: Sequence[Text], steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the steps of each text, of which the first token comes with its prompt."""
    rest = iter(steps)
    for text in texts:
        part, tokens = [], 1
        while tokens < text.length:
            part.append(next(rest))
            tokens += part[-1].tokens
        yield part


def _judged(world: World, texts: Sequence[Text], result: Result, label: str) -> Cell:
    best = hindsight(world, texts)
    return Cell(
        f"{label} best={best.name}:{best.length}",
        result.speedup,
        result.plain / best.seconds,
        result.plain / oracle(world, texts),
        result.worst_loss(),
        result.longest,
        len(result.steps),
    )


def summary(cells: Sequence[Cell]) -> str:
    """Return what many cells say together."""
    regrets, losses = sorted(c.regret for c in cells), [c.loss for c in cells]
    return (
        f"{len(cells)} cells, {sum(c.steps for c in cells)} steps: regret mean {fmean(regrets):.2%} "
        f"(gains as none {fmean(max(0.0, r) for r in regrets):.2%}), median {median(regrets):.2%}, "
        f"90 % {regrets[int(0.9 * len(regrets))]:.2%}, worst {regrets[-1]:.2%}; "
        f"against the oracle mean {fmean(c.beyond for c in cells):.2%}; worst loss {max(losses):.1f} plain steps; "
        f"slower than plain in {sum(c.speedup < SAME for c in cells) / len(cells):.1%}"
    )


def _described(world: World) -> str:
    """Return what of a world is out of the ordinary."""
    notes = [f"draft={world.drafts['model']:g}"]
    for name in ("attention", "switch", "noise", "outliers"):
        if value := getattr(world, name):
            notes.append(f"{name}={value:g}")
    if world.least_rows > 1:
        notes.append(f"least_rows={world.least_rows}")
    if world.believed != (1.0, 1.0):
        notes.append("believed=" + ",".join(f"{factor:.2f}" for factor in world.believed))
    return " ".join(notes)


def _line(found: Cell) -> str:
    return (
        f"{found.regret:8.2%} {found.speedup:7.3f} {found.best:7.3f} {found.oracle:7.3f} {found.loss:6.1f}  "
        f"{found.label}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=300, help="random worlds with texts")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them; the others follow")
    parser.add_argument("--worst", type=int, default=10, help="list so many with the greatest regret, and loss")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="recorded traces instead")
    given = parser.parse_args(argv)
    write = sys.stdout.write
    if given.recorded:
        cells = recorded_cells(given.recorded)
        listed = {"category": cells}
    else:
        cells = list(random_cells(range(given.seed, given.seed + given.cells)))
        by_regret = sorted(cells, key=lambda c: -c.regret)
        listed = {"regret": by_regret[: given.worst], "loss": sorted(cells, key=lambda c: -c.loss)[: given.worst]}
    for title, some in listed.items():
        write(f"{'regret':>8} {'speedup':>7} {'best':>7} {'oracle':>7} {'loss':>6}  by {title}\n")
        write("".join(f"{_line(found)}\n" for found in some))
    write(summary(cells) + "\n")


if __name__ == "__main__":
    logging.getLogger("paceline").setLevel(logging.ERROR)  # random texts give reason for many an alarm
    try:
        main()
    except PacelineError as error:
        sys.stderr.write(f"paceline: {error}\n")
        sys.exit(2)
