"""Does `tune` foresee what is measured? Each drafter at each length, by category: predicted against measured ratios.

    python benchmarks/tune_check.py --model TARGET.gguf --draft DRAFTER.gguf --json out/tune.json

A drafter is weighed as `paceline tune` does it, by one run at the deepest length; then every length is measured beside
plain decoding, in turns. Held against two bounds: nine of ten cells within 10 %, and the drafter that was chosen is the
one that is measured best, or within 3 % of it.
"""

from __future__ import annotations

import math
from typing import Any

from common import progress, provenance, write_json
from modes import arguments, load, sampling

from paceline.bench.tune.tune import Choice, Tuner
from paceline.bench.workloads import load as load_workload

WITHIN, CHOSEN = 0.10, 0.97


def main() -> None:
    parser = arguments(__doc__, max_tokens=48, prompts=False)
    parser.add_argument("--workload", default="ours")
    parser.add_argument("--count", type=int, default=1, help="prompts of each category")
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=(1, 2, 4, 8))
    given = parser.parse_args()
    llm = load(given)
    tuner = Tuner(llm, given.draft, load_workload(given.workload, given.count), sampling(given))
    cells: list[dict[str, Any]] = []
    for drafter in given.drafters or tuner.drafters():
        choices = [c for c in tuner.weigh(drafter, say).choices if c.length in given.lengths]
        for choice in choices:
            cells += measured(tuner, choice)
            write_json(given.json, {"cells": cells, "provenance": provenance()})
    progress("")
    show(cells)


def measured(tuner: Tuner, choice: Choice) -> list[dict[str, Any]]:
    found = tuner.check(choice, say)
    return [
        {
            "drafter": choice.drafter,
            "length": choice.length,
            "category": category,
            "predicted": choice.by_category[category].ratio,
            "measured": seen.ratio,
        }
        for category, seen in found.items()
    ]


def show(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        off = cell["predicted"] / cell["measured"] - 1
        print(
            f"{cell['drafter']:8} {cell['length']:2} {cell['category']:12} {cell['predicted']:6.2f} predicted, ", end=""
        )
        print(f"{cell['measured']:6.2f} measured {off:+.0%}{'' if abs(off) <= WITHIN else '  *'}")
    near = sum(abs(cell["predicted"] / cell["measured"] - 1) <= WITHIN for cell in cells)
    print(f"within {WITHIN:.0%}: {near} of {len(cells)}")
    kinds = dict.fromkeys((cell["drafter"], cell["length"]) for cell in cells)
    means = {kind: {what: mean(cells, kind, what) for what in ("predicted", "measured")} for kind in kinds}
    chosen = max(kinds, key=lambda kind: means[kind]["predicted"])
    best = max(kinds, key=lambda kind: means[kind]["measured"])
    share = means[chosen]["measured"] / means[best]["measured"]
    print(f"chosen {chosen}, best measured {best}: {share:.3f} of it ({'holds' if share >= CHOSEN else 'FAILS'})")


def mean(cells: list[dict[str, Any]], kind: tuple[str, int], what: str) -> float:
    mine = [math.log(cell[what]) for cell in cells if (cell["drafter"], cell["length"]) == kind]
    return math.exp(sum(mine) / len(mine))


def say(what: str, done: int, whole: int) -> None:
    progress(f"{what} {done}/{whole}")


if __name__ == "__main__":
    main()
