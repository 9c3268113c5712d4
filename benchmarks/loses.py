"""When speculation cannot pay: what a row costs by batch and context, and how often guesses have to come true for it.

    python benchmarks/loses.py --models demo TARGET.gguf,DRAFT.gguf --json docs/images/loses.json --images docs/images
    python benchmarks/loses.py --read docs/images/loses.json --images docs/images

Passes of each target, and of the draft model beside it, are of the kind that the governor measures at start, but of all
numbers of rows in both contexts, in --rounds rounds, there and back. Of each the lower quartile makes the curve: others
on the machine only ever make a pass slower. A pass is timed after one of the same number of rows, so that a change of
it does not count.

From those costs alone follow the figures and the tables of docs/when-speculation-loses.md: chains of one length for all
sequences, guesses that come true independently of each other, passes only (what surrounds them in a step, and a change
of the number of rows, come on top).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from common import progress, provenance, write_json

from paceline import LLM
from paceline.bench.plots import Points, lines
from paceline.engine.measure import LONG, MODEL, SHORT, DraftBook, TargetBook, draft_passes, target_passes
from paceline.governor.costs import Costs
from paceline.governor.profile import Point, Subject

BATCHES = (1, 2, 4, 8, 16, 32)
RATES = (0.5, 0.7, 0.9)
CONTEXTS = range(SHORT, LONG + 1, (LONG - SHORT) // 8)
ROWS, LENGTHS = 64, range(1, 17)
"""Most rows of a pass, as many as are measured; lengths of drafts."""
BREAK_EVEN = "acceptance rate to break even"
STEPS = 40
"""Halvings of an interval: more than a float's digits ask for."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, a draft model or none, and what their passes take."""

    target: str
    draft: str | None
    costs: Costs


def tokens(rate: float, length: int) -> float:
    """Return what a pass adds to a text: 1 + a + … + a^length (Leviathan et al., 2211.17192)."""
    return sum(rate**i for i in range(length + 1))


def times(costs: Costs, batch: int, length: int, context: float, draft: bool) -> float:
    """Return how many plain passes a pass with drafts takes, drafting included."""
    guessing = length * costs.draft(MODEL, batch, context) if draft else 0.0
    return (costs.forward(batch * (length + 1), context) + guessing) / costs.forward(batch, context)


def lengths(batch: int) -> list[int]:
    """Return the lengths of drafts with which a pass has no more rows than were measured."""
    return [length for length in LENGTHS if batch * (length + 1) <= ROWS]


def break_even(costs: Costs, batch: int, context: float, draft: bool) -> float | None:
    """Return the least acceptance rate at which some length is no slower than plain, None where none is at any rate."""
    needed = [(length, times(costs, batch, length, context, draft)) for length in lengths(batch)]
    rates = [rate_of(length, time) for length, time in needed if time <= length + 1]
    return min(rates, default=None)


def rate_of(length: int, time: float) -> float:
    """Return the acceptance rate at which a pass adds so many tokens; 0 where one is enough."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if tokens(middle, length) >= time else (middle, high)
    return high


def best(costs: Costs, batch: int, rate: float, draft: bool) -> tuple[int, float]:
    """Return the length that is the fastest at an acceptance rate, 0 for none, and its speed over plain decoding's."""
    ratios = {n: tokens(rate, n) / times(costs, batch, n, SHORT, draft) for n in lengths(batch)}
    return max({0: 1.0, **ratios}.items(), key=lambda item: item[1])


def measure(models: str, rounds: int) -> Pair:
    """Load "TARGET" or "TARGET,DRAFT" and time its passes."""
    target, _, draft = models.partition(",")
    progress(f"{Path(target).stem}: loading")
    llm = LLM(target, draft=draft or None, keep_costs=False, context=LONG + 2 * SHORT)
    runner, drafter = llm.engine.target, llm.engine.desk.drafters.get(MODEL)
    costs, room = Costs(runner.info.least_rows), LONG + SHORT
    subjects = [target_passes(runner, TargetBook(costs), room, max(BATCHES))]
    if drafter is not None:
        reader: Any = drafter
        subjects.append(draft_passes(reader._reader._runner, DraftBook(costs), room, max(BATCHES)))
    for subject, seconds in zip(subjects, time_passes(subjects, rounds, Path(target).stem), strict=True):
        for (rows, context), taken in sorted(seconds.items()):
            subject.book.learn(rows, float(np.quantile(taken, 0.25)), subject.looks((rows, context)))
    return Pair(Path(target).stem, Path(draft).stem if draft else None, costs)


def time_passes(subjects: Sequence[Subject], rounds: int, name: str) -> list[dict[Point, list[float]]]:
    """Return the seconds of each point, a round each; the models take turns."""
    found: list[dict[Point, list[float]]] = [defaultdict(list) for _ in subjects]
    order = [(i, point) for i, subject in enumerate(subjects) for point in grid(subject)]
    for round_ in range(rounds):
        progress(f"{name}: round {round_ + 1} of {rounds}")
        for i, point in order[:: -1 if round_ % 2 else 1]:
            subjects[i].run(*point)
            start = perf_counter()
            subjects[i].run(*point)
            found[i][point].append(perf_counter() - start)
    progress("")
    return found


