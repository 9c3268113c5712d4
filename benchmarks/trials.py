"""Prompts decoded in several modes, and what they come to: times of a token, ratios, counts, texts compared."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common import geometric, progress
from modes import PLAIN, Mode, Modes

from paceline import Completion

ALL = "all"
PARTS = ("draft_ms", "verify_ms", "other_ms")


@dataclass
class Trial:
    """One prompt and its completions, by the name of the mode."""

    category: str
    done: dict[str, list[Completion]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, mode: str) -> float:
        """Return the time of a token after the first, the median over its runs."""
        return statistics.median(a_token(done) for done in self.done[mode])

    def ratio(self, mode: str, against: str = PLAIN.name) -> float:
        """Return how many times as fast a mode is."""
        return self.seconds(against) / self.seconds(mode)

    def is_same(self, mode: str, against: str = PLAIN.name) -> bool:
        """Whether all runs gave the same tokens."""
        return len({done.token_ids for name in (mode, against) for done in self.done[name]}) == 1


def a_token(done: Completion) -> float:
    """Return the seconds of a token after the first."""
    return done.timings.decode_ms / 1e3 / max(1, len(done.token_ids) - 1)


def decode(
    modes: Modes, rows: Sequence[dict[str, str]], used: Sequence[Mode], repeat: int = 1, plain: Mode = PLAIN
) -> list[Trial]:
    """Decode every prompt plainly, in every mode and plainly again, `repeat` times; the order of the modes turns from
    prompt to prompt, so that a machine that slows down slows all."""
    trials = []
    for i, row in enumerate(rows):
        trial = Trial(row["category"])
        for again in range(repeat):
            turn = (i + again) % len(used) if used else 0
            for mode in (plain, *used[turn:], *used[:turn], plain):
                progress(f"{i + 1}/{len(rows)} {row['category']}: {mode.name}")
                trial.done[mode.name].append(modes.run(mode, row["prompt"], prediction=row.get("prediction")))
        trials.append(trial)
    progress("")
    return trials


def grouped(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the trials of each category, and all of them."""
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.category].append(trial)
    return {**groups, ALL: list(trials)}


def cell(category: str, mode: str, group: Sequence[Trial]) -> dict[str, Any]:
    """Sum one mode's completions up; its ratio is to plain decoding."""
    done = [each for trial in group for each in trial.done[mode]]
    reports = [each.speculation for each in done]
    steps = sum(report.steps for report in reports)
    committed = sum(len(each.token_ids) for each in done)
    found: dict[str, Any] = {
        "category": category,
        "mode": mode,
        "prompts": len(group),
        "tokens_per_s": speed(group, mode),
        "acceptance_length": committed / steps,
        "coverage": sum(report.drafted for report in reports) / committed,
        "verified_a_step": sum(report.verified for report in reports) / steps,
        "acceptance_rate": sum(r.accepted for r in reports) / max(1, sum(r.verified for r in reports)),
        "text_identical": sum(trial.is_same(mode) for trial in group),
        "reasons": dict(sum((Counter({str(k): n for k, n in r.reasons.items()}) for r in reports), Counter())),
    }
    for part in PARTS:
        found[f"{part}_a_step"] = sum(getattr(report, part) for report in reports) / steps
    return found | geometric([trial.ratio(mode) for trial in group])


def speed(group: Sequence[Trial], mode: str) -> float:
    """Return tokens a second over all prompts, the first token of each apart."""
    counts = [max(1, len(trial.done[mode][0].token_ids) - 1) for trial in group]
    return sum(counts) / sum(trial.seconds(mode) * n for trial, n in zip(group, counts, strict=True))
