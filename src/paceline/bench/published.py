"""What servers publish about their speculation, brought to our definitions; see docs/acceptance.md.

paceline   `usage.speculation` of each answer, the contract's keys
vLLM       counters under /metrics: drafts, draft tokens, accepted tokens; every draft is one target pass
SGLang     a gauge under /metrics, the acceptance length of late: no counters, so nothing but that
llama.cpp  `timings` of each answer: draft_n, draft_n_accepted; passes are not counted
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+([^\s]+)")
_VLLM = {
    "drafts": "vllm:spec_decode_num_drafts",
    "verified": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}
_SGLANG = "sglang:spec_accept_length"


@dataclass(frozen=True, slots=True)
class Published:
    """Acceptance as a server says it; None is what it does not say."""

    by: str
    """Who says so: paceline, vllm, sglang, llama.cpp; empty where nobody does."""
    verified: int | None = None
    """Drafted tokens that the target has checked."""
    accepted: int | None = None
    passes: int | None = None
    """Of the target, by sequence, each of which commits one token of its own."""
    length: float | None = None
    """Where the server says the acceptance length itself."""

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.accepted is not None and self.verified else None

    @property
    def acceptance_length(self) -> float | None:
        if self.length is not None:
            return self.length
        if self.accepted is None or not self.passes:
            return None
        return 1 + self.accepted / self.passes


def of_answers(usages: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]) -> Published | None:
    """Return what answers say of themselves, summed; None where they say nothing."""
    ours = [found for usage in usages if isinstance(found := usage.get("speculation"), Mapping)]
    if ours and len(ours) == len(usages):
        sums = {name: sum(_count(each.get(name)) for each in ours) for name in ("verified", "accepted", "steps")}
        return Published("paceline", sums["verified"], sums["accepted"], sums["steps"])
    theirs = [found for found in timings if "draft_n" in found]
    if theirs:
        verified = sum(_count(each.get("draft_n")) for each in theirs)
        accepted = sum(_count(each.get("draft_n_accepted")) for each in theirs)
        # What a pass commits beyond the accepted tokens is its own: the rest of the text was one pass a token.
        # The first token is the prompt's, which no draft could name.
        passes = sum(_count(each.get("predicted_n")) for each in timings) - accepted
        return Published("llama.cpp", verified, accepted, passes if passes > 0 else None)
    return None


def of_metrics(before: str, after: str, tokens: int) -> Published | None:
    """Return what counters say of the time between two readings of /metrics; None where they say nothing.

    Args:
        tokens: what was generated in between; passes without a draft are in no counter of vLLM's.
    """
    old, new = samples(before), samples(after)
    change = {name: _change(old, new, counter) for name, counter in _VLLM.items()}
    if change["drafts"] is not None and change["verified"] is not None and change["accepted"] is not None:
        accepted = int(change["accepted"])
        return Published("vllm", int(change["verified"]), accepted, max(0, tokens - accepted))
    if _SGLANG in new:
        return Published("sglang", length=new[_SGLANG])
    return None


def samples(text: str) -> dict[str, float]:
    """Return the sum of each name's samples over their labels; lines that are none are passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) is None:
            continue
        try:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        except ValueError:
            continue
    return found


def _change(old: Mapping[str, float], new: Mapping[str, float], name: str) -> float | None:
    """Return by how much a counter rose; it is written with or without `_total`."""
    for spelled in (f"{name}_total", name):
        if spelled in new:
            return new[spelled] - old.get(spelled, 0.0)
    return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
