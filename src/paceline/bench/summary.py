"""Turns summed up: cells, and comparisons with the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from paceline.bench.modes import PLAIN
from paceline.bench.result import ALL, Cell, Comparison, Pace, Spread
from paceline.bench.stats import Ratio, compare
from paceline.bench.trials import Ask, Turn
from paceline.core.types import Completion, SpeculationReport
from paceline.engine.report import reasons, total

NOISE = "off"
"""The mode that is plain decoding again, and so measures the noise."""
Groups = Mapping[str, Sequence[Sequence[float]]]
STRETCHES = 40
"""Points of a line of tokens a second over time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn, and the memory that the process had at most while it ran."""

    turn: Turn
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums up one workload.

    Args:
        reference: the mode that the others are held against.
        open_loop: whether prompts came at times of their own; whole latencies are compared then, else decoding alone.
    """

    workload: str
    asks: Sequence[Ask]
    reference: str
    open_loop: bool = False

    def cells(self, seen: Sequence[Seen]) -> tuple[Cell, ...]:
        found = []
        for batch, mode in dict.fromkeys((each.turn.batch, each.turn.mode) for each in seen):
            mine = [each for each in seen if (each.turn.batch, each.turn.mode) == (batch, mode)]
            for category, part in self._by_category(mine):
                found.append(cell(self.workload, category, batch, mode, part))
        return tuple(found)

    def comparisons(self, seen: Sequence[Seen]) -> tuple[Comparison, ...]:
        turns = [each.turn for each in seen]
        found: list[Comparison] = []
        for batch in dict.fromkeys(turn.batch for turn in turns):
            mine = [turn for turn in turns if turn.batch == batch]
            modes = [mode for mode in dict.fromkeys(turn.mode for turn in mine) if mode != self.reference]
            groups = {mode: self._ratios(mine, mode) for mode in modes}
            found += compared(self.workload, batch, self.reference, groups)
        return tuple(found)

    def _by_category(self, seen: Sequence[Seen]) -> Iterator[tuple[str, Sequence[Seen]]]:
        if not self.open_loop:
            for category in dict.fromkeys(self._category(each.turn) for each in seen):
                yield category, [each for each in seen if self._category(each.turn) == category]
        yield ALL, seen

    def _category(self, turn: Turn) -> str:
        return self.asks[turn.numbers[0]].category

    def _ratios(self, turns: Sequence[Turn], mode: str) -> dict[str, list[list[float]]]:
        """Return, by category, of each group the ratios of its turns; a turn that has no counterpart is left out."""
        if self.open_loop:
            return {ALL: _latency_ratios(_of(turns, self.reference), _of(turns, mode))}
        found: dict[str, list[list[float]]] = {}
        for numbers in dict.fromkeys(turn.numbers for turn in turns):
            mine = [turn for turn in turns if turn.numbers == numbers]
            pairs = zip(_of(mine, self.reference), _of(mine, mode), strict=False)
            ratios = [a.a_token_s / b.a_token_s for a, b in pairs if a.decode_tokens and b.decode_tokens]
            if ratios:
                found.setdefault(self._category(mine[0]), []).append(ratios)
        return found


def compared(workload: str, batch: int, reference: str, groups: Mapping[str, Groups]) -> list[Comparison]:
    """Return how each mode compares, in each category and in all.

    A category has few prompts: its ratio must be beyond the noise floor as well, where plain decoding was measured
    against itself.

    Args:
        groups: by mode and category, of each group of prompts the ratios of its turns.
    """
    whole = {mode: compare(by_category) for mode, by_category in groups.items() if by_category}
    floor = reach(whole[NOISE]) if reference == PLAIN.name and NOISE in whole else 0.0
    found = []
    for mode, all_of_them in whole.items():
        parts = {category: (compare({category: ratios}), floor) for category, ratios in groups[mode].items()}
        for category, (r, least) in (parts | {ALL: (all_of_them, 0.0)}).items():
            kept = (workload, category, batch, mode, reference, r.ratio, r.low, r.high, r.verdict(least))
            found.append(Comparison(*kept))
    return found


