"""Speculative against plain decoding: same model, prompts and seeds, interleaved in one process.

    python benchmarks/pair.py --model demo
    python benchmarks/pair.py --model TARGET.gguf --draft DRAFTER.gguf --prompts FILE.jsonl --json out/pair.json

Each prompt is decoded in the order plain, speculative, speculative, plain (and so on, --repeat times), so that a
machine that slows down slows both. A ratio is plain time over speculative time for the same tokens; its interval is
a bootstrap over prompts. The bare forward is the target's pass of one row with nothing around it, measured between
the prompts, at the same context lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import geometric, progress, provenance, read_prompts, write_json

from paceline import LLM, Completion, SamplingParams, SpeculationParams
from paceline.runners.base import Span

MODES = ("plain", "speculative")


@dataclass
class Trial:
    """One prompt's decoding times, in seconds a token after the first, and its texts."""

    category: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    context: int = 0
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def ratio(self) -> float:
        return statistics.median(self.seconds["plain"]) / statistics.median(self.seconds["speculative"])


def main() -> None:
    given = arguments()
    prompts = read_prompts([given.prompts])
    llm = LLM(given.model, draft=given.draft, max_draft=given.max_draft, drafters=given.drafters)
    sampling = SamplingParams(max_tokens=given.max_tokens, temperature=given.temperature, seed=1)
    decode(llm, prompts[0]["prompt"], sampling, "plain")
    decode(llm, prompts[0]["prompt"], sampling, "speculative")
    trials, bare = [], []
    for i, row in enumerate(prompts):
        progress(f"{i + 1}/{len(prompts)} {row['category']}")
        trials.append(measure(llm, row, sampling, given.repeat))
        bare.append(statistics.fmean(bare_forward(llm, trials[-1].context, given.max_tokens)))
    progress("")
    result = summarise(trials, bare) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--drafters", type=lambda names: tuple(names.split(",")), help="default: all that can be had")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("prompts.jsonl"))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-draft", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=1, help="ABBA rounds a prompt")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def decode(llm: LLM, prompt: str, sampling: SamplingParams, mode: str) -> Completion:
    speculation = SpeculationParams(mode="off" if mode == "plain" else "auto")
    return llm.generate(llm.chat_prompt([{"role": "user", "content": prompt}]), sampling, speculation)[0]


def measure(llm: LLM, row: dict[str, str], sampling: SamplingParams, repeat: int) -> Trial:
    trial = Trial(row["category"])
    for mode in (*MODES, *reversed(MODES)) * repeat:
        done = decode(llm, row["prompt"], sampling, mode)
        trial.seconds[mode].append(done.timings.decode_ms / 1e3 / max(1, len(done.token_ids) - 1))
        trial.tokens[mode], trial.steps[mode] = done.token_ids, done.speculation.steps
        trial.context = done.prompt_tokens
        for part in ("draft_ms", "verify_ms", "other_ms"):
            trial.parts[f"{mode}_{part}"] += getattr(done.speculation, part) / (2 * repeat)
    return trial


def bare_forward(llm: LLM, start: int, count: int, every: int = 8) -> list[float]:
    """Time passes of one row, nothing else, at context lengths that plain decoding goes through."""
    pool, runner, times = llm.engine.pool, llm.engine.target, []
    slot = pool.open([0] * (start + count), shared=0)
    pool.reserve(slot, start + count)
    for context in range(start, start + count, every):
        begin = time.perf_counter()
        runner.forward([Span.causal([0], context, slot.table, [0], stepwise=True)])
        times.append(time.perf_counter() - begin)
    pool.close(slot)
    return times


def summarise(trials: list[Trial], bare: list[float]) -> dict[str, Any]:
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.category].append(trial)
        groups["all"].append(trial)
    cells = {name: cell(group) for name, group in groups.items()}
    plain_steps = [statistics.fmean(trial.seconds["plain"]) for trial in trials]
    return {
        "cells": cells,
        "text_identical": {
            "equal": sum(t.tokens["plain"] == t.tokens["speculative"] for t in trials),
            "of": len(trials),
        },
        "plain_step_ms": statistics.fmean(plain_steps) * 1e3,
        "bare_forward_ms": statistics.fmean(bare) * 1e3,
        "plain_over_bare": statistics.fmean(p / b for p, b in zip(plain_steps, bare, strict=True)),
    }


def cell(group: list[Trial]) -> dict[str, float]:
    tokens = {mode: sum(len(t.tokens[mode]) - 1 for t in group) for mode in MODES}
    seconds = {
        mode: sum(statistics.median(t.seconds[mode]) * (len(t.tokens[mode]) - 1) for t in group) for mode in MODES
    }
    steps = sum(t.steps["speculative"] for t in group)
    found = {
        "prompts": len(group),
        "plain_tokens_per_s": tokens["plain"] / seconds["plain"],
        "tokens_per_s": tokens["speculative"] / seconds["speculative"],
        **geometric([trial.ratio for trial in group]),
        "acceptance_length": sum(len(t.tokens["speculative"]) for t in group) / steps,
    }
    for part in ("draft_ms", "verify_ms", "other_ms"):
        found[f"{part}_a_step"] = sum(t.parts[f"speculative_{part}"] for t in group) / steps
    return found


def show(result: dict[str, Any]) -> None:
    print(
        f"{'category':12} {'prompts':>7} {'plain':>8} {'paceline':>8} {'ratio':>6} {'95 % interval':>16} {'τ':>5}"
        f"   a step: {'draft':>6} {'verify':>6} {'other':>6} ms"
    )
    for name, c in sorted(result["cells"].items(), key=lambda item: item[0] == "all"):
        print(
            f"{name:12} {c['prompts']:7} {c['plain_tokens_per_s']:8.1f} {c['tokens_per_s']:8.1f} {c['ratio']:6.2f} "
            f"{c['low']:8.2f} – {c['high']:5.2f} {c['acceptance_length']:5.2f}"
            f"           {c['draft_ms_a_step']:6.1f} {c['verify_ms_a_step']:6.1f} {c['other_ms_a_step']:6.2f}"
        )
    same = result["text_identical"]
    print(f"same text, token for token: {same['equal']} of {same['of']} prompts")
    print(
        f"plain step {result['plain_step_ms']:.2f} ms, bare forward {result['bare_forward_ms']:.2f} ms, "
        f"ratio {result['plain_over_bare']:.3f}"
    )


if __name__ == "__main__":
    main()
