"""The governor: drafts what pays at the measured costs, down to nothing."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.governor.acceptance import Acceptance
from paceline.governor.account import Account
from paceline.governor.base import Drafting, Limit, Reason, StepReport
from paceline.governor.costs import Costs
from paceline.governor.fixed import asked

FREE_SHARE = 0.02
"""A drafter whose guess takes less than this share of a plain step is free: it is always asked."""
FIRST_PROBE, LAST_PROBE = 16, 1024
"""Steps between two tries of a drafter that does not pay; doubled each time in vain."""
ALWAYS = 4
"""Drafted tokens of a request that speculates always and does not say how many."""
REFRESH = 64
"""A step is plain at least once in so many, to keep the plain cost fresh."""


class Adaptive:
    """Weighs every drafted token: its chance to become text against the time that it takes.

    A token is worth `rate` of time: the engine's own slow-moving seconds a token, never more than plain decoding's.
    Maximising tokens minus time at that price in every step maximises tokens over time in the long run (Dinkelbach).
    """

    def __init__(self, most: int, costs: Costs | None = None, drafters: Sequence[str] = ("lookup", "model")) -> None:
        self._most = most
        self.costs = costs or Costs()
        self.acceptance = Acceptance()
        self.account = Account()
        self._drafters = tuple(drafters)
        self._token_s: dict[int, float] = {}
        self._quiet: dict[str, int] = {}
        self._wait: dict[str, int] = {}
        self._since_plain = 0
        self._probing: set[str] = set()
        self._n, self._prompt_rows = 1, 0

    def least_survival(self) -> float:
        """Return the chance below which one more drafted token of a costly drafter does not pay."""
        if not self.costs.known or self._probing:
            return 0.0
        slowest = max(self.costs.draft_s.values(), default=0.0)
        row = (self.costs.forward(4 * self._n) - self.costs.forward(self._n)) / (3 * self._n)
        return min(1.0, (slowest / self._n + row) / self._price(self._n))

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        self._probing, self._n, self._prompt_rows = set(), max(1, len(seqs)), prefill_rows
        if self.account.overdrawn and any(seq.speculation.mode == "auto" for seq in seqs):
            return [self._held(seq) for seq in seqs]
        return [self._limit(seq, len(seqs), len(seqs) + prefill_rows) for seq in seqs]

    def value(self, seq: Drafting, draft: Draft) -> float:
        return self._best_prefix(seq, draft)[1]

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        """Keep the nodes that pay, best first over the whole batch; sampled drafts are left as they are."""
        always = [seq.speculation.mode == "always" or draft.is_sampled for seq, draft in zip(seqs, drafts, strict=True)]
        fixed = sum(len(draft) for draft, whole in zip(drafts, always, strict=True) if whole)
        nodes = sorted(
            (-survival, i, node)
            for i, (seq, draft) in enumerate(zip(seqs, drafts, strict=True))
            if not always[i]
            for node, survival in enumerate(self.acceptance.survivals(seq.id, draft))
        )
        keep = self._worth([-survival for survival, _, _ in nodes], len(seqs), len(seqs) + self._prompt_rows + fixed)
        kept: list[list[int]] = [[] for _ in seqs]
        for _, i, node in nodes[:keep]:
            kept[i].append(node)
        return [d if always[i] else tree.select(d, kept[i]) if kept[i] else EMPTY for i, d in enumerate(drafts)]

    def observe(self, step: StepReport) -> None:
        for name, seconds in step.draft_s_by.items():
            depth = max((len(o.drafted) for o in step.outcomes if name in o.drafted.source), default=1)
            self.costs.observe_draft(name, seconds, depth)
        for outcome in step.outcomes:
            self.acceptance.observe(outcome.seq.id, outcome.drafted, outcome.tokens)
        if step.outcomes and not step.prefill_rows:
            self.costs.observe(step.rows, step.forward_s, step.other_s)
            self._book(step)

    def _held(self, seq: Drafting) -> Limit:
        if seq.speculation.mode == "always":
            return self._limit(seq, self._n, self._n)
        limit = asked(seq, self._most)
        return Limit(0, Reason.ACCOUNT_OVERDRAWN) if limit.nodes else limit

    def _limit(self, seq: Drafting, n: int, rows: int) -> Limit:
        if seq.speculation.mode == "always":
            return asked(seq, ALWAYS if seq.speculation.max_draft is None else self._most)
        limit = asked(seq, self._most)
        if not limit.nodes or not self.costs.known:
            return limit
        if self._since_plain >= REFRESH and n == 1:
            return Limit(0, Reason.PROBING)
        by_drafter: dict[str, int] = {}
        reason, enough = limit.reason, 0.0
        for name in self._drafters:
            if not self._is_costly(name):
                continue
            length, gain = self._best_length(seq, name, limit.nodes, n, rows)
            if length:
                enough = max(enough, gain)
            else:
                length, reason = self._probe(name, n), reason or self._why(name, rows)
                if length:
                    reason = Reason.PROBING
            by_drafter[name] = length
        return Limit(limit.nodes, reason, by_drafter, enough)

    def _best_length(self, seq: Drafting, name: str, most: int, n: int, rows: int) -> tuple[int, float]:
        """Return how many tokens a costly drafter should draft, and what they gain on average, in tokens."""
        price, base = self._price(n), self.costs.forward(rows)
        best, best_gain, survival, tokens = 0, 0.0, 1.0, 0.0
        for length in range(1, most + 1):
            survival *= self.acceptance.at_depth(seq.id, name, length)
            tokens += survival
            took = length * self.costs.draft_s[name] + self.costs.forward(rows + length * n) - base
            if (gain := tokens - took / n / price) > best_gain:
                best, best_gain = length, gain
        # The drafter stops early where it is unsure, so it may go on for longer where it is sure.
        return (min(most, 2 * best), best_gain) if best else (0, 0.0)

    def _probe(self, name: str, n: int) -> int:
        """Return 2 when it is time, and affordable, to try a drafter that does not pay."""
        self._quiet[name] = self._quiet.get(name, 0) + 1
        wait = self._wait.get(name, FIRST_PROBE)
        if self._quiet[name] < wait or not self.account.allows(2 * self.costs.draft_s[name]):
            return 0
        self._quiet[name], self._wait[name] = 0, min(2 * wait, LAST_PROBE)
        self._probing.add(name)
        return 2

    def _why(self, name: str, rows: int) -> Reason:
        if self.costs.draft_s[name] >= self._price(1):
            return Reason.DRAFT_TOO_SLOW
        if rows > 1 and self.costs.forward(2 * rows) > 1.6 * self.costs.forward(rows):
            return Reason.BATCH_COMPUTE_BOUND
        return Reason.LOW_ACCEPTANCE

    def _is_costly(self, name: str) -> bool:
        plain = self.costs.plain_seconds(1)
        return plain is not None and self.costs.draft_s.get(name, 0.0) > FREE_SHARE * plain

    def _best_prefix(self, seq: Drafting, draft: Draft) -> tuple[int, float]:
        """Return how many nodes of a draft, best first, are worth verifying alone, and their value in tokens."""
        survivals = sorted(self.acceptance.survivals(seq.id, draft), reverse=True)
        if not self.costs.known:
            return len(draft), sum(survivals)
        count = self._worth(survivals, 1, 1)
        rows = (self.costs.forward(1 + count) - self.costs.forward(1)) / self._price(1)
        return count, sum(survivals[:count]) - rows

    def _worth(self, survivals: Sequence[float], n: int, rows: int) -> int:
        """Return how many nodes to verify, taken in this order, for the most tokens less time at its price.

        The curve has stairs, so the best number is looked for among all, not at the first loss.
        """
        if not self.costs.known or not survivals:
            return len(survivals)
        price, base = self._price(n), self.costs.forward(rows)
        best, best_gain, tokens = 0, 0.0, 0.0
        for count, survival in enumerate(survivals, 1):
            tokens += survival
            if (gain := tokens - (self.costs.forward(rows + count) - base) / price) > best_gain:
                best, best_gain = count, gain
        return best

    def _price(self, n: int) -> float:
        """Return the seconds that one token of a batch of n sequences may cost: total time over total tokens."""
        plain = self.costs.plain_seconds(n)
        assert plain is not None
        return min(self._token_s.get(n, plain / n), plain / n)

    def _book(self, step: StepReport) -> None:
        n = len(step.outcomes)
        committed = sum(len(outcome.tokens) for outcome in step.outcomes)
        plain = self.costs.plain_seconds(n)
        if plain is None:
            return
        self.account.book(committed / n, plain, step.seconds, step.is_plain)
        self._since_plain = 0 if step.is_plain else self._since_plain + 1
        each, before = step.seconds / committed, self._token_s.get(n, plain / n)
        # A slow mean of seconds and tokens, not of their ratio: long steps with many tokens weigh as what they are.
        weight = 0.02 * committed / n
        self._token_s[n] = (1 - weight) * before + weight * each if weight < 0.5 else each
