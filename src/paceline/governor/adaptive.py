"""The governor: drafts what pays at the measured costs, down to nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ALWAYS
from paceline.governor.acceptance import CERTAIN, Acceptance
from paceline.governor.account import EPSILON, Account
from paceline.governor.alarms import Alarms
from paceline.governor.allocate import Offer, allocate, candidates
from paceline.governor.base import Drafting, Limit, Outcome, Reason, Share, StepReport
from paceline.governor.costly import Costly, deepest
from paceline.governor.costs import Costs
from paceline.governor.fixed import asked
from paceline.governor.ledger import Ledger
from paceline.governor.shadow import Shadows
from paceline.governor.turn import Turn

PLENTY = 0.5
"""Tokens that a draft gains beyond which no other drafter is asked, where one branch alone can be verified."""
OVERDRAWN = Reason.ACCOUNT_OVERDRAWN
REFRESH, HASTE = 16, 4
"""Steps without a plain one before its cost is measured afresh, times this power of the speed-up: where little is
gained a plain step loses little, and what is taken for a gain may be a plain step that was measured in a bad moment."""
LISTEN = 4
"""Of so many steps in which nothing is to be had, drafters are listened to in one: asking them and weighing what they
say takes time that plain decoding does not spend."""
CROWD, QUIET = 8, 8
"""Sequences, and steps in which nothing was verified, from which on nothing is expected of the next."""
LEARNT_NODES = 64
"""Nodes of a step's drafts that are learnt from; in a large batch one has to suffice for another."""


