"""A small model that guesses a chain of tokens, one pass each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.sampling import Logits, law
from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Seen, SequenceView
from paceline.runners.base import Runner, Span
from paceline.runners.kv import Pool, Slot

CATCH_UP_ROWS = 512


@dataclass(slots=True, eq=False)
class _State:
    slot: Slot
    ahead: list[int] = field(default_factory=list)
    """Tokens whose rows stand in the cache after the slot's own: the last draft, without its last token."""


@dataclass(slots=True, eq=False)
class _Chain:
    """A draft in the making."""

    seq: SequenceView
    state: _State
    limit: int
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    laws: list[Law | None] = field(default_factory=list)
    survival: float = 1.0


class ModelDrafter:
    """Drafts with a model of its own.

    Under the coupled rule it draws with the target's noise; under ratio and block with noise of its own, and keeps
    the laws that it drew from. A chain ends early when the target is unlikely to get that far: the decision uses
    only the law, never the token drawn from it, so that it biases no rule.

    Args:
        runner: the drafter; its logits may be of `vocabulary` alone.
        pool: KV blocks of that runner.
        vocabulary: token ids of the runner's logits, ascending; None when they are all.
        least_survival: says below what chance of the target to confirm all so far a chain ends.
    """

    name = "model"

    def __init__(
        self,
        runner: Runner,
        pool: Pool,
        vocabulary: NDArray[np.int64] | None = None,
        least_survival: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._runner, self._pool = runner, pool
        self._vocabulary, self._least = vocabulary, least_survival
        self._states: dict[int, _State] = {}

    def begin(self, seq: SequenceView) -> None:
        pass  # the prompt is read when the first draft is asked for

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        try:
            return self._propose(seqs, limits)
        except BaseException:
            # The caches stand where they were left; whoever asks again, for one of these alone, starts anew.
            for seq in seqs:
                self.end(seq)
            raise

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass  # the next draft compares what is cached with what was committed

    def end(self, seq: SequenceView) -> None:
        state = self._states.pop(seq.id, None)
        if state is not None:
            self._pool.close(state.slot)

    def _propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        chains = [self._start(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]
        answers = self._catch_up([chain for chain in chains if chain is not None])
        active = [c for c in chains if c and c.seq.id in answers and self._pool.reserve(c.state.slot, c.limit)]
        rows = [answers[chain.seq.id] for chain in active]
        least = self._least()
        while active:
            for chain, logits in zip(active, rows, strict=True):
                self._extend(chain, logits)
            active = [c for c in active if len(c.tokens) < c.limit and c.survival >= least]
            rows = self._forward([self._next_span(chain) for chain in active])
            for chain in active:
                chain.state.ahead.append(chain.tokens[-1])
        return [EMPTY if c is None else Draft.chain(c.tokens, self.name, c.confidence, c.laws) for c in chains]

    def _start(self, seq: SequenceView, limit: int) -> _Chain | None:
        """Settle which cached rows still hold; None where nothing can be drafted."""
        limit = min(limit, self._runner.info.context - len(seq.tokens))
        if limit <= 0:
            return None
        state = self._states.get(seq.id)
        if state is None:
            state = self._states[seq.id] = _State(self._pool.open(seq.tokens))
        kept = _common(state.ahead, seq.tokens[state.slot.length :])
        # The pending token's row must run again for its answer, so it is never kept.
        kept = min(kept, len(seq.tokens) - 1 - state.slot.length)
        self._pool.commit(state.slot, state.ahead[:kept])
        state.ahead = []
        return _Chain(seq, state, limit)

    def _catch_up(self, chains: list[_Chain]) -> dict[int, Logits]:
        """Run what each sequence has gained since; return by id the logits after its pending token.

        A sequence that the pool has no room for is left out.
        """
        answers: dict[int, Logits] = {}
        missing = chains
        while missing := [c for c in missing if c.state.slot.length < len(c.seq.tokens)]:
            share = max(1, CATCH_UP_ROWS // len(missing))
            parts = {c.seq.id: c.seq.tokens[c.state.slot.length :][:share] for c in missing}
            missing = [c for c in missing if self._pool.reserve(c.state.slot, len(parts[c.seq.id]))]
            spans = [_last_answered(c.state.slot, parts[c.seq.id]) for c in missing]
            for chain, logits in zip(missing, self._forward(spans), strict=True):
                answers[chain.seq.id] = logits
                self._pool.commit(chain.state.slot, parts[chain.seq.id])
        return {c.seq.id: answers[c.seq.id] for c in chains if c.state.slot.length == len(c.seq.tokens)}

    def _forward(self, spans: list[Span]) -> list[Logits]:
        return list(self._runner.forward(spans).logits.copy()) if spans else []

    def _next_span(self, chain: _Chain) -> Span:
        slot = chain.state.slot
        return Span.causal([chain.tokens[-1]], slot.length + len(chain.state.ahead), slot.table, [0])

    def _extend(self, chain: _Chain, logits: Logits) -> None:
        seq, depth = chain.seq, len(chain.tokens)
        q = self._law(logits, seq, chain.tokens)
        position = len(seq.tokens)
        coupled = seq.rule in ("coupled", "typical")
        noise = seq.noise.target(position + depth) if coupled else seq.noise.draft(position, depth)
        token = q.draw(noise)
        chain.tokens.append(token)
        chain.laws.append(None if coupled else q)
        chain.confidence.append(_confidence(logits, seq.shaping.params.temperature))
        chain.survival *= chain.confidence[-1]

    def _law(self, logits: Logits, seq: SequenceView, drafted: Sequence[int]) -> Law:
        if seq.shaping.touches_logits:  # ids of penalties and bans are of the whole vocabulary
            return law(self._spread(logits), seq.shaping, [*seq.tokens[seq.prompt_len :], *drafted])
        found = law(logits, seq.shaping, ())
        return found if self._vocabulary is None else Law(self._vocabulary[found.ids], found.log_p)

    def _spread(self, logits: Logits) -> Logits:
        """Return logits over the whole vocabulary, -inf where the head has none."""
        if self._vocabulary is None:
            return logits
        whole = np.full(self._runner.info.vocab_size, -np.inf, np.float32)
        whole[self._vocabulary] = logits
        return whole


def _last_answered(slot: Slot, tokens: Sequence[int]) -> Span:
    return Span.causal(tokens, slot.length, slot.table, [len(tokens) - 1])


def _confidence(logits: Logits, temperature: float) -> float:
    """A prior for the target's agreement, from the law's peak alone.

    Two draws with the same noise agree more often than the most probable token is drawn, so a flat law counts for more
    when tokens are drawn than when the best one is taken.
    """
    peak = float(1 / np.exp(logits - logits.max()).sum(dtype=np.float64))
    return peak if temperature == 0 else 0.5 + 0.5 * peak


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))
