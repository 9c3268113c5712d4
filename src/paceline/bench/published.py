"""What servers publish about their speculation, brought to our definitions; see docs/acceptance.md.

paceline   `usage.speculation` of each answer
llama.cpp  `timings` of each answer: draft_n, draft_n_accepted, predicted_n; under /metrics, the depths
vLLM       counters under /metrics, of drafts alone: passes without one are in none of them
SGLang     a counter of verifying passes under /metrics, or else a gauge of what the acceptance length was of late
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)')
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,3})"')
_COUNTERS = {"vllm": "vllm:spec_decode_num_", "llama.cpp": "llamacpp:spec_decode_num_"}
_VERIFYING, _LENGTH = "sglang:spec_verify_calls", "sglang:spec_accept_length"


@dataclass(frozen=True, slots=True)
class Published:
    """Speculation as a server counts it; None is what it does not say."""

    by: str
    """Who says so: paceline, vllm, sglang, llama.cpp; empty where nobody does."""
    verified: int | None = None
    """Drafted tokens that the target has checked."""
    accepted: int | None = None
    passes: int | None = None
    """Of the target, by sequence, each of which commits one token of its own; the prompt's last pass is one of them."""
    committed: int | None = None
    """Tokens that these passes made."""
    accepted_at: tuple[int, ...] = ()
    """Accepted tokens by depth in the draft, from 0."""
    length: float | None = None
    """Where the server says nothing but the acceptance length."""
    drafted: int | None = None
    draft_ms: float | None = None
    verify_ms: float | None = None
    other_ms: float | None = None
    wasted_ms: float | None = None

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.accepted is not None and self.verified else None

    @property
    def acceptance_length(self) -> float | None:
        if self.length is not None:
            return self.length
        return self.committed / self.passes if self.committed is not None and self.passes else None


_SUMMED = ("verified", "accepted", "passes", "committed", "drafted", "draft_ms", "verify_ms", "other_ms", "wasted_ms")


def total(said: Sequence[Published]) -> Published:
    """Return the sums; of acceptance lengths, which cannot be summed, the mean."""
    if not said:
        return Published("")
    sums: dict[str, Any] = {}
    for name in _SUMMED:
        known = [value for each in said if (value := getattr(each, name)) is not None]
        sums[name] = sum(known) if len(known) == len(said) else None
    depths = tuple(map(sum, zip_longest(*(each.accepted_at for each in said), fillvalue=0)))
    lengths = [each.length for each in said if each.length is not None]
    return Published(said[0].by, accepted_at=depths, length=sum(lengths) / len(lengths) if lengths else None, **sums)


def of_answers(usages: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]) -> Published | None:
    """Return what answers say of themselves, summed; None where they say nothing."""
    ours = [found for usage in usages if isinstance(found := usage.get("speculation"), Mapping)]
    if ours and len(ours) == len(usages):
        return total([_ours(each) for each in ours])
    if any("predicted_n" in each for each in timings):
        return total([_llama(each) for each in timings])
    return None


def of_metrics(before: str, after: str, pieces: Sequence[int], tokens: int) -> Published | None:
    """Return what counters say of the time between two readings of /metrics; None where they say nothing.

    Args:
        pieces: in how many each answer came that was made in between.
        tokens: of all of them.
    """
    for by, prefix in _COUNTERS.items():
        verified, accepted = (_rise(before, after, prefix + name) for name in ("draft_tokens", "accepted_tokens"))
        if verified is not None and accepted is not None:
            depths = _depths(before, after, f"{prefix}accepted_tokens_per_pos")
            return Published(by, verified, accepted, _passes(by, pieces, tokens, accepted), tokens, depths)
    if verifying := _rise(before, after, _VERIFYING):
        return Published("sglang", passes=verifying + len(pieces), committed=tokens)
    if lengths := samples(after).get(_LENGTH):
        return Published("sglang", length=sum(lengths.values()) / len(lengths)) if any(lengths.values()) else None
    return None


def _passes(by: str, pieces: Sequence[int], tokens: int, accepted: int) -> int:
    """Return how many passes made these tokens: what was not accepted is a pass's own.

    vLLM also counts as accepted what is cut off behind the end of an answer, so there may have been more passes. Each
    piece of its streams is of another pass; pieces that it merges, in turn, are fewer. Both are least numbers.
    """
    return max(tokens - accepted, sum(pieces) if by == "vllm" else 0)


def samples(text: str) -> dict[str, dict[str, float]]:
    """Return the values of each name, by labels as they are written; lines that are no samples are passed over."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) is None:
            continue
        try:
            found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
        except ValueError:
            continue
    return found


def _rise(before: str, after: str, name: str) -> int | None:
    """Return by how much a counter rose, over all labels; None if it is not there, or fell: the server began anew."""
    old, new = samples(before), samples(after)
    for spelled in (f"{name}_total", name):
        if spelled in new:
            rise = sum(new[spelled].values()) - sum(old.get(spelled, {}).values())
            return int(rise) if rise >= 0 else None
    return None


def _depths(before: str, after: str, name: str) -> tuple[int, ...]:
    old, new = samples(before), samples(after)
    rises: dict[int, float] = {}
    for spelled in (f"{name}_total", name):
        for labels, value in new.get(spelled, {}).items():
            if (match := _POSITION.search(labels)) is not None:
                rise = value - old.get(spelled, {}).get(labels, 0.0)
                rises[int(match[1])] = rises.get(int(match[1]), 0.0) + rise
    deepest = max((depth for depth, rise in rises.items() if rise), default=-1)
    return tuple(int(rises.get(depth, 0.0)) for depth in range(deepest + 1))


def _ours(said: Mapping[str, Any]) -> Published:
    depths = said.get("accepted_at")
    return Published(
        "paceline",
        verified=_count(said.get("verified")),
        accepted=_count(said.get("accepted")),
        passes=(steps := _count(said.get("steps"))),
        committed=steps + _count(said.get("accepted")),
        accepted_at=tuple(map(_count, depths)) if isinstance(depths, list) else (),
        drafted=_count(said.get("drafted")),
        **{name: _ms(said.get(name)) for name in ("draft_ms", "verify_ms", "other_ms", "wasted_ms")},
    )


def _llama(timings: Mapping[str, Any]) -> Published:
    """Its counts are missing where nothing was drafted; its passes are what is left of the text."""
    accepted, tokens = _count(timings.get("draft_n_accepted")), _count(timings.get("predicted_n"))
    return Published("llama.cpp", _count(timings.get("draft_n")), accepted, max(0, tokens - accepted), tokens)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _ms(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
