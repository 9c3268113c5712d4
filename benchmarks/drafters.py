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

import argparse
import copy
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import geometric, progress, provenance, read_prompts, write_json

from paceline import LLM, Completion, Options, SamplingParams, SpeculationParams
from paceline.engine.build import choose

PLAIN, MIXED = "plain", "mixed"
EXTRA = ("recycle",)
"""Measured alone even where `auto` leaves it out of the tree."""


@dataclass
class Trial:
    """One prompt, decoded in every mode."""

    category: str
    done: dict[str, list[Completion]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, mode: str) -> float:
        """Return the time of a token after the first."""
        return statistics.median(
            done.timings.decode_ms / 1e3 / max(1, len(done.token_ids) - 1) for done in self.done[mode]
        )

    def ratio(self, mode: str, against: str = PLAIN) -> float:
        return self.seconds(against) / self.seconds(mode)


class Modes:
    """One model in several modes, each with what its governor has learnt."""

    def __init__(self, llm: LLM, sampling: SamplingParams, mixed: tuple[str, ...]) -> None:
        self._llm, self._sampling, self._mixed = llm, sampling, mixed
        self._fresh = copy.deepcopy(vars(llm.engine.governor))
        self._learnt: dict[str, dict[str, Any]] = {}

    def run(self, mode: str, prompt: str) -> Completion:
        governor = vars(self._llm.engine.governor)
        governor.update(self._learnt.setdefault(mode, copy.deepcopy(self._fresh)))
        request = self._llm.request(
            self._llm.chat_prompt([{"role": "user", "content": prompt}]),
            self._sampling,
            self._speculation(mode),
            tenant=mode,
        )
        [done] = self._llm.run([request])
        self._learnt[mode] = dict(governor)
        return done

    def _speculation(self, mode: str) -> SpeculationParams:
        if mode == PLAIN:
            return SpeculationParams(mode="off")
        return SpeculationParams(drafters=self._mixed if mode == MIXED else (mode,))


def main() -> None:
    given = arguments()
    prompts = read_prompts(given.prompts, given.per_category)
    auto = choose(Options(given.model, draft=given.draft, drafters=given.drafters)).drafters
    names = auto if given.drafters else tuple(dict.fromkeys((*auto, *EXTRA)))
    llm = LLM(given.model, draft=given.draft, drafters=names, max_draft=given.max_draft)
    singles = [name for name in names if name != "prediction"]
    modes = [*singles, MIXED]
    sampling = SamplingParams(max_tokens=given.max_tokens, temperature=given.temperature, seed=1)
    runs = Modes(llm, sampling, mixed=auto)
    for mode in (PLAIN, *modes):
        progress(f"warming up {mode}")
        runs.run(mode, "Count from one to twenty in words, then in digits.")
    trials = []
    for i, row in enumerate(prompts):
        progress(f"{i + 1}/{len(prompts)} {row['category']}")
        trial = Trial(row["category"])
        turn = i % len(modes)
        for mode in (PLAIN, *modes[turn:], *modes[:turn], PLAIN):
            trial.done[mode].append(runs.run(mode, row["prompt"]))
        trials.append(trial)
    progress("")
    result = summarise(trials, singles) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument(
        "--drafters", type=lambda names: tuple(names.split(",")), help="default: auto, and recycle alone"
    )
    parser.add_argument("--prompts", type=Path, nargs="+", default=[Path(__file__).with_name("prompts.jsonl")])
    parser.add_argument("--per-category", type=int, help="prompts of each category; default: all")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-draft", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def summarise(trials: Sequence[Trial], singles: Sequence[str]) -> dict[str, Any]:
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.category].append(trial)
        groups["all"].append(trial)
    return {
        "cells": [cell(name, mode, group) for name, group in groups.items() for mode in (PLAIN, *singles, MIXED)],
        "mixed_against_best_single": [against_best(name, group, singles) for name, group in groups.items()],
        "text_identical": {
            mode: sum(t.done[mode][0].token_ids == t.done[PLAIN][0].token_ids for t in trials)
            for mode in (*singles, MIXED)
        },
        "prompts": len(trials),
    }


def cell(category: str, mode: str, group: Sequence[Trial]) -> dict[str, Any]:
    done = [each for trial in group for each in trial.done[mode]]
    reports = [each.speculation for each in done]
    steps = sum(report.steps for report in reports)
    committed = sum(len(each.token_ids) for each in done)
    found: dict[str, Any] = {
        "category": category,
        "mode": mode,
        "prompts": len(group),
        "tokens_per_s": sum(len(t.done[mode][0].token_ids) for t in group)
        / sum(t.seconds(mode) * len(t.done[mode][0].token_ids) for t in group),
        "acceptance_length": committed / steps,
        "coverage": sum(report.drafted for report in reports) / committed,
        "verified_a_step": sum(report.verified for report in reports) / steps,
        "acceptance_rate": sum(r.accepted for r in reports) / max(1, sum(r.verified for r in reports)),
    }
    for part in ("draft_ms", "verify_ms", "other_ms"):
        found[f"{part}_a_step"] = sum(getattr(report, part) for report in reports) / steps
    return found | geometric([trial.ratio(mode) for trial in group])


def against_best(category: str, group: Sequence[Trial], singles: Sequence[str]) -> dict[str, Any]:
    """Compare mixed with the single drafter that is best in this category, as known afterwards."""
    best = max(singles, key=lambda mode: geometric([trial.ratio(mode) for trial in group])["ratio"])
    return {"category": category, "best": best} | geometric([trial.ratio(MIXED, best) for trial in group])


def show(result: dict[str, Any]) -> None:
    print(
        f"{'category':16} {'drafter':10} {'tok/s':>7} {'ratio':>6} {'95 % interval':>15} {'τ':>5} {'coverage':>8} "
        f"{'verified':>8}   a step: {'draft':>6} {'verify':>6} {'other':>6} ms"
    )
    for c in sorted(result["cells"], key=lambda c: c["category"] == "all"):
        print(
            f"{c['category']:16} {c['mode']:10} {c['tokens_per_s']:7.1f} {c['ratio']:6.2f} {c['low']:7.2f} – "
            f"{c['high']:5.2f} {c['acceptance_length']:5.2f} {c['coverage']:8.2f} {c['verified_a_step']:8.2f}"
            f"           {c['draft_ms_a_step']:6.2f} {c['verify_ms_a_step']:6.1f} {c['other_ms_a_step']:6.2f}"
        )
    print("\nmixed against the best single drafter of each category, known afterwards:")
    for c in sorted(result["mixed_against_best_single"], key=lambda c: c["category"] == "all"):
        print(f"{c['category']:16} {c['best']:10} {c['ratio']:6.3f} {c['low']:7.3f} – {c['high']:6.3f}")
    same = ", ".join(f"{mode} {n}" for mode, n in result["text_identical"].items())
    print(f"same text as plain, token for token, of {result['prompts']}: {same}")


if __name__ == "__main__":
    main()