def grid(subject: Subject) -> list[Point]:
    """Return all numbers of rows that a model has, in both contexts."""
    return [(rows, n) for n in (SHORT, LONG) for rows in sorted({rows for rows, _ in (*subject.first, *subject.then)})]


def as_json(pairs: Sequence[Pair]) -> dict[str, Any]:
    rows = [{"target": pair.target, "draft": pair.draft, "costs": pair.costs.state()} for pair in pairs]
    return {"pairs": rows, "provenance": provenance()}


def read(path: Path) -> list[Pair]:
    pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
    return [Pair(each["target"], each["draft"], Costs.restore(each["costs"])) for each in pairs]


def ways(pairs: Sequence[Pair]) -> Iterator[tuple[str, Pair, bool]]:
    """Yield who drafts for whom, named: a drafter that takes no time, and the draft model."""
    for pair in pairs:
        yield f"{short(pair.target)}, free", pair, False
        if pair.draft:
            yield f"{short(pair.target)}, {short(pair.draft)} drafts", pair, True


def short(model: str) -> str:
    """Return the last part of a model's name, mostly its size: a legend has little room."""
    return model.rpartition("-")[2]


def rows_figure(pairs: Sequence[Pair]) -> str:
    series: dict[str, Points] = {}
    for pair in pairs:
        for context in (SHORT, LONG):
            one = pair.costs.forward(1, context)
            series[f"{short(pair.target)}, {context:,}"] = [
                (n, pair.costs.forward(n, context) / one) for n in shown_rows(pair)
            ]
    return lines(
        "What a pass takes, by its rows and the tokens before them", "rows of the pass", "passes of one row", series
    )


def shown_rows(pair: Pair) -> list[int]:
    """Return the numbers of rows that were measured, and one: a runner may fill a lone row up."""
    return sorted({1, *(n for n in pair.costs.target.measured_rows if n <= ROWS)})


def batch_figure(pairs: Sequence[Pair]) -> str:
    series = {
        name: line((n, break_even(pair.costs, n, SHORT, draft)) for n in range(1, max(BATCHES) + 1))
        for name, pair, draft in ways(pairs)
    }
    return lines("Acceptance rate to break even, by batch and drafter", "sequences", BREAK_EVEN, series)


def context_figure(pairs: Sequence[Pair]) -> str:
    series = {
        f"{name}, {batch}": line((n, break_even(pair.costs, batch, n, draft)) for n in CONTEXTS)
        for name, pair, draft in ways(pairs)
        for batch in (1, 4)
    }
    title = "Acceptance rate to break even, by context, drafter and batch"
    return lines(title, "tokens before the rows", BREAK_EVEN, series)


def line(points: Iterable[tuple[float, float | None]]) -> Points:
    """Return a line's points, without those where nothing breaks even."""
    return [(x, y) for x, y in points if y is not None]


def draw(pairs: Sequence[Pair], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in (("rows", rows_figure), ("batch", batch_figure), ("context", context_figure)):
        (folder / f"loses-{name}.svg").write_text(on_paper(figure(pairs)), encoding="utf-8")


def on_paper(svg: str) -> str:
    """Return a figure with colours of its own, for pages that show it as an image."""
    return svg.replace("<svg ", '<svg style="background:#fff;color:#24292f" ', 1) + "\n"


def show(pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        print(f"{pair.target}, milliseconds of a pass, by the tokens before its rows")
        shown = shown_rows(pair)
        table(["rows", *map(str, shown)], [took(pair, shown, context) for context in (SHORT, LONG)])
        if pair.draft:
            drafting = [f"{1e3 * pair.costs.draft(MODEL, batch):.1f}" for batch in BATCHES]
            table(["sequences", *map(str, BATCHES)], [[f"{pair.draft}, a token of each", *drafting]])
    for name, pair, draft in ways(pairs):
        print(f"{name}: acceptance rate to break even; best length and ratio at a rate of")
        table(["sequences", "break-even", *map(str, RATES)], [cells(pair, batch, draft) for batch in BATCHES])


def took(pair: Pair, rows: Sequence[int], context: int) -> list[str]:
    return [f"{context:,} tokens", *(f"{1e3 * pair.costs.forward(n, context):.1f}" for n in rows)]


def cells(pair: Pair, batch: int, draft: bool) -> list[str]:
    least = break_even(pair.costs, batch, SHORT, draft)
    found = (best(pair.costs, batch, rate, draft) for rate in RATES)
    told = [f"{length}: {ratio:.2f}" if length else "none" for length, ratio in found]
    return [str(batch), "never" if least is None else f"{least:.2f}", *told]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["demo"], help="TARGET, or TARGET,DRAFT with a draft model")
    parser.add_argument("--rounds", type=int, default=9, help="times that each pass is measured; default: 9")
    parser.add_argument("--read", type=Path, help="a file that --json has written, instead of measuring")
    parser.add_argument("--json", type=Path, help="write every cost, with where it comes from")
    parser.add_argument("--images", type=Path, help="a folder for the figures")
    given = parser.parse_args()
    pairs = read(given.read) if given.read else [measure(models, given.rounds) for models in given.models]
    if not given.read:
        write_json(given.json, as_json(pairs))
    show(pairs)
    if given.images:
        draw(pairs, given.images)


if __name__ == "__main__":
    main()
