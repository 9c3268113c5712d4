"""The drafters whose guesses take time: how much each is asked for, whether it may read, when it is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.core.types import ROOT
from paceline.governor.acceptance import CERTAIN, Acceptance
from paceline.governor.account import Account
from paceline.governor.base import Drafting, Outcome, Reason, StepReport
from paceline.governor.costs import Costs
from paceline.governor.fixed import asked
from paceline.governor.turn import Turn

FREE_SHARE = 0.04
"""A drafter whose longest draft takes less than this share of a plain step is free: it is always asked."""
SHADOW_SHARE = 0.005
"""Share of a plain step that drafts may take of which nothing is verified."""
PROBE_TOKENS = 2
"""Least tokens of a try; twice as many as have to be right for it to pay, where that is more."""
PROBE_SHARE = 0.005
"""Share of time that may go into trying a drafter that does not pay."""
READ_SHARE = 0.05
"""Share of time that may go into reading for a try; less would never be enough, for what has to be read grows."""
FIRST_PROBE = 4
"""Least steps between two tries; tries in vain make it rarer, up to so many times."""
RAREST = 4
EARLY, UNKNOWN = 3, 16
"""Tries that need not wait, and the guesses up to which a drafter counts as unknown."""
HORIZON, LASTS = 64, 0.5
"""Steps over which a drafter that must read first has to pay for it, and the share of the tokens still allowed that a
request is expected to last: most end before their limit."""
MISREAD = 3.0
"""Times that reading may take longer than was expected and still be an advance, not a loss."""
IDLE_WEIGHT, IDLE_PRIOR = 0.05, 6.0
"""Of a step in how often free drafters have nothing, and the steps that this is worth when a request begins."""
REQUESTS = 1024
"""Requests of which it is known how often free drafters have nothing, the newest."""
READERS = 4096
"""Pairs of request and drafter of which it is known how far the drafter has read, the newest."""


@dataclass(slots=True)
class Try:
    """When a drafter that does not pay is tried again."""

    quiet: float = 0.0
    """Steps since the last try."""
    patience: int = 1
    early: int = EARLY
    """Tries that are left for a drafter of which nothing is known."""

    def due(self, steps: float, reading: float) -> bool:
        """Whether it is time to spend so many plain steps on a draft, and on what has to be read for it."""
        wait = FIRST_PROBE if self.early else self.patience * max(FIRST_PROBE, steps / PROBE_SHARE)
        return self.quiet >= max(wait, reading / READ_SHARE)

    def result(self, good: bool) -> None:
        self.quiet, self.patience, self.early = 0, 1 if good else min(2 * self.patience, RAREST), max(0, self.early - 1)


class Costly:
    """Plans for drafters as if each were the only one; the free ones are asked first, and often suffice.

    Args:
        most: drafted tokens of a sequence in a step.
    """

    def __init__(self, drafters: Sequence[str], most: int, costs: Costs, acceptance: Acceptance) -> None:
        self._drafters, self._most, self._costs, self._acceptance = tuple(drafters), most, costs, acceptance
        self._tries: dict[str, Try] = {}
        self._sampling: set[str] = set()
        """Drafters that have drawn their tokens at random."""
        self._found: dict[str, float] = {}
        """How often each drafter had a guess of late."""
        self._read: dict[tuple[int, str], int] = {}
        self._idle = 1.0
        """Share of sequences' steps of late in which no free drafter had anything worth verifying."""
        self._idle_of: dict[int, tuple[float, float]] = {}
        """Of each request the steps in which none had, and all its steps."""
        self._turn = Turn()
        self._account = Account()

    def begin(self, turn: Turn, account: Account) -> None:
        """Turn to a new step."""
        self._turn, self._account = turn, account

    def least_survival(self) -> float:
        """Return the confidence below which one more drafted token of a costly drafter does not pay.

        It is that drafter's own word, so that how far it can be taken counts.
        """
        turn = self._turn
        if turn.probing or not self._drafters:
            return 0.0
        slowest = max(self._drafters, key=turn.draft)
        chance = min(max(self._turn.draft(slowest) / turn.sequences / turn.price + turn.row, 0.0), 1.0)
        return float(chance ** (1 / self._acceptance.sharpness(slowest)))

    def lengths(self, seqs: Sequence[Drafting], name: str) -> dict[int, tuple[int, float]]:
        """Return by request how much a costly drafter should draft, and what that gains on average, in tokens.

        Its passes are shared by all that it drafts for, so one length is chosen for all of them together; where the
        drafter is unsure of one it stops earlier.
        """
        hoped = {
            seq.id: self._hoped(seq, name, asked(seq, self._most).nodes)
            for seq in seqs
            if seq.speculation.mode == "auto" and self.is_limited(seq, name)
        }
        row = self._turn.row
        hoped = {i: tokens for i, tokens in hoped.items() if tokens and tokens[0] > row}
        length, gain = self._best_length(list(hoped.values()), self._turn.draft(name))
        if not length:
            return {}
        share = gain / len(hoped)
        sharing = [seq for seq in seqs if seq.id in hoped and self._pays_reading(seq, name, share)]
        return {seq.id: (min(length, len(hoped[seq.id])), share) for seq in sharing}

    def probe(self, seq: Drafting, name: str, most: int) -> int:
        """Return a short length when it is time, and affordable, to try a drafter that does not pay."""
        attempt = self._tries.setdefault(name, Try())
        attempt.quiet += 1 / self._turn.sequences
        if attempt.early and self._acceptance.seen(name) > UNKNOWN:
            attempt.early = 0
        length = min(self._probe_length(name), most)
        steps = length * self._turn.draft(name) / self._turn.plain_s
        reading = self._costs.catch_up(name, self._missed(seq, name)) / self._turn.plain_s
        if name in self._turn.probing or not attempt.due(steps, reading) or not self._could_pay(name):
            return 0
        if not self._account.allows(steps + reading):
            return 0
        self._turn.probing.add(name)
        return length

    def why(self, name: str) -> Reason:
        if not self._could_pay(name):
            return Reason.DRAFT_TOO_SLOW
        return Reason.BATCH_COMPUTE_BOUND if self._turn.is_steep else Reason.LOW_ACCEPTANCE

    def is_limited(self, seq: Drafting, name: str) -> bool:
        """Whether a drafter of this request has to be limited beforehand: it costs time, or is not to be trimmed."""
        if not self._turn.measured or not seq.speculation.uses(name):
            return False
        if seq.speculation.rule in ("ratio", "block") and name in self._sampling:
            return True
        return self._turn.draft(name) * self._most > FREE_SHARE * self._turn.plain_s

    def in_shadow(self, name: str) -> int:
        """Return how many tokens a drafter may draft of which nothing is verified."""
        each = self._turn.draft(name)
        return min(self._most, int(SHADOW_SHARE * self._turn.plain_s / each)) if each else self._most

    def note(self, seq: Drafting, draft: Draft) -> None:
        """Take down who has drafted, how deep, and how far it has read."""
        if not draft:
            return
        turn = self._turn
        for name, depth in deepest(draft).items():
            turn.depth[name] = max(turn.depth.get(name, 0), depth)
            if missed := self._missed(seq, name):
                turn.missed[name] = turn.missed.get(name, 0) + missed
                reading = turn.reading_s.get(seq.id, 0.0) + self._costs.catch_up(name, missed)
                turn.reading_s[seq.id] = reading
            self._read[seq.id, name] = seq.num_tokens
            if len(self._read) > READERS:
                del self._read[next(iter(self._read))]
        if draft.is_sampled:
            self._sampling.add(draft.source[0])

    def observe(self, step: StepReport) -> None:
        """Learn what drafting took, how often there was a guess, and how tries went."""
        self._observe_drafts(step)
        for outcome in step.outcomes:
            self._note_idle(outcome)

    def _hoped(self, seq: Drafting, name: str, most: int) -> list[float]:
        """Return for each depth the chance that a token drafted there becomes text."""
        found, survival = [], self._found.get(name, 1.0)
        for chance in self._acceptance.ahead(seq.id, name, most):
            survival *= chance
            found.append(survival)
        return found

    def _best_length(self, hoped: Sequence[Sequence[float]], each: float) -> tuple[int, float]:
        """Return the length at which the drafts together gain most, and how many tokens that is."""
        best, best_gain, tokens, rows = 0, 0.0, 0.0, 0
        each, row_tokens = each / self._turn.price, self._turn.row_tokens
        for depth in range(max(map(len, hoped), default=0)):
            going = [survivals[depth] for survivals in hoped if depth < len(survivals)]
            tokens, rows = tokens + sum(going), rows + len(going)
            if (gain := tokens - (depth + 1) * each - row_tokens(rows)) > best_gain:
                best, best_gain = depth + 1, gain
        return best, best_gain

    def _pays_reading(self, seq: Drafting, name: str, gain: float) -> bool:
        """Whether the text is still long enough, and the account lets a drafter read what it has missed of it.

        It gains in the steps in which the free drafters have nothing to say.
        """
        seconds = self._costs.catch_up(name, self._missed(seq, name))
        reading = seconds / self._turn.price
        if reading <= 1:
            return True
        idle, seen = self._idle_of.get(seq.id, (0.0, 0.0))
        share = (IDLE_PRIOR * self._idle + idle) / (IDLE_PRIOR + seen)
        more = gain * share * min(HORIZON, LASTS * seq.room / (self._turn.speedup + gain))
        if reading > more or self._turn.advanced or not self._account.advances(seconds / self._turn.plain_s):
            return False
        self._turn.advanced = True
        return True

    def _probe_length(self, name: str) -> int:
        """Return how many tokens tell whether a drafter pays: on a cliff a few right ones never do."""
        each = self._turn.draft(name) / self._turn.price
        least = next((n for n in range(1, self._most + 1) if n * (CERTAIN - each) > self._turn.row_tokens(n)), 0)
        return max(PROBE_TOKENS, min(2 * least, self._most))

    def _could_pay(self, name: str) -> bool:
        """Whether a drafter that is always right would pay."""
        n = self._turn.sequences
        return self._turn.draft(name) / n < CERTAIN * self._turn.price

    def _missed(self, seq: Drafting, name: str) -> int:
        """Return how many tokens a drafter has to read before it can draft; what a step or two leave is nothing."""
        missed = seq.num_tokens - self._read.get((seq.id, name), 0)
        return missed if missed > 2 * self._most else 0

    def _observe_drafts(self, step: StepReport) -> None:
        turn = self._turn
        for name, seconds in step.draft_s_by.items():
            found = self._found.get(name, 1.0)
            self._found[name] = found + 0.05 * ((name in turn.depth) - found)
            depth, missed = turn.depth.get(name, 1), turn.missed.get(name, 0)
            if missed:
                self._measure_reading(seconds - depth * turn.draft(name))
            self._costs.observe_draft(name, seconds, depth, turn.sequences, missed, turn.context)
        for name in turn.probing & step.draft_s_by.keys():
            drafts = [outcome for outcome in step.outcomes if name in outcome.drafted.drafters]
            self._tries[name].result(bool(drafts) and all(all_right(name, outcome) for outcome in drafts))

    def _measure_reading(self, seconds: float) -> None:
        """Let what reading took stand for what was expected of it, within reason."""
        expected = sum(self._turn.reading_s.values())
        if expected:
            factor = min(max(seconds / expected, 1.0), MISREAD)
            self._turn.reading_s = {i: factor * each for i, each in self._turn.reading_s.items()}

    def _note_idle(self, outcome: Outcome) -> None:
        limit = FREE_SHARE / max(1, self._most) * self._turn.plain_s
        busy = any(self._turn.draft(name) <= limit for name in set(outcome.verified.source))
        self._idle += IDLE_WEIGHT / self._turn.sequences * ((not busy) - self._idle)
        idle, seen = self._idle_of.pop(outcome.seq.id, (0.0, 0.0))
        self._idle_of[outcome.seq.id] = idle + (not busy), seen + 1
        if len(self._idle_of) > REQUESTS:
            del self._idle_of[next(iter(self._idle_of))]


def deepest(draft: Draft) -> dict[str, int]:
    """Return the depth of each drafter's deepest guess."""
    if not draft.also and draft.is_chain and len(set(draft.source)) == 1:
        return {draft.source[0]: len(draft)}
    found: dict[str, int] = {}
    for node, depth in enumerate(tree.depths(draft.parents)):
        for name, _ in draft.guesses(node):
            found[name] = max(found.get(name, 0), depth)
    return found


def all_right(name: str, outcome: Outcome) -> bool:
    """Whether the text went as a drafter guessed, as far as either went."""
    draft, parent = outcome.drafted, ROOT
    for token in outcome.tokens:
        guessed = [n for n, p in enumerate(draft.parents) if p == parent and name in dict(draft.guesses(n))]
        if not guessed:
            return True
        parent = next((n for n in guessed if draft.tokens[n] == token), ROOT)
        if parent == ROOT:
            return False
    return True
