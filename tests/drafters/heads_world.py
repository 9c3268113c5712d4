"""Sequences of a target whose hidden states are a function of the text, and what heads should draft there.

The reference keeps nothing: every token of every branch is guessed by a pass over the whole text.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.core.law import Law
from paceline.core.sampling import law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, SamplingParams, Verdict
from paceline.drafters.base import Drafter, Seen
from paceline.drafters.guesses import APART
from paceline.models.heads import Heads
from tests.heads import EAGLE3, MEDUSA, make
from tests.runners import heads_reference as reference

from .views import View

VOCAB, WIDTH = EAGLE3.vocab_size, EAGLE3.target_width
LAYERS = sorted({*EAGLE3.taps, *MEDUSA.taps})
Answer = Callable[[Sequence[int]], Any]
"""Drafted tokens -> the logits of what follows, over the heads' vocabulary."""


@lru_cache(100_000)
def state(tokens: tuple[int, ...]) -> Any:
    """The target's hidden states [layers, width] at the last of these tokens."""
    return np.random.default_rng(zlib.crc32(repr(tokens).encode())).normal(size=(len(LAYERS), WIDTH)).astype(np.float32)


@dataclass
class Life:
    """One sequence, told to a drafter as an engine would."""

    view: View
    drafter: Drafter
    first: int = 0
    """The first position that the target runs; those before came from its prefix cache."""
    seen: int = field(init=False)
    """Positions that the target has run."""

    def __post_init__(self) -> None:
        self.seen = self.first
        self.drafter.begin(self.view)

    def prefill(self, rows: int) -> None:
        """Read up to so many tokens of what is missing, all but the pending one."""
        stop = min(self.seen + rows, len(self.view.tokens) - 1)
        if stop > self.seen:
            self._show(self.seen, self.view.tokens[self.seen : stop], EMPTY, None)
            self.seen = stop

    def verify(self, draft: Draft, path: Sequence[int], token: int, again: int = 0) -> None:
        """Run the pending token and a draft, of which `path` is accepted; read `again` tokens before it once more."""
        self.prefill(len(self.view.tokens))
        begin = max(self.seen - again, self.first)
        rows = [*self.view.tokens[begin:], *draft.tokens]
        hidden = self._hidden(begin, rows, draft)
        self.view.tokens += [*(draft.tokens[node] for node in path), token]
        self.seen = len(self.view.tokens) - 1
        self.drafter.observe(self.view, Seen(begin, rows, draft, Verdict(tuple(path), token), (), hidden))

    def _show(self, begin: int, rows: list[int], draft: Draft, verdict: Verdict | None) -> None:
        self.drafter.observe(self.view, Seen(begin, rows, draft, verdict, (), self._hidden(begin, rows, draft)))

    def _hidden(self, begin: int, rows: list[int], draft: Draft) -> dict[int, Any]:
        read = self.view.tokens[: begin + len(rows) - len(draft)]
        texts = [tuple(read[: i + 1]) for i in range(begin, len(read))]
        texts += [(*read, *path_tokens(draft, node)) for node in range(len(draft))]
        states = np.stack([state(text) for text in texts])
        return {layer: states[:, i] for i, layer in enumerate(LAYERS)}


def path_tokens(draft: Draft, node: int) -> tuple[int, ...]:
    found: list[int] = []
    while node != ROOT:
        found.append(draft.tokens[node])
        node = draft.parents[node]
    return tuple(reversed(found))


def some_tree(dice: random.Random, size: int) -> Draft:
    """A draft of nobody we know."""
    parents = tuple(dice.randrange(-1, i) for i in range(size))
    tokens = tuple(dice.randrange(VOCAB) for _ in range(size))
    return Draft(tokens, parents, (0.5,) * size, ("other",) * size)


def some_path(dice: random.Random, draft: Draft) -> list[int]:
    path, node = [], ROOT
    while (below := [i for i, parent in enumerate(draft.parents) if parent == node]) and dice.random() < 0.7:
        node = dice.choice(below)
        path.append(node)
    return path


def eagle(heads: Heads, embed: Any, view: View, first: int = 0) -> Answer:
    """Answer with a pass over everything from position `first` on, and all that was drafted."""
    taps = [LAYERS.index(tap) for tap in heads.config.taps]
    texts = [tuple(view.tokens[: i + 1]) for i in range(first, len(view.tokens) - 1)]
    fused = reference.fuse(heads, np.stack([state(text)[taps].reshape(-1) for text in texts])).astype(np.float32)

    @lru_cache(None)
    def run(path: tuple[int, ...]) -> tuple[Any, Any]:
        """The logits and the hidden state of the row that guesses what follows the path."""
        states = [run(path[:i])[1] for i in range(len(path))]
        rows = np.concatenate([fused, *(s[None] for s in states)])
        tokens = [*view.tokens[first + 1 :], *path]
        at = first + np.arange(len(rows))
        logits, hidden = reference.step(heads, embed[tokens], rows, at, np.tri(len(rows), dtype=bool))
        return logits[-1].astype(np.float32), hidden[-1].astype(np.float32)

    return lambda path: run(tuple(path))[0]


