"""Each drafter alone, and all of them in one tree, against plain decoding: same model, prompts and process.

    python benchmarks/drafters.py --model demo
    python benchmarks/drafters.py --model TARGET.gguf --draft DRAFTER.gguf --prompts A.jsonl B.jsonl --json out.json

Every prompt is decoded plainly, then once with each drafter alone and once with those that `auto` uses ("mixed"), in an
order that turns from prompt to prompt, then plainly again. A ratio is plain time over speculative time for the same
tokens. Each mode has a governor and a tenant of its own, so that none learns from another, and above all none replays
the answer that another has just given. Prompts of one mode do follow each other: what a drafter remembers from one to
the next is its merit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import geometric, provenance, read_prompts, write_json
from modes import PLAIN, Mode, Modes, arguments, load, sampling
from trials import Trial, cell, decode, grouped

from paceline import Options, SpeculationParams
from paceline.engine.build import choose

MIXED = "mixed"
EXTRA = ("recycle",)
"""Measured alone even where `auto` leaves it out of the tree."""


def main() -> None:
    given = arguments(__doc__).parse_args()
    prompts = read_prompts(given.prompts, given.per_category)
    auto = choose(Options(given.model, draft=given.draft, drafters=given.drafters)).drafters
    names = auto if given.drafters else tuple(dict.fromkeys((*auto, *EXTRA)))
    runs = Modes(load(given, drafters=names), sampling(given))
    singles = [name for name in names if name not in ("grammar", "prediction")]
    used = [*map(Mode.parse, singles), Mode(MIXED, SpeculationParams(drafters=auto))]
    runs.warm_up([PLAIN, *used])
    result = summarise(decode(runs, prompts, used), singles) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def summarise(trials: Sequence[Trial], singles: Sequence[str]) -> dict[str, Any]:
    groups = grouped(trials)
    return {
        "cells": [cell(name, mode, group) for name, group in groups.items() for mode in (PLAIN.name, *singles, MIXED)],
        "mixed_against_best_single": [against_best(name, group, singles) for name, group in groups.items()],
        "text_identical": {mode: sum(t.is_same(mode) for t in trials) for mode in (*singles, MIXED)},
        "prompts": len(trials),
    }


def against_best(category: str, group: Sequence[Trial], singles: Sequence[str]) -> dict[str, Any]:
    """Compare mixed with the single drafter that is best in this category, as known afterwards."""
    best = max(singles, key=lambda mode: geometric([trial.ratio(mode) for trial in group])["ratio"])
    return {"category": category, "best": best} | geometric([trial.ratio(MIXED, best) for trial in group])


def show(result: dict[str, Any]) -> None:
    print(
        f"{'category':16} {'drafter':10} {'tok/s':>7} {'ratio':>6} {'95 % interval':>15} {'τ':>5} {'coverage':>8} "
        f"{'verified':>8}   a step: {'draft':>6} {'verify':>6} {'other':>6} ms"
    )
    for c in result["cells"]:
        print(
            f"{c['category']:16} {c['mode']:10} {c['tokens_per_s']:7.1f} {c['ratio']:6.2f} {c['low']:7.2f} – "
            f"{c['high']:5.2f} {c['acceptance_length']:5.2f} {c['coverage']:8.2f} {c['verified_a_step']:8.2f}"
            f"           {c['draft_ms_a_step']:6.2f} {c['verify_ms_a_step']:6.1f} {c['other_ms_a_step']:6.2f}"
        )
    print("\nmixed against the best single drafter of each category, known afterwards:")
    for c in result["mixed_against_best_single"]:
        print(f"{c['category']:16} {c['best']:10} {c['ratio']:6.3f} {c['low']:7.3f} – {c['high']:6.3f}")
    same = ", ".join(f"{mode} {n}" for mode, n in result["text_identical"].items())
    print(f"same text as plain, token for token, of {result['prompts']}: {same}")


if __name__ == "__main__":
    main()