class Adaptive:
    """Weighs every drafted token: its chance to become text against the time that it takes.

    A token is worth the time that one takes, between plain decoding's and the engine's own of late. Maximising tokens
    minus time at that price in every step maximises tokens over time in the long run (Dinkelbach).
    """

    def __init__(
        self,
        most: int,
        costs: Costs | None = None,
        drafters: Sequence[str] = ("lookup", "model"),
        epsilon: float = EPSILON,
        alarms: Alarms | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._most = most
        self.costs = costs or Costs()
        self.acceptance = acceptance or Acceptance()
        self.ledger = Ledger(self.costs, epsilon)
        self._drafters = tuple(drafters)
        self.alarms = alarms or Alarms()
        self._costly = Costly(self._drafters, most, self.costs, self.acceptance)
        self._shadows = Shadows()
        self._first = 0
        """Of the outcomes, the one that is learnt from first."""
        self._turn = Turn()
        self._idle = 0
        """Steps in a row in which nothing was verified."""

    @property
    def account(self) -> Account:
        """Over all requests."""
        return self.ledger.account

    def least_survival(self) -> float:
        """Return the confidence below which one more drafted token of a costly drafter does not pay."""
        return self._costly.least_survival()

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        n = max(1, len(seqs))
        self._turn = turn = Turn(n, len(seqs) + prefill_rows, sum(seq.num_tokens for seq in seqs) / n)
        turn.speedup = self.ledger.speedup(seqs)
        listens = self._listens(n)
        turn.most = self._most if listens and any(self._asked(seq).nodes for seq in seqs) else 0
        self._measure()
        self.costs.exact = self._is_due()
        turn.closed = self._closed()
        if not listens:
            turn.closed = turn.closed or Reason.LOW_ACCEPTANCE
            return [self._unheard(seq, turn.closed) for seq in seqs]
        turn.barred = {seq.id for seq in seqs if turn.closed == OVERDRAWN or self.ledger.overdrawn(seq)}
        self._costly.begin(turn, self.account)
        free = [] if turn.closed else [seq for seq in seqs if seq.id not in turn.barred]
        lengths = {name: self._costly.lengths(free, name) for name in self._drafters}
        return [self._limit(seq, lengths) for seq in seqs]

    def value(self, seq: Drafting, draft: Draft) -> float:
        offer = self._offer(seq, draft)
        chances = [offer.survivals[node] for node in candidates(offer)]
        if not self.costs.known or seq.speculation.mode == "always":
            return sum(chances)
        if draft.is_sampled:  # verified as it is
            return sum(chances) - self._turn.row_tokens(len(draft))
        return self._turn.worth(sorted(chances, reverse=True))[1]

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        """Keep the nodes that pay, best first over the whole batch; sampled drafts are left as they are."""
        kept: list[Draft] = [EMPTY] * len(seqs)
        weighed: list[int] = []
        for i, (seq, draft) in enumerate(zip(seqs, drafts, strict=True)):
            self._costly.note(seq, draft)
            if seq.speculation.mode == "always":
                [kept[i]] = allocate([self._offer(seq, draft)], len)
            elif self._turn.closed or seq.id in self._turn.barred:
                self._cast_shadow(seq, draft)
            elif draft.is_sampled:
                kept[i] = draft
            elif draft:
                weighed.append(i)
        taken = sum(map(len, kept))
        offers = [self._offer(seqs[i], drafts[i]) for i in weighed]
        for i, draft in zip(
            weighed, allocate(offers, lambda chances: self._turn.worth(chances, taken)[0]), strict=True
        ):
            kept[i] = draft
            if not draft and self._turn.probing & drafts[i].drafters:
                self._follow(seqs[i], drafts[i])
        return kept

    def observe(self, step: StepReport) -> list[Share]:
        self._costly.observe(step)
        self._idle = 0 if any(outcome.verified for outcome in step.outcomes) else self._idle + 1
        self._learn(step.outcomes)
        is_ordinary = False
        if step.prefill_rows:
            self.costs.disturb()
        elif step.outcomes:
            is_ordinary = self.costs.observe(step.rows, step.forward_s, step.ran, step.context)
            self.costs.observe_rest(step.tokens, step.other_s)
        if not self._turn.measured:
            self._measure()
        found = self._book(step, is_ordinary)
        self.alarms.observe(step, self.costs, self.account)
        return found

    def _book(self, step: StepReport, is_ordinary: bool) -> list[Share]:
        if not step.outcomes or not self._turn.measured or self._turn.rows == step.prefill_rows:
            return [Share()] * len(step.outcomes)
        asked_for = any(outcome.seq.speculation.mode == "always" for outcome in step.outcomes)
        found = self.ledger.book(step, self._turn, is_ordinary, counts=not asked_for)
        return [self._explained(outcome, share) for outcome, share in zip(step.outcomes, found, strict=True)]

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        """Compare drafts with what became of the texts; of many those whose turn it is."""
        left, n = LEARNT_NODES, len(outcomes)
        for outcome in (outcomes[(self._first + i) % n] for i in range(n)):
            if left <= 0:
                break
            self._first, left = (self._first + 1) % n, left - min(len(outcome.drafted), len(outcome.tokens))
            request, draft, tokens = outcome.seq.id, outcome.drafted, outcome.tokens
            if request in self._shadows and not outcome.verified:
                continue  # it is learnt from when its end is known
            self.acceptance.observe(request, draft, tokens)
        for outcome in outcomes:
            self._follow_shadow(outcome)

    def _measure(self) -> None:
        if self.costs.known:
            self._turn.measure(self.costs, self._drafters)

    def _cast_shadow(self, seq: Drafting, draft: Draft) -> None:
        """Begin to follow what would be verified, were the account not overdrawn."""
        turn = self._turn
        if seq.id not in turn.barred or not draft or draft.is_sampled or seq.id in self._shadows:
            return
        [kept] = allocate([self._offer(seq, draft)], lambda chances: turn.worth(chances)[0])
        if kept:
            self._follow(seq, kept)

    def _follow(self, seq: Drafting, draft: Draft) -> None:
        """Follow a draft of which nothing is verified, to learn from all of it."""
        turn = self._turn
        drafting_s = sum(turn.draft(name) * depth for name, depth in deepest(draft).items())
        seconds = turn.row_tokens(len(draft)) * turn.price + drafting_s
        self._shadows.cast(seq.id, draft, seconds * turn.sequences / turn.plain_s)

    def _follow_shadow(self, outcome: Outcome) -> None:
        request = outcome.seq.id
        if (shadow := self._shadows.follow(request, outcome.tokens)) is None or shadow.won is None:
            return
        self.acceptance.observe(request, shadow.draft, tuple(shadow.tokens))
        self.ledger.would_have_won(request, shadow.won, self._turn.sequences)

    def _explained(self, outcome: Outcome, share: Share) -> Share:
        """Say why nothing of a draft was verified, where the limit has not."""
        turn = self._turn
        if outcome.verified or not outcome.drafted or turn.closed or outcome.seq.id in turn.barred:
            return share
        return replace(share, reason=Reason.BATCH_COMPUTE_BOUND if turn.is_steep else Reason.LOW_ACCEPTANCE)

    def _closed(self) -> Reason | None:
        """Return why no sequence is to draft in this step."""
        if self.account.overdrawn:
            return OVERDRAWN
        turn = self._turn
        if not turn.measured or self.costs.exact:
            return Reason.PROBING
        return None if turn.row < CERTAIN else Reason.BATCH_COMPUTE_BOUND

    def _is_due(self) -> bool:
        """Whether it is time to measure afresh what plain decoding takes; less often where that takes two passes."""
        patience = REFRESH * (2 if self.costs.switch_s else 1) * self._turn.speedup**HASTE
        return self.ledger.since_plain >= patience and self._turn.rows == self._turn.sequences

    def _limit(self, seq: Drafting, lengths: Mapping[str, Mapping[int, tuple[int, float]]]) -> Limit:
        limit, closed = self._asked(seq), self._turn.closed
        if seq.speculation.mode == "always" or not limit.nodes:
            return limit
        if closed or seq.id in self._turn.barred:
            return self._in_shadow(limit, closed or OVERDRAWN)
        by_drafter: dict[str, int] = {}
        reason, enough = limit.reason, 0.0
        for name in self._drafters:
            if not self._costly.is_limited(seq, name):
                continue
            length, gain = lengths[name].get(seq.id, (0, 0.0))
            if not length and (length := self._costly.probe(seq, name, limit.nodes)):
                reason = Reason.PROBING
            if not length:
                self.acceptance.fade(seq.id, name)
            if length < limit.nodes:
                reason = reason or self._costly.why(name)
            by_drafter[name], enough = length, max(enough, gain)
        return Limit(limit.nodes, reason, by_drafter, enough, math.inf if seq.tree_room > 0 else PLENTY)

    def _listens(self, sequences: int) -> bool:
        """Whether drafters are asked in this step: always, but where nothing came of it for long."""
        nothing = self.account.overdrawn or (sequences >= CROWD and self._idle >= QUIET)
        return not nothing or self._idle % LISTEN == 0

    def _unheard(self, seq: Drafting, why: Reason) -> Limit:
        limit = self._asked(seq)
        return limit if seq.speculation.mode == "always" or not limit.nodes else Limit(0, why)

    def _in_shadow(self, limit: Limit, why: Reason) -> Limit:
        """Let drafters guess on that take next to no time, where something can be learnt from it."""
        if not self._turn.measured or why == Reason.BATCH_COMPUTE_BOUND:
            return Limit(0, why)
        return Limit(limit.nodes, why, {name: self._costly.in_shadow(name) for name in self._drafters})

    def _offer(self, seq: Drafting, draft: Draft) -> Offer:
        return Offer(draft, self.acceptance.survivals(seq.id, draft), self._asked(seq).nodes, seq.tree_room)

    def _asked(self, seq: Drafting) -> Limit:
        """Return the limit that the request and its room set."""
        wish = seq.speculation
        return asked(seq, ALWAYS if wish.mode == "always" and wish.max_draft is None else self._most)