def medusa(heads: Heads, view: View) -> Answer:
    last = state(tuple(view.tokens[:-1]))[LAYERS.index(heads.config.taps[0])]
    logits = reference.parallel(heads, last[None])[:, 0].astype(np.float32)
    return lambda path: logits[len(path)]


def q(heads: Heads, view: View, logits: Any, path: Sequence[int], params: SamplingParams | None = None) -> Law:
    """The heads' law after the path, over the whole vocabulary."""
    whole = np.full(VOCAB, -np.inf, np.float32)
    whole[np.arange(VOCAB) if heads.draft_to_target is None else heads.draft_to_target] = logits
    shaping = replace(view.shaping, params=params or view.params)
    return law(whole, shaping, [*view.tokens[view.prompt_len :], *path])


def chain(heads: Heads, view: View, answer: Answer, limit: int, least: float = 0.0) -> Draft:
    """The reference's chain."""
    tokens: list[int] = []
    sure: list[float] = []
    laws: list[Law | None] = []
    coupled, start = view.rule in ("coupled", "typical"), len(view.tokens)
    while len(tokens) < limit and np.prod(sure) >= least:
        logits = answer(tokens)
        found, depth = q(heads, view, logits, tokens), len(tokens)
        noise = view.noise.target(start + depth) if coupled else view.noise.draft(start, depth)
        tokens.append(found.draw(noise))
        laws.append(None if coupled else found)
        if coupled:
            sure.append(kids(heads, view, logits, tokens[:-1], 1)[0][1])
            continue
        peak = float((np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()).max())
        sure.append(peak if view.params.temperature == 0 else (1 + peak) / 2)
    return Draft.chain(tokens, "heads", sure, laws)


def tree(
    heads: Heads, view: View, answer: Answer, limit: int, width: int, depth: int, least: float = 0.0
) -> dict[tuple[int, ...], float]:
    """The reference's tree: each path of it, and the chance that the target gets there."""
    found: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for _ in range(min(depth, limit)):
        fresh = {}
        for path in level:
            for token, share in kids(heads, view, answer(path), path, min(width, limit)):
                fresh[(*path, token)] = found.get(path, 1.0) * share
        found |= fresh
        level = sorted((p for p in fresh if fresh[p] >= least), key=lambda p: -fresh[p])[: min(width, limit)]
    return dict(sorted(found.items(), key=lambda item: -item[1])[:limit])


def kids(heads: Heads, view: View, logits: Any, path: Sequence[int], width: int) -> list[tuple[int, float]]:
    params, noisy = view.params, view.params.temperature > 0 and view.rule in ("coupled", "typical")
    if params.temperature == 0:
        params = replace(params, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    found = q(heads, view, logits, path, params)
    noise = view.noise.target(len(view.tokens) + len(path))(found.ids) if noisy else 0.0
    shares = np.exp((found.log_p + noise) * (view.params.temperature or 1.0) / APART)
    ranked = sorted(zip(found.ids.tolist(), (shares / shares.sum()).tolist(), strict=True), key=lambda item: -item[1])
    return ranked[:width]


def heads_of(**changed: Any) -> Heads:
    """EAGLE-3 heads whose guesses are neither sure nor all alike."""
    return make(replace(EAGLE3, **changed), seed=2)


def same_chain(draft: Draft, expected: Draft) -> None:
    assert draft.tokens == expected.tokens and draft.is_chain
    assert draft.source == expected.source
    np.testing.assert_allclose(draft.confidence, expected.confidence, rtol=1e-4)
    assert draft.is_sampled == expected.is_sampled
    for ours, theirs in zip(draft.laws, expected.laws, strict=True):
        if theirs is not None:
            assert ours is not None and ours.ids.tolist() == theirs.ids.tolist()
            np.testing.assert_allclose(ours.log_p, theirs.log_p, rtol=1e-3, atol=1e-4)


def same_tree(draft: Draft, expected: dict[tuple[int, ...], float]) -> None:
    paths = [path_tokens(draft, node) for node in range(len(draft))]
    assert set(paths) == set(expected) and len(paths) == len(expected)
    assert all(parent < node for node, parent in enumerate(draft.parents))
    assert set(draft.source) <= {"heads"} and not draft.is_sampled
    for node, path in enumerate(paths):
        share = expected[path] / (expected[path[:-1]] if path[:-1] else 1.0)
        np.testing.assert_allclose(draft.confidence[node], share, rtol=1e-3, atol=1e-6)
