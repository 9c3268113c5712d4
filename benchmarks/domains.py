"""Auto against every fixed choice of length and drafters, by category of prompts, without being told the category.

    python benchmarks/domains.py --model demo
    python benchmarks/domains.py --model TARGET.gguf --draft DRAFTER.gguf --prompts spec_bench.jsonl peers.jsonl \\
        --per-category 2 --lengths 1,2,4,8 --drafter-sets all,suffix,model --json out/domains.json

Every prompt is decoded plainly, by `auto` and by every fixed choice (of drafters and length), in an order that turns
from prompt to prompt, and plainly again. Length 0 is plain decoding itself. "all" is what `auto` uses.

Which choice is best is known afterwards only, and the best of many that were measured on a few prompts is best by luck
in part. So two comparisons are given: with the best on the very prompts, which flatters it, and with the choice that
was best on one half of the category's prompts, measured on the other half, and the other way round. Wanted is 0.97 of
the first in every category.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import geometric, provenance, read_prompts, write_json
from modes import AUTO, PLAIN, Mode, Modes, arguments, load, sampling
from trials import ALL, Trial, cell, decode, grouped

WANTED = 0.97


def main() -> None:
    given = parse()
    prompts = read_prompts(given.prompts, given.per_category)
    runs = Modes(load(given), sampling(given))
    fixed = choices(given.drafter_sets, given.lengths)
    used = [AUTO, *(mode for mode in fixed if mode != PLAIN)]
    runs.warm_up([PLAIN, *used])
    trials = decode(runs, prompts, used)
    result = summarise(trials, [mode.name for mode in fixed]) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=64)
    whole = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--lengths", type=whole, default=(0, 1, 2, 4, 8), help="fixed lengths; 0 is plain")
    parser.add_argument(
        "--drafter-sets",
        type=lambda text: text.split(","),
        default=["all", "suffix"],
        help="each with every length: all, or drafters joined by +",
    )
    return parser.parse_args()


def choices(sets: Sequence[str], lengths: Sequence[int]) -> list[Mode]:
    """Return the fixed choices; nothing drafted is the same whoever would draft."""
    found = [PLAIN] if 0 in lengths else []
    heads = ["fixed" if names == "all" else names for names in sets]
    return found + [Mode.parse(f"{head}:{length}") for head in heads for length in lengths if length]


def summarise(trials: Sequence[Trial], fixed: Sequence[str]) -> dict[str, Any]:
    groups = grouped(trials)
    modes = dict.fromkeys((PLAIN.name, AUTO.name, *fixed))
    rows = [compared(category, group, fixed) for category, group in groups.items()]
    by_category = [row for row in rows if row["category"] != ALL]
    return {
        "cells": [cell(category, mode, group) for category, group in groups.items() for mode in modes],
        "comparisons": rows,
        "prompts": len(trials),
        "text_identical": sum(trial.is_same(mode) for trial in trials for mode in modes),
        "texts": len(trials) * len(modes),
        "holds": all(row["against_best"]["ratio"] >= WANTED for row in by_category),
    }


def compared(category: str, group: Sequence[Trial], fixed: Sequence[str]) -> dict[str, Any]:
    name = best(group, fixed)
    held_out = cross_fitted(group, fixed)
    return {
        "category": category,
        "prompts": len(group),
        "best": name,
        "best_ratio": geometric([trial.ratio(name) for trial in group])["ratio"],
        "auto_ratio": geometric([trial.ratio(AUTO.name) for trial in group])["ratio"],
        "against_best": geometric([trial.ratio(AUTO.name, name) for trial in group]),
        "against_held_out": geometric(held_out) if held_out else None,
    }


def best(group: Sequence[Trial], fixed: Sequence[str]) -> str:
    """Return the fixed choice that is fastest on these prompts; of equals the first."""
    return max(fixed, key=lambda mode: geometric([trial.ratio(mode) for trial in group])["ratio"])


def cross_fitted(group: Sequence[Trial], fixed: Sequence[str]) -> list[float]:
    """Return auto's ratio to the choice that was best on the other half; empty where there is only one prompt."""
    halves = group[::2], group[1::2]
    if not all(halves):
        return []
    named = [best(other, fixed) for other in reversed(halves)]
    return [trial.ratio(AUTO.name, name) for half, name in zip(halves, named, strict=True) for trial in half]


def show(result: dict[str, Any]) -> None:
    speeds = {(c["category"], c["mode"]): c["ratio"] for c in result["cells"]}
    modes = list(dict.fromkeys(c["mode"] for c in result["cells"] if c["mode"] != PLAIN.name))
    print("ratios to plain:")
    print(f"{'category':16} {'prompts':>7}", *(f"{mode:>{max(6, len(mode))}}" for mode in modes))
    for row in result["comparisons"]:
        values = (f"{speeds[row['category'], mode]:{max(6, len(mode))}.2f}" for mode in modes)
        print(f"{row['category']:16} {row['prompts']:7}", *values)
    print(f"\n{'category':16} {'best fixed':12} {'auto / best (95 %)':>24}   auto / best of the other half (95 %)")
    for row in result["comparisons"]:
        print(f"{row['category']:16} {row['best']:12} {interval(row['against_best']):>24}", end="   ")
        print(interval(row["against_held_out"]) if row["against_held_out"] else "one prompt only")
    print(f"same text as plain, token for token: {result['text_identical']} of {result['texts']}")
    print(f"within 3 % of the best fixed choice of each category: {'holds' if result['holds'] else 'DOES NOT HOLD'}")


def interval(found: dict[str, float]) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f} – {found['high']:.3f})"


if __name__ == "__main__":
    main()
