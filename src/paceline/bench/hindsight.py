"""What the best choice would have taken: a fixed length of fixed drafters, and one that knows what is accepted.

All in ideal time, without the prompts. Neither has to find anything out, and the drafters of a fixed choice read only
what they must.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.bench.simulation import Simulation
from paceline.bench.tracks import Chain, Text
from paceline.bench.worlds import World, profiled
from paceline.governor.costs import Costs
from paceline.governor.fixed import Fixed

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
COARSE = (0, 1, 2, 4, 8)
"""For several texts at a time, which have to be simulated."""


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A fixed choice, and its ideal time."""

    seconds: float
    name: str
    length: int


def hindsight(world: World, texts: Sequence[Text], batch: int = 1) -> Choice:
    """Return the fastest fixed length of any drafters.

    Those are each alone, every two, and all: of several either the first that has a guess drafts, or all do and the
    branch is verified of which most is expected by the drafters' confidences, as in an engine that drafts always.
    """
    return min(choices(world, texts, batch))


def choices(world: World, texts: Sequence[Text], batch: int = 1) -> Iterator[Choice]:
    """Yield what every fixed choice takes."""
    quiet, names = world.quiet, tuple(texts[0].tracks)
    if batch > 1:
        yield from (_together(quiet, texts, chosen, n, batch) for chosen in _sets(names) for n in COARSE)
        return
    for chosen in _sets(names):
        for way in (_first, _likeliest)[: len(chosen)]:
            mark = "+" if way is _likeliest else ">"
            for length in LENGTHS:
                seconds = sum(_alone(quiet, text, chosen, way, length) for text in texts)
                yield Choice(seconds, mark.join(chosen), length)


def oracle(world: World, texts: Sequence[Text]) -> float:
    """Return the least time in which texts can be written one by one, by one who knows what every drafter guesses.

    A bound that nobody reaches: it never drafts in vain, and neither reading nor a change of rows costs it anything.
    """
    return sum(_known(world.quiet, text) for text in texts)


def _sets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    sizes = sorted({1, min(2, len(names)), len(names)})
    return itertools.chain.from_iterable(itertools.combinations(names, size) for size in sizes)


Way = Callable[[Sequence[str], Sequence[Chain | None], int], tuple[Sequence[str], Chain | None]]
"""Who is asked, and whose chain is verified."""


def _first(names: Sequence[str], chains: Sequence[Chain | None], length: int) -> tuple[Sequence[str], Chain | None]:
    for place, chain in enumerate(chains):
        if chain is not None:
            return names[: place + 1], chain
    return names, None


def _likeliest(names: Sequence[str], chains: Sequence[Chain | None], length: int) -> tuple[Sequence[str], Chain | None]:
    best, most = None, 0.0
    for chain in chains:
        if chain is not None:
            expected = sum(itertools.accumulate(chain.confidence[:length], lambda a, b: a * b))
            if best is None or expected > most:
                best, most = chain, expected
    return names, best


def _alone(world: World, text: Text, chosen: Sequence[str], way: Way, length: int) -> float:
    """Return what one text takes that runs alone."""
    passes, tracks = _Passes(world), [text.tracks[name].chains for name in chosen]
    seconds, done, read = 0.0, 1, dict.fromkeys(world.reading, 0)
    while done < text.length:
        most = min(length, text.length - done - 1)
        asked, chain = way(chosen, [chains[done] for chains in tracks], most) if most else ((), None)
        rows = min(most, len(chain.confidence)) if chain else 0
        tokens = min(rows, chain.right) + 1 if chain else 1
        took, here = world.other + world.token * tokens, text.prompt + done
        for name in asked:
            guessed = text.tracks[name].chains[done]
            if name in world.drafts:
                count = min(most, len(guessed.confidence)) if guessed else 0
                took += world.drafts[name] * max(1, count)
                if name in read:
                    took += world.reading[name] * max(0, here - read[name] - 1)
                    read[name] = here + count - 1
        seconds += (took + passes.run(1 + rows, not rows, here)) * world.drift(done)
        done += tokens
    return seconds


class _Passes:
    """Passes of one text; where a change of rows costs time they are filled up as the engine does it."""

    def __init__(self, world: World) -> None:
        self._world, self._ran = world, 0
        self._costs: Costs | None = profiled(world, ()) if world.switch else None

    def run(self, rows: int, plain: bool, context: float) -> float:
        world = self._world
        if self._costs is None:
            return world.forward(rows, context)
        ran = self._costs.steady(rows, plain)
        took = world.forward(ran, context * min(rows / ran, 1.0)) + (world.switch if ran != self._ran else 0.0)
        self._ran = ran
        self._costs.observe(rows, took, ran, context)
        return took


def _together(world: World, texts: Sequence[Text], chosen: Sequence[str], length: int, batch: int) -> Choice:
    cut = [replace(text, tracks={name: text.tracks[name] for name in chosen}) for text in texts]
    result = Simulation(world, cut, Fixed(length, profiled(world, ())), batch).run()
    return Choice(result.ideal, "+".join(chosen), length)


def _known(world: World, text: Text) -> float:
    """Return the least time for one text, from its end to its beginning."""
    best = [0.0] * (text.length + 1)
    for done in range(text.length - 1, 0, -1):
        here, factor = text.prompt + done, world.drift(done)
        least = math.inf
        for each, right in _useful(world, text, done):
            for count in range(right + 1):
                took = world.other + world.token * (1 + count) + each * count + world.forward(1 + count, here)
                least = min(least, took * factor + best[done + count + 1])
        best[done] = least
    return best[1] if text.length > 1 else 0.0


def _useful(world: World, text: Text, done: int) -> Iterator[tuple[float, int]]:
    """Yield what a drafter's token costs and how many come true here; of drafters that cost as much the best."""
    found = {0.0: 0}
    for name, track in text.tracks.items():
        chain, each = track.chains[done], world.drafts.get(name, 0.0)
        if chain is not None:
            found[each] = max(found.get(each, 0), min(chain.right, text.length - done - 1))
    yield from found.items()
