"""Which drafted tokens the target confirms. Four rules, each a walk from the root.

coupled  the target's token at every position is argmax(log p + g(seed, position)); a node is taken when it carries
         that token (Daliri et al. 2408.07978). The text does not depend on the draft at all.
ratio    a sampled node x is taken with probability min(1, p(x) / q(x)), else a token of the residual law is drawn
         (Leviathan et al. 2211.17192; Chen et al. 2302.01318). Exact in law.
block    ratio's draws decided for the whole chain at once (Sun et al. 2403.10444, algorithm 2). Exact in law.
typical  a node is taken when it is probable enough (Medusa 2401.10774 §3.3.1). Lossy: the text is another.

Nodes that were not sampled (no law `q`) have q = 1 at their token; there ratio and block are the same law as drawing
from p and taking the node that carries the draw, which is what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.core import tree
from paceline.core.law import Choice, Law, Noise
from paceline.core.noise import Stream, TargetNoise, gumbel, stream_key, uniform
from paceline.core.tree import Draft
from paceline.core.types import ROOT, Rule, Verdict

Choices = Callable[[int, tuple[int, ...]], Choice]
"""(row, tokens of the path to it) -> what the target says after that row. Called only for rows on the walk, and asked
for its whole law only where a rule needs one."""

TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3
"""Medusa's published defaults."""


@dataclass(frozen=True, slots=True)
class Randomness:
    """The noise of one sequence; `position` counts tokens from the start of the prompt."""

    seed: int

    def target(self, position: int) -> TargetNoise:
        return TargetNoise(self.seed, position)

    def draft(self, start: int, depth: int) -> Noise:
        """Noise of the drafter's own draws; keyed by the step's start, for a position may be drafted many times."""
        key = stream_key(self.seed, start, Stream.DRAFT, depth)
        return lambda ids: gumbel(key, ids)

    def accept(self, start: int, depth: int) -> float:
        """Keyed by the step's start: block looks at every depth, also past the one that it settles on."""
        return float(uniform(stream_key(self.seed, start, Stream.ACCEPT, depth), np.zeros(1, np.int64))[0])


def verify(rule: Rule, draft: Draft, choices: Choices, noise: Randomness, position: int) -> Verdict:
    """Return what the target confirms of a draft.

    Args:
        position: index in the sequence of the first drafted token, one past the pending one.
    """
    if rule == "typical":
        return typical(draft, choices, noise, position)
    if rule == "coupled" or not draft.is_sampled:
        return coupled(draft, choices, noise, position)
    assert draft.is_chain, "sampled drafts are chains"
    return (ratio if rule == "ratio" else block)(draft, choices, noise, position)


def coupled(draft: Draft, choices: Choices, noise: Randomness, position: int) -> Verdict:
    below, node = tree.children(draft), ROOT
    path: list[int] = []
    tokens: tuple[int, ...] = ()
    while True:
        token = choices(node + 1, tokens).draw(noise.target(position + len(path)))
        child = below.get((node, token))
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        tokens += (token,)
        node = child


def acceptance(p: Law, q: Law, token: int) -> float:
    """Return min(1, p / q) at a token that was drawn from q."""
    return min(1.0, p.prob(token) / q.prob(token))


def ratio(draft: Draft, choices: Choices, noise: Randomness, start: int) -> Verdict:
    for i, token in enumerate(draft.tokens):
        p, q = choices(i, draft.tokens[:i]).law(), draft.laws[i] or Law.point(token)
        if noise.accept(start, i) >= acceptance(p, q, token):
            return Verdict(tuple(range(i)), p.without(q).draw(noise.target(start + i)))
    n = len(draft)
    return Verdict(tuple(range(n)), choices(n, draft.tokens).draw(noise.target(start + n)))


def block_weights(draft: Draft, p: list[Law]) -> list[float]:
    """Return w_0 … w_g: the running products min(w · p / q, 1); p[i] is the target's law after i drafted tokens."""
    weights = [1.0]
    for i, token in enumerate(draft.tokens):
        q = draft.laws[i] or Law.point(token)
        weights.append(min(weights[-1] * p[i].prob(token) / q.prob(token), 1.0))
    return weights


def block_acceptance(weights: list[float], i: int, p: Law, q: Law | None) -> float:
    """Return h_i, the chance that the first i tokens are kept as a block; q is None at the last depth."""
    if q is None:
        return weights[i]
    excess = float(p.excess(q, weights[i]).sum())
    room = excess + (1 - weights[i])  # bracketed, for 1 would swallow a small excess
    return excess / room if room > 0 else 1.0


def block(draft: Draft, choices: Choices, noise: Randomness, start: int) -> Verdict:
    n = len(draft)
    p = [choices(i, draft.tokens[:i]).law() for i in range(n + 1)]
    q: list[Law | None] = [draft.laws[i] or Law.point(draft.tokens[i]) for i in range(n)]
    weights, kept = block_weights(draft, p), 0
    for i in range(1, n + 1):  # the last success counts, so a failure must not end the loop
        if noise.accept(start, i - 1) < block_acceptance(weights, i, p[i], q[i] if i < n else None):
            kept = i
    last, law = q[kept] if kept < n else None, p[kept]
    residual = law if last is None else law.without(last, weights[kept])
    return Verdict(tuple(range(kept)), residual.draw(noise.target(start + kept)))


def typical(draft: Draft, choices: Choices, noise: Randomness, position: int) -> Verdict:
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    path: list[int] = []
    tokens: tuple[int, ...] = ()
    while True:
        node = path[-1] if path else ROOT
        p = choices(node + 1, tokens).law()
        bar = min(TYPICAL_EPSILON, TYPICAL_DELTA * float(np.exp(-p.entropy())))
        chances = {child: p.prob(draft.tokens[child]) for child in below.get(node, [])}
        child = max(chances, key=lambda c: chances[c], default=None)
        if child is None or chances[child] <= bar:
            return Verdict(tuple(path), p.draw(noise.target(position + len(path))))
        path.append(child)
        tokens += (draft.tokens[child],)
