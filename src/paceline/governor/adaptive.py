"""The governor: drafts what pays at the measured costs, down to nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.governor.acceptance import CERTAIN, FIRST, Acceptance
from paceline.governor.account import Account
from paceline.governor.allocate import Offer, allocate, candidates
from paceline.governor.base import Drafting, Limit, Reason, StepReport
from paceline.governor.costs import Costs
from paceline.governor.fixed import asked
from paceline.governor.turn import Pace, Try, Turn, all_right

FREE_SHARE = 0.02
"""A drafter whose token takes less than this share of a plain step is free: it is always asked, and learnt about even
when nothing is verified."""
PLENTY = 0.25
"""Tokens that a draft gains beyond which no other drafter is asked, where one branch alone can be verified."""
PROBE_TOKENS = 2
ALWAYS = 4
"""Drafted tokens of a request that speculates always and does not say how many."""
REFRESH = 64
"""Steps without a plain one before its cost is measured afresh; times the square of the speed-up."""
HORIZON, LASTS = 64, 0.5
"""Steps over which a drafter that must read first has to pay for it, and the share of the tokens still allowed that a
request is expected to last: most end before their limit."""
READERS = 4096
"""Pairs of request and drafter of which it is known how far the drafter has read, the newest."""


class Adaptive:
    """Weighs every drafted token: its chance to become text against the time that it takes.

    A token is worth the time that one takes, between plain decoding's and the engine's own of late. Maximising tokens
    minus time at that price in every step maximises tokens over time in the long run (Dinkelbach).
    """

    def __init__(self, most: int, costs: Costs | None = None, drafters: Sequence[str] = ("lookup", "model")) -> None:
        self._most = most
        self.costs = costs or Costs()
        self.acceptance = Acceptance()
        self.account = Account()
        self._drafters = tuple(drafters)
        self._paces: dict[int, Pace] = {}
        self._tries: dict[str, Try] = {}
        self._sampling: set[str] = set()
        """Drafters that have drawn their tokens at random."""
        self._found: dict[str, float] = {}
        """How often each drafter had a guess of late."""
        self._read: dict[tuple[int, str], int] = {}
        self._since_plain = 0
        self._turn = Turn()

    def least_survival(self) -> float:
        """Return the chance below which one more drafted token of a costly drafter does not pay."""
        turn = self._turn
        if turn.probing:
            return 0.0
        n = turn.sequences
        slowest = max((self.costs.draft(name, n) for name in self._drafters), default=0.0)
        return min(1.0, slowest / n / self._turn.price + self._turn.row)

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        self._turn = Turn(max(1, len(seqs)), len(seqs) + prefill_rows)
        if self.costs.known:
            self._weigh()
        self._turn.closed = closed = self._closed()
        lengths = {} if closed else {name: self._lengths(seqs, name) for name in self._drafters}
        return [self._limit(seq, lengths) for seq in seqs]

    def value(self, seq: Drafting, draft: Draft) -> float:
        offer = self._offer(seq, draft)
        chances = [offer.survivals[node] for node in candidates(offer)]
        if not self.costs.known or seq.speculation.mode == "always":
            return sum(chances)
        if draft.is_sampled:  # verified as it is
            return sum(chances) - self._row_tokens(self._turn.rows, len(draft))
        return self._worth(sorted(chances, reverse=True), self._turn.rows)[1]

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        """Keep the nodes that pay, best first over the whole batch; sampled drafts are left as they are."""
        kept: list[Draft] = [EMPTY] * len(seqs)
        weighed: list[int] = []
        for i, (seq, draft) in enumerate(zip(seqs, drafts, strict=True)):
            self._note(seq, draft)
            if seq.speculation.mode == "always":
                [kept[i]] = allocate([self._offer(seq, draft)], len)
            elif draft.is_sampled:
                kept[i] = EMPTY if self._turn.closed else draft
            elif draft and not self._turn.closed:
                weighed.append(i)
        rows = self._turn.rows + sum(map(len, kept))
        offers = [self._offer(seqs[i], drafts[i]) for i in weighed]
        for i, draft in zip(weighed, allocate(offers, lambda chances: self._worth(chances, rows)[0]), strict=True):
            kept[i] = draft
        return kept

    def observe(self, step: StepReport) -> None:
        self._observe_drafts(step)
        for outcome in step.outcomes:
            self.acceptance.observe(outcome.seq.id, outcome.drafted, outcome.tokens)
        is_ordinary = False
        if step.prefill_rows:
            self.costs.disturb()
        elif step.outcomes:
            is_ordinary = self.costs.observe(step.rows, step.forward_s, step.other_s, step.ran)
        asked_for = any(outcome.seq.speculation.mode == "always" for outcome in step.outcomes)
        if step.outcomes and self._turn.rows > step.prefill_rows and not asked_for:
            self._book(step, is_ordinary)

    def _closed(self) -> Reason | None:
        """Return why no sequence is to draft in this step."""
        if self.account.overdrawn:
            return Reason.ACCOUNT_OVERDRAWN
        turn, patience = self._turn, REFRESH * self._pace().speedup ** 2
        if not self.costs.known or (self._since_plain >= patience and turn.rows == turn.sequences):
            return Reason.PROBING
        return None if self._turn.row < CERTAIN else Reason.BATCH_COMPUTE_BOUND

    def _limit(self, seq: Drafting, lengths: Mapping[str, Mapping[int, tuple[int, float]]]) -> Limit:
        if seq.speculation.mode == "always":
            return asked(seq, ALWAYS if seq.speculation.max_draft is None else self._most)
        limit, closed = asked(seq, self._most), self._turn.closed
        if not limit.nodes:
            return limit
        costly = [name for name in self._drafters if self._is_costly(seq, name)]
        if closed:
            shadow = self.costs.known and closed != Reason.BATCH_COMPUTE_BOUND
            return Limit(limit.nodes if shadow else 0, closed, dict.fromkeys(costly, 0))
        by_drafter: dict[str, int] = {}
        reason, enough = limit.reason, 0.0
        for name in costly:
            length, gain = lengths[name].get(seq.id, (0, 0.0))
            if not length and (length := self._probe(seq, name, limit.nodes)):
                reason = Reason.PROBING
            if not length:
                self.acceptance.fade(seq.id, name)
            if length < limit.nodes:
                reason = reason or self._why(name)
            by_drafter[name], enough = length, max(enough, gain)
        return Limit(limit.nodes, reason, by_drafter, enough, math.inf if seq.tree_room > 0 else PLENTY)

    def _lengths(self, seqs: Sequence[Drafting], name: str) -> dict[int, tuple[int, float]]:
        """Return by request how much a costly drafter should draft, and what that gains on average, in tokens.

        Its passes are shared by all that it drafts for, so one length is chosen for all of them together; where the
        drafter is unsure of one it stops earlier.
        """
        hoped = {
            seq.id: self._hoped(seq, name, asked(seq, self._most).nodes)
            for seq in seqs
            if seq.speculation.mode == "auto" and self._is_costly(seq, name)
        }
        row = self._turn.row
        hoped = {i: tokens for i, tokens in hoped.items() if tokens and tokens[0] > row}
        length, gain = self._best_length(list(hoped.values()), self.costs.draft(name, self._turn.sequences))
        if not length:
            return {}
        share = gain / len(hoped)
        sharing = [seq for seq in seqs if seq.id in hoped and self._pays_reading(seq, name, share)]
        return {seq.id: (min(length, len(hoped[seq.id])), share) for seq in sharing}

    def _hoped(self, seq: Drafting, name: str, most: int) -> list[float]:
        """Return for each depth the chance that a token drafted there becomes text."""
        found, survival, chance = [], self._found.get(name, 1.0), FIRST
        for depth in range(1, most + 1):
            chance = self.acceptance.at_depth(seq.id, name, depth, chance)
            survival *= chance
            found.append(survival)
        return found

    def _best_length(self, hoped: Sequence[Sequence[float]], each: float) -> tuple[int, float]:
        """Return the length at which the drafts together gain most, and how many tokens that is."""
        best, best_gain, tokens, rows = 0, 0.0, 0.0, self._turn.rows
        for depth in range(max(map(len, hoped), default=0)):
            going = [survivals[depth] for survivals in hoped if depth < len(survivals)]
            tokens, rows = tokens + sum(going), rows + len(going)
            took = (depth + 1) * each / self._turn.price + self._row_tokens(self._turn.rows, rows - self._turn.rows)
            if tokens - took > best_gain:
                best, best_gain = depth + 1, tokens - took
        return best, best_gain

    def _pays_reading(self, seq: Drafting, name: str, gain: float) -> bool:
        """Whether the text is still long enough, and the account lets a drafter read what it has missed of it.

        What it gains counts beyond what is gained of late without it.
        """
        reading = self.costs.catch_up(name, self._missed(seq, name)) / self._turn.price
        if reading <= 1:
            return True
        more = (gain + 1 - self._pace().speedup) * min(HORIZON, LASTS * seq.room / (1 + gain))
        if reading > more or self._turn.advanced or not self.account.advances:
            return False
        self._turn.advanced = True
        return True

    def _probe(self, seq: Drafting, name: str, most: int) -> int:
        """Return a short length when it is time, and affordable, to try a drafter that does not pay."""
        attempt = self._tries.setdefault(name, Try())
        attempt.quiet += 1 / self._turn.sequences
        seconds = PROBE_TOKENS * self.costs.draft(name, self._turn.sequences)
        seconds += self.costs.catch_up(name, self._missed(seq, name))
        steps = seconds / self._plain()
        if name in self._turn.probing or not attempt.due(steps) or not self.account.allows(steps):
            return 0
        if not self._could_pay(name):
            return 0
        self._turn.probing.add(name)
        return min(PROBE_TOKENS, most)

    def _why(self, name: str) -> Reason:
        rows = self._turn.rows
        if not self._could_pay(name):
            return Reason.DRAFT_TOO_SLOW
        if rows > 1 and self.costs.forward(2 * rows) > 1.6 * self.costs.forward(rows):
            return Reason.BATCH_COMPUTE_BOUND
        return Reason.LOW_ACCEPTANCE

    def _could_pay(self, name: str) -> bool:
        """Whether a drafter that is always right would pay."""
        n = self._turn.sequences
        return self.costs.draft(name, n) / n < CERTAIN * self._turn.price

    def _is_costly(self, seq: Drafting, name: str) -> bool:
        """Whether a drafter of this request has to be limited beforehand: it costs time, or is not to be trimmed."""
        if not self.costs.known or not seq.speculation.uses(name):
            return False
        if seq.speculation.rule in ("ratio", "block") and name in self._sampling:
            return True
        return self.costs.draft(name, self._turn.sequences) > FREE_SHARE * self._plain()

    def _offer(self, seq: Drafting, draft: Draft) -> Offer:
        most = ALWAYS if seq.speculation.mode == "always" and seq.speculation.max_draft is None else self._most
        chances = self.acceptance.survivals(seq.id, draft)
        return Offer(draft, chances, asked(seq, most).nodes, seq.tree_room)

    def _worth(self, survivals: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes to verify, in this order, for the most tokens less time at its price, and how much.

        The curve has stairs, so the best number is looked for among all, not at the first loss.
        """
        if not self.costs.known:
            return len(survivals), sum(survivals)
        price, base = self._turn.price, self._pass(rows)
        best, best_gain, tokens = 0, 0.0, 0.0
        for count, survival in enumerate(survivals, 1):
            tokens += survival
            if (gain := tokens - (self._pass(rows + count) - base) / price) > best_gain:
                best, best_gain = count, gain
        return best, best_gain

    def _row_tokens(self, rows: int, more: int) -> float:
        """Return how many tokens are worth the time of so many more rows."""
        return (self._pass(rows + more) - self._pass(rows)) / self._turn.price

    def _pass(self, rows: int) -> float:
        """Return the seconds of this step's pass, if it has so many rows."""
        turn = self._turn
        if rows not in turn.times:
            has_prompts = turn.rows > turn.sequences
            turn.times[rows] = (
                self.costs.forward(rows) if has_prompts else self.costs.next_pass(rows, plain=rows == turn.sequences)
            )
        return turn.times[rows]

    def _plain(self) -> float:
        plain = self.costs.plain_seconds(self._turn.sequences)
        assert plain is not None
        return plain

    def _weigh(self) -> None:
        """Settle what a token and a row are worth in this step.

        The engine's own time a token of late is too strict a price: a draft ends behind the token that was hard to
        guess, a plain step in front of it. The mean of that and of plain decoding's does best in simulation. Where the
        curve has a stair, the first rows pay only together with those that follow at no cost. One row more may cost
        nothing and says little of those after it.
        """
        turn = self._turn
        turn.price = self._plain() / turn.sequences / math.sqrt(self._pace().speedup)
        counts = [*range(2, self._most), max(1, self._most), max(1, self._most) * turn.sequences]
        turn.row = min(self._row_tokens(turn.rows, count) / count for count in counts)

    def _pace(self) -> Pace:
        return self._paces.setdefault(self._turn.sequences, Pace())

    def _note(self, seq: Drafting, draft: Draft) -> None:
        """Take down who has drafted, how deep, and how far it has read."""
        for node, depth in enumerate(tree.depths(draft.parents)):
            for name, _ in draft.guesses(node):
                self._turn.depth[name] = max(self._turn.depth.get(name, 0), depth)
        if draft.is_sampled:
            self._sampling.add(draft.source[0])
        for name in draft.drafters:
            self._turn.missed[name] = self._turn.missed.get(name, 0) + self._missed(seq, name)
            self._read[seq.id, name] = seq.num_tokens
            if len(self._read) > READERS:
                del self._read[next(iter(self._read))]

    def _missed(self, seq: Drafting, name: str) -> int:
        """Return how many tokens a drafter has to read before it can draft; what a step or two leave is nothing."""
        missed = seq.num_tokens - self._read.get((seq.id, name), 0)
        return missed if missed > 2 * self._most else 0

    def _observe_drafts(self, step: StepReport) -> None:
        turn = self._turn
        for name, seconds in step.draft_s_by.items():
            found = self._found.get(name, 1.0)
            self._found[name] = found + 0.05 * ((name in turn.depth) - found)
            self.costs.observe_draft(name, seconds, turn.depth.get(name, 1), turn.sequences, turn.missed.get(name, 0))
        for name in turn.probing & step.draft_s_by.keys():
            drafts = [outcome for outcome in step.outcomes if name in outcome.drafted.drafters]
            self._tries[name].result(bool(drafts) and all(all_right(name, outcome) for outcome in drafts))

    def _book(self, step: StepReport, is_ordinary: bool) -> None:
        turn = self._turn
        plain, n = self._plain(), turn.sequences
        gained = sum(len(outcome.tokens) - 1 for outcome in step.outcomes) / n
        if step.prefill_rows:  # the pass with its prompts has no plain counterpart that was measured
            verified = sum(len(outcome.verified) for outcome in step.outcomes)
            extra = step.draft_s + self.costs.forward(turn.rows + verified) - self.costs.forward(turn.rows)
        else:
            extra = step.seconds - plain
            self._since_plain = 0 if step.is_plain else self._since_plain + 1
            weight = min(0.5, 0.02 * (1 + gained))
            self._pace().add((1 + gained) * plain, step.seconds, weight)
        if step.is_plain and is_ordinary:  # measures what plain is: neither won nor lost, but for drafting in vain
            extra = step.draft_s
        reading = sum(self.costs.catch_up(name, missed) for name, missed in turn.missed.items())
        self.account.book(gained - extra / plain, step.seconds / plain, min(reading, step.draft_s) / plain)