def noise(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Return, by batch, how far the interval of plain decoding against itself reaches from 1; empty if unmeasured."""
    mine = [c for c in comparisons if (c.mode, c.against, c.category) == (NOISE, PLAIN.name, ALL)]
    return {str(c.batch): reach(Ratio(c.ratio, c.low, c.high)) for c in mine}


def reach(r: Ratio) -> float:
    return max(abs(r.low - 1), abs(r.high - 1))


def cell(workload: str, category: str, batch: int, mode: str, seen: Sequence[Seen]) -> Cell:
    turns = [each.turn for each in seen]
    done = [each for turn in turns for each in turn.done]
    report = total([each.speculation for each in done])
    in_steps = report.draft_ms + report.verify_ms + report.other_ms
    return Cell(
        workload=workload,
        category=category,
        batch=batch,
        mode=mode,
        prompts=len({number for turn in turns for number in turn.numbers}),
        tokens=sum(turn.tokens for turn in turns),
        tokens_per_s=sum(turn.decode_tokens for turn in turns) / max(1e-9, sum(turn.decode_s for turn in turns)),
        tpot_ms=Spread.of([_tpot_ms(each) for each in done if len(each.token_ids) > 1]),
        ttft_ms=Spread.of(
            [
                each.timings.time_to_first_token_ms + waited * 1e3
                for turn in turns
                for each, waited in zip(turn.done, turn.waited_s, strict=True)
            ]
        ),
        acceptance_length=report.acceptance_length,
        acceptance_rate=report.accepted / report.verified if report.verified else None,
        peak_memory_bytes=max(each.peak_bytes for each in seen),
        wasted_share=report.wasted_ms / in_steps if in_steps else 0.0,
        busy_share=sum(turn.seconds for turn in turns) / max(1e-9, sum(turn.steps[-1].at for turn in turns)),
        coverage=report.coverage,
        steps=report.steps,
        accepted_at=report.accepted_at,
        draft_ms=report.draft_ms,
        verify_ms=report.verify_ms,
        other_ms=report.other_ms,
        by_drafter=_drafters(report),
        reasons=reasons(report),
    )


def pace(batch: int, mode: str, turns: Sequence[Turn]) -> Pace:
    """Return tokens a second over a mode's time in steps, one turn after the other."""
    steps = [step for turn in turns for step in turn.steps]
    ends = np.cumsum([step.seconds for step in steps])
    whole = float(ends[-1])
    stretch = whole / STRETCHES
    places = np.minimum((ends / max(stretch, 1e-9)).astype(int), STRETCHES - 1)
    tokens, sequences, rows = (
        np.bincount(places, weights=[getattr(step, name) for step in steps], minlength=STRETCHES)
        for name in ("tokens", "sequences", "rows")
    )
    verified = (rows - sequences) / np.maximum(sequences, 1)
    return Pace(batch, mode, stretch, tuple((tokens / stretch).tolist()), tuple(verified.tolist()))


def _of(turns: Sequence[Turn], mode: str) -> list[Turn]:
    return [turn for turn in turns if turn.mode == mode]


def _latency_ratios(reference: Sequence[Turn], other: Sequence[Turn]) -> list[list[float]]:
    """Return, of each prompt, the ratios of its whole latencies, turn by turn."""
    by_prompt: dict[int, list[float]] = {}
    for a, b in zip(reference, other, strict=False):
        for number, ours, theirs in zip(a.numbers, _latencies(a), _latencies(b), strict=True):
            by_prompt.setdefault(number, []).append(ours / theirs)
    return list(by_prompt.values())


def _latencies(turn: Turn) -> list[float]:
    """Return the seconds from when each was asked until its last token."""
    return [
        waited + (each.timings.time_to_first_token_ms + each.timings.decode_ms) / 1e3
        for each, waited in zip(turn.done, turn.waited_s, strict=True)
    ]


def _tpot_ms(done: Completion) -> float:
    return done.timings.decode_ms / (len(done.token_ids) - 1)


def _drafters(report: SpeculationReport) -> Mapping[str, Mapping[str, float]]:
    return {name: asdict(counts) for name, counts in report.by_drafter.items()}
