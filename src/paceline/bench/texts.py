"""Answers held against plain decoding's, and how far apart two tokens were where they part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.core.gap import CANDIDATES, gap
from paceline.core.types import Completion, Request, SpeculationParams
from paceline.engine.llm import LLM

TOLERANCE = 0.1
"""Gap between the two best logits up to which a difference is a near-tie."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers part."""

    position: int
    """Of the first token that is another, from 0."""
    gap: float | None
    """By how much plain decoding preferred its own, in logits; None where it cannot be measured."""

    def is_near_tie(self, tolerance: float = TOLERANCE) -> bool:
        return self.gap is not None and self.gap <= tolerance


def parting(llm: LLM, request: Request, plain: Completion, other: Completion) -> Parting | None:
    """Return where an answer leaves plain decoding's, None where they are equal.

    The prompt is decoded once more, plainly, to learn the log-probabilities there; the engine must be idle.

    Args:
        request: as it was asked plainly, with the seed that both had.
    """
    ours, theirs = plain.token_ids, other.token_ids
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    if at >= min(len(ours), len(theirs)):
        return Parting(at, None)
    sampling = replace(request.sampling, seed=plain.seed, logprobs=CANDIDATES, max_tokens=at + 1, min_tokens=0)
    again = llm.run([replace(request, sampling=sampling, speculation=SpeculationParams("off"), prediction=())])[0]
    if again.token_ids[: at + 1] != ours[: at + 1]:
        return Parting(at, None)
    ending = frozenset(sampling.stop_token_ids) | frozenset(llm.chosen.target.eos_ids)
    where = replace(request, sampling=sampling)
    return Parting(at, gap(where, ours[:at], again.logprobs[at], theirs[at], llm.engine.target.info.vocab_size, ending))
