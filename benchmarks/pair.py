"""Speculative against plain decoding: same model, prompts and seeds, interleaved in one process.

    python benchmarks/pair.py --model demo
    python benchmarks/pair.py --model TARGET.gguf --draft DRAFTER.gguf --prompts FILE.jsonl --json out/pair.json

Each prompt is decoded in the order plain, speculative, speculative, plain (and so on, --repeat times), so that a
machine that slows down slows both. A ratio is plain time over speculative time for the same tokens; its interval is
a bootstrap over prompts. No run has seen the answer of another to the same prompt: each comes from a tenant of its own.
The bare forward is the target's pass of one row with nothing around it, measured between the prompts, at the same
context lengths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from common import progress, provenance, read_prompts, write_json
from modes import AUTO, PLAIN, Mode, Modes, arguments, load, one, sampling
from trials import Trial, cell, grouped, speed

from paceline import LLM
from paceline.runners.base import Span


def main() -> None:
    given = parse()
    prompts = read_prompts(given.prompts, given.per_category)
    runs = Modes(load(given), sampling(given))
    runs.warm_up([PLAIN, given.mode])
    trials, bare = [], []
    for i, row in enumerate(prompts):
        progress(f"{i + 1}/{len(prompts)} {row['category']}")
        trials.append(measure(runs, row, given.mode, given.repeat))
        context = trials[-1].done[PLAIN.name][0].prompt_tokens
        bare.append(statistics.fmean(bare_forward(runs.llm, context, given.max_tokens)))
    progress("")
    result = summarise(trials, bare, given.mode.name) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=128)
    parser.add_argument("--mode", type=one, default=AUTO, help="what is held against plain; default: auto")
    parser.add_argument("--repeat", type=int, default=1, help="ABBA rounds a prompt")
    return parser.parse_args()


def measure(runs: Modes, row: dict[str, str], mode: Mode, repeat: int) -> Trial:
    trial = Trial(row["category"])
    for each in (PLAIN, mode, mode, PLAIN) * repeat:
        trial.done[each.name].append(runs.run(each, row["prompt"]))
    return trial


def bare_forward(llm: LLM, start: int, count: int, every: int = 8) -> list[float]:
    """Time passes of one row, nothing else, at context lengths that plain decoding goes through."""
    pool, runner, times = llm.engine.pool, llm.engine.target, []
    slot = pool.open([0] * (start + count), shared=0)
    pool.reserve(slot, start + count)
    runner.forward([Span.causal([0] * (start + count), 0, slot.table, [])])  # what the rows see is there
    for context in range(start, start + count, every):
        begin = time.perf_counter()
        runner.forward([Span.causal([0], context, slot.table, [0], stepwise=True)])
        times.append(time.perf_counter() - begin)
    pool.close(slot)
    return times


def summarise(trials: Sequence[Trial], bare: Sequence[float], mode: str) -> dict[str, Any]:
    plain_steps = [trial.seconds(PLAIN.name) for trial in trials]
    return {
        "mode": mode,
        "cells": {
            name: cell(name, mode, group) | {"plain_tokens_per_s": speed(group, PLAIN.name)}
            for name, group in grouped(trials).items()
        },
        "text_identical": {"equal": sum(trial.is_same(mode) for trial in trials), "of": len(trials)},
        "plain_step_ms": statistics.fmean(plain_steps) * 1e3,
        "bare_forward_ms": statistics.fmean(bare) * 1e3,
        "plain_over_bare": statistics.fmean(p / b for p, b in zip(plain_steps, bare, strict=True)),
    }


def bounds(found: dict[str, Any]) -> dict[str, float]:
    """Return how many times as fast a cell would be if one thing were twice as good and all others as they are."""
    draft, verify, other = (found[f"{part}_ms_a_step"] for part in ("draft", "verify", "other"))
    step, length = draft + verify + other, found["acceptance_length"]
    return {
        "target pass halved": step / (step - verify / 2),
        "draft halved": step / (step - draft / 2),
        "accepted doubled": (2 * length - 1) / length,
    }


def show_bounds(cells: dict[str, dict[str, Any]]) -> None:
    print("\nhow many times as fast if only this were so")
    for name, c in cells.items():
        print(f"{name:16} " + "   ".join(f"{what} {gain:.2f}" for what, gain in bounds(c).items()))


def show(result: dict[str, Any]) -> None:
    print(
        f"{'category':16} {'prompts':>7} {'plain':>8} {result['mode']:>8} {'ratio':>6} {'95 % interval':>16} {'τ':>5}"
        f"   a step: {'draft':>6} {'verify':>6} {'other':>6} ms"
    )
    for name, c in result["cells"].items():
        print(
            f"{name:16} {c['prompts']:7} {c['plain_tokens_per_s']:8.1f} {c['tokens_per_s']:8.1f} {c['ratio']:6.2f} "
            f"{c['low']:8.2f} – {c['high']:5.2f} {c['acceptance_length']:5.2f}"
            f"           {c['draft_ms_a_step']:6.1f} {c['verify_ms_a_step']:6.1f} {c['other_ms_a_step']:6.2f}"
        )
    show_bounds(result["cells"])
    same = result["text_identical"]
    print(f"same text, token for token: {same['equal']} of {same['of']} prompts")
    print(
        f"plain step {result['plain_step_ms']:.2f} ms, bare forward {result['bare_forward_ms']:.2f} ms, "
        f"ratio {result['plain_over_bare']:.3f}"
    )


if __name__ == "__main__":
    main()
