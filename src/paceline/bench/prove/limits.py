"""Latencies and memory against the targets of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.bench.modes import AUTO
from paceline.bench.prove.checks import Check
from paceline.bench.trials import Turn
from paceline.config import Targets

MIB = 1 << 20
OVER_PLAN = 1.05
"""Peak of memory, as a share of what was planned."""


def latencies(targets: Targets, turns: Sequence[Turn], again: str) -> list[Check]:
    """Judge the governed answers of turns."""
    mine = [turn for turn in turns if turn.mode == AUTO.name]
    done = [each for turn in mine for each in turn.done]
    ttft = [each.timings.time_to_first_token_ms for each in done]
    tpot = [each.timings.decode_ms / (len(each.token_ids) - 1) for each in done if len(each.token_ids) > 1]
    kinds = (("first token", "ttft_p95_ms", ttft), ("a token", "tpot_p95_ms", tpot))
    return [_latency(name, key, getattr(targets, key), values, again) for name, key, values in kinds]


def _latency(name: str, key: str, most: float | None, values: Sequence[float], again: str) -> Check:
    p95 = float(np.quantile(values, 0.95)) if values else 0.0
    found = f"{p95:.1f} ms over {len(values)} answers"
    if most is None:
        return Check(f"latency: {name}, p95", f"targets.{key} is not set", found, "not asked", again)
    asked = f"at most {most:g} ms (targets.{key})"
    return Check(f"latency: {name}, p95", asked, found, "fails" if p95 > most else "holds", again)


def memory(targets: Targets, peak_bytes: int, planned_bytes: int | None, again: str) -> list[Check]:
    """Judge the most memory that the process had.

    Args:
        planned_bytes: what `inspect` foresees; None where nothing is planned.
    """
    found = f"{peak_bytes / MIB:,.0f} MiB at most"
    most = targets.memory_bytes
    if most is None:
        checks = [Check("memory: target", "targets.memory_bytes is not set", found, "not asked", again)]
    else:
        asked = f"at most {most / MIB:,.0f} MiB (targets.memory_bytes)"
        checks = [Check("memory: target", asked, found, "fails" if peak_bytes > most else "holds", again)]
    if planned_bytes is not None:
        share = peak_bytes / planned_bytes
        asked = f"at most {OVER_PLAN:g} × the {planned_bytes / MIB:,.0f} MiB that `paceline inspect` plans"
        said = f"{found}, {share:.3f} × the plan"
        checks.append(Check("memory: plan", asked, said, "fails" if share > OVER_PLAN else "holds", again))
    return checks
