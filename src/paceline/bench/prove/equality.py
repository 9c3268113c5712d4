"""Is the text the same, token by token, however it is drafted?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.modes import PLAIN, Mode, Modes
from paceline.bench.prove.checks import Check
from paceline.bench.texts import Parting, parting
from paceline.bench.trials import Ask, Say, take
from paceline.core.types import Completion, SamplingParams, SpeculationParams

RARE = 2000
"""An error in one of so many tokens is to be found."""
SHOWN = 10


def samplings(max_tokens: int) -> tuple[SamplingParams, ...]:
    """Return how prompts are sampled: greedy, usual, hot, and with penalties."""
    return (
        SamplingParams(max_tokens, seed=1),
        SamplingParams(max_tokens, temperature=0.7, top_p=0.95, seed=2),
        SamplingParams(max_tokens, temperature=1.2, top_k=50, seed=3),
        SamplingParams(max_tokens, temperature=0.8, min_p=0.05, frequency_penalty=0.5, presence_penalty=0.3, seed=4),
    )


@dataclass(slots=True)
class Equality:
    """Holds what was compared.

    Args:
        tolerance: gap of the two best logits up to which a difference is a near-tie.
    """

    modes: Modes
    tolerance: float
    answers: int = 0
    tokens: int = 0
    verified: int = 0
    ties: int = 0
    different: list[str] = field(default_factory=list)

    def run(self, asks: Sequence[Ask], used: Sequence[Mode], batch: int, say: Say) -> None:
        """Answer every prompt plainly and in each mode, `batch` at a time, and compare."""
        numbered = list(enumerate(asks))
        groups = [numbered[i : i + batch] for i in range(0, len(numbered), batch)]
        for place, group in enumerate(groups):
            say("same text", place, len(groups))
            plain = take(self.modes, PLAIN, [ask for _, ask in group], batch).done
            for mode in used:
                other = take(self.modes, mode, [ask for _, ask in group], batch).done
                for (number, ask), ours, theirs in zip(group, plain, other, strict=True):
                    self._compare(mode, number, ask, ours, theirs)

    def _compare(self, mode: Mode, number: int, ask: Ask, plain: Completion, other: Completion) -> None:
        self.answers += 1
        self.tokens += len(other.token_ids)
        self.verified += other.speculation.verified
        if plain.token_ids == other.token_ids:
            return
        request = self.modes.llm.request(ask.prompt, ask.sampling, SpeculationParams("off"))
        found = parting(self.modes.llm, request, plain, other)
        if found is None or found.is_near_tie(self.tolerance):
            self.ties += 1
        else:
            self.different.append(_line(mode, number, ask, found))

    def check(self, again: str) -> Check:
        missed = math.exp(-self.tokens / RARE)
        found = (
            f"{self.answers} answers of {self.tokens:,} tokens, {self.verified:,} drafted ones verified: "
            f"{len(self.different)} different, {self.ties} near-ties; an error in one of {RARE:,} tokens "
            f"would be missed with probability {missed:.2g}"
        )
        return Check(
            "same text",
            f"every answer is plain decoding's, up to ties within {self.tolerance:g} logits",
            found,
            "fails" if self.different else "holds",
            again,
            tuple(self.different[:SHOWN]),
        )


def _line(mode: Mode, number: int, ask: Ask, found: Parting) -> str:
    gap = "by how much cannot be measured" if found.gap is None else f"by {found.gap:.3f} logits"
    how = f"temperature {ask.sampling.temperature:g}, seed {ask.sampling.seed}"
    return f"{mode.name}: prompt {number + 1} ({ask.category}, {how}) parts at token {found.position + 1} ({gap})"
