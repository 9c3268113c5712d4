"""What a head's logits guess: one token as the sequence's rule would have it drawn, or the likeliest few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.rows import Logits
from paceline.core.types import Rule
from paceline.drafters.base import SequenceView
from paceline.drafters.shaped import Head

APART = 0.75
"""How far a drafter's logits stand from the target's. Of Qwen2.5-Coder 0.5B and 1.5B, 800 positions of code and prose:
the scale under which the chances of the first guess are likeliest is 0.7 to 0.85 at temperatures from 0 to 1.2."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One guess."""

    token: int
    law: Law | None
    """What it was drawn from, where the rule asks for it."""
    confidence: float
    """Where there is a law, of it and not of the token: who stops by it biases no rule."""


def draw(head: Head, logits: Logits, seq: SequenceView, drafted: Sequence[int]) -> Drawn:
    """Draw the token after `drafted`, which follow the pending one, as the sequence's rule wants it.

    With the target's noise under the coupled rule; with noise of its own, and the law kept, under ratio and block.
    """
    if follows_target(seq.rule):
        [token], [chance] = best(head, logits, seq, drafted, 1)
        return Drawn(token, None, chance)
    q = head.law(logits, seq.shaping, _output(seq, drafted))
    token = q.draw(seq.noise.draft(len(seq.tokens), len(drafted)))
    return Drawn(token, q, _confidence(head.named(logits), seq.shaping.params.temperature))


def best(
    head: Head, logits: Logits, seq: SequenceView, drafted: Sequence[int], width: int
) -> tuple[list[int], list[float]]:
    """Return up to `width` tokens that may come after `drafted`, likeliest first, and the chance of each.

    The target takes argmax(log p + g), so tokens are ranked by log q + g with the noise of their position; at
    temperature 0, where there is no noise, by the logits. If log p - log q were Gumbel noise of scale
    `APART`, the chances would be the softmax of the scores over that scale. Unlikely tokens are left out: the target
    gives them noise that is not their own.
    """
    temperature, output = seq.shaping.params.temperature, _output(seq, drafted)
    if temperature == 0:
        return head.highest(logits, seq.shaping, output, width, APART)
    near = head.near(logits, seq.shaping, output)
    scores = near.log_p
    if follows_target(seq.rule):
        scores = scores + seq.noise.target(len(seq.tokens) + len(drafted))(near.ids)
    top = _highest(scores, width)
    weights = np.exp((scores - scores[top[0]]) * (temperature / APART))
    return near.ids[top].tolist(), (weights[top] / weights.sum()).tolist()


def follows_target(rule: Rule) -> bool:
    """Whether drafted tokens are drawn with the target's own noise, rather than from a law that is kept."""
    return rule in ("coupled", "typical")


def _highest(scores: NDArray[np.float64], width: int) -> NDArray[np.int64]:
    """Return the places of the highest, best first; of equals the lowest, as a draw would have it."""
    bar = np.partition(scores, -width)[-width] if width < len(scores) else -np.inf
    top = np.flatnonzero((scores >= bar) & (scores > -np.inf))
    return top[np.lexsort((top, -scores[top]))][:width]


def _output(seq: SequenceView, drafted: Sequence[int]) -> list[int]:
    """Return what the law depends on: nothing where no parameter looks back."""
    if not seq.shaping.touches_logits:
        return []
    return [*seq.tokens[seq.prompt_len :], *drafted]


def _confidence(logits: Logits, temperature: float) -> float:
    """Return a prior for the target's agreement, from the law's peak alone.

    Two draws with the same noise agree more often than the most probable token is drawn, so a flat law counts for more
    when tokens are drawn than when the best one is taken.
    """
    peak = float(1 / np.exp(logits - logits.max()).sum(dtype=np.float64))
    return peak if temperature == 0 else 0.5 + 0.5 * peak
