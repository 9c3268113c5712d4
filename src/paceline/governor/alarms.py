"""What is out of order: alarms that say what was measured, what it probably means, and what to do about it.

They watch, and decide nothing: drafting is lowered by costs and chances whether an alarm is on or not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from paceline.governor.account import Account
from paceline.governor.base import Outcome, StepReport
from paceline.governor.costs import Costs
from paceline.governor.signs import LATEST, LEAST_LEVEL, LOOP_TOKENS, USUAL, Form, Latch, Said, came_true

log = logging.getLogger(__name__)

COLLAPSE, LOOP, HISTORY = "acceptance_collapse", "repetition", "below_history"
SLOW, OVERDRAWN = "draft_slower_than_profiled", "account_overdrawn"
NAMES = (COLLAPSE, LOOP, HISTORY, SLOW, OVERDRAWN)

COPIES = frozenset({"prediction", "suffix", "lookup", "recycle"})
"""Drafters that retell texts: their luck is the text's, and falls without anything being wrong."""
HISTORY_GUESSES, HISTORY_LOW, HISTORY_BACK = 256, 0.6, 0.75
"""Guesses after which history is compared, and the shares of it below and above which an alarm goes on and off."""
LOOP_QUIET = 64
"""Steps without a loop after which the alarm goes off."""
EVERY, SLOW_LOOKS = 8, 4
"""Steps between two looks at what a drafter's passes take, and looks in a row that tell."""
SLOW_FACTOR, SLOW_BACK = 1.5, 1.25
"""Slow-downs above and below which they do."""
SLOW_LEAST_S = 1e-3
"""Seconds that a pass has to lose; less is the clock's business."""
OVERDRAWN_STEPS, REPAID_STEPS = 16, 64
"""Steps in a row that an account is overdrawn, or no longer is."""
REQUESTS = 1024
"""Requests that are remembered, the newest."""
LATELY, WITNESS = 256, 4
"""Steps after which a request no longer says how a drafter does, and guesses from which on it does."""


@dataclass(frozen=True, slots=True)
class Alarm:
    name: str
    since: int
    """Number of the step in which it went on; the engine's first is 1."""
    text: str
    """One line: what, the figures, likely causes, what to do."""


class Alarms:
    """Fed once a step; each alarm goes on and off by bounds that lie apart, so that none flickers.

    Args:
        history: how often each drafter's guesses came true in earlier runs of the same models, see `Acceptance.rate`.
    """

    def __init__(self, history: Mapping[str, float] | None = None) -> None:
        self._history = dict(history or {})
        self._step = 0
        self._drafters: dict[str, Form] = {}
        self._requests: dict[int, Said] = {}
        self._looped = 0
        """The step in which a text was last seen to loop."""
        self._overdrawn = Latch(OVERDRAWN_STEPS, REPAID_STEPS)
        self._lower: dict[str, Latch] = {}
        self._slow: dict[str, Latch] = {}
        self._on: dict[tuple[str, str], Alarm] = {}
        """By name, and by the drafter that it is about."""
        self.raised: Counter[str] = Counter()
        """How often each has gone on."""

    @property
    def active(self) -> Mapping[str, Alarm]:
        """The alarms that are on, by name; of one that is on for several drafters the text names all."""
        found: dict[str, Alarm] = {}
        for alarm in self._on.values():
            before = found.get(alarm.name)
            text = alarm.text if before is None else f"{before.text}; {alarm.text}"
            found[alarm.name] = Alarm(alarm.name, alarm.since if before is None else before.since, text)
        return found

    def observe(self, step: StepReport, costs: Costs, account: Account) -> None:
        """Take in a finished step, when costs and account have done so."""
        self._step += 1
        for outcome in step.outcomes:
            request = self._seen(outcome)
            if request.run >= LOOP_TOKENS and request.loops:
                self._looped = self._step
                self._set(LOOP, "", True, partial(_loop_text, request))
        if self._on and self._step - self._looped >= LOOP_QUIET:
            self._set(LOOP, "", False)
        was_overdrawn = self._overdrawn.on
        if step.outcomes and self._overdrawn.feed(account.overdrawn, not account.overdrawn) != was_overdrawn:
            self._set(OVERDRAWN, "", not was_overdrawn, lambda: _overdrawn_text(account))
        if self._step % EVERY == 0:
            for name in step.draft_s_by:
                self._time(name, costs)

    def _seen(self, outcome: Outcome) -> Said:
        """Take in what became of one request's guesses, and of its text."""
        request = self._requests.get(outcome.seq.id)
        if request is None:
            if len(self._requests) >= REQUESTS:
                del self._requests[next(iter(self._requests))]
            request = self._requests[outcome.seq.id] = Said()
        request.step = self._step
        if outcome.drafted.tokens:
            for name, (right, missed) in came_true(outcome.drafted, outcome.tokens).items():
                request.luck.add(right, right + missed, LATEST)
                if name not in COPIES:
                    request.guess(name, right, missed)
                    self._guessed(name, right, missed, outcome.seq.id)
        request.extend(outcome.tokens)
        return request

    def _guessed(self, name: str, right: int, missed: int, request: int) -> None:
        drafter, history = self._drafter(name), self._history.get(name, 0.0)
        earlier = history if history >= LEAST_LEVEL else None
        expected = drafter.level.rate if drafter.is_known else earlier
        before = drafter.collapsed
        drafter.add(right, missed, expected, request)
        if drafter.collapsed != before:
            self._set(COLLAPSE, name, not before, lambda: self._collapse_text(name, drafter, expected))
        if history and drafter.level.seen >= HISTORY_GUESSES:
            rate = drafter.level.rate
            lower = self._lower.setdefault(name, Latch(1, 1))
            is_lower = lower.feed(rate < HISTORY_LOW * history, rate > HISTORY_BACK * history)
            self._set(HISTORY, name, is_lower, lambda: _history_text(name, rate, history))

    def _time(self, name: str, costs: Costs) -> None:
        slowdown, now = costs.slowdown(name), costs.draft(name, 1)
        is_slow = slowdown > SLOW_FACTOR and now - now / slowdown >= SLOW_LEAST_S
        is_on = self._slow.setdefault(name, Latch(SLOW_LOOKS, SLOW_LOOKS)).feed(is_slow, slowdown < SLOW_BACK)
        self._set(SLOW, name, is_on, lambda: _slow_text(name, now, slowdown))

    def _drafter(self, name: str) -> Form:
        found = self._drafters.get(name)
        if found is None:
            found = self._drafters[name] = Form()
        return found

    def _set(self, name: str, about: str, is_on: bool, text: Callable[[], str] = str) -> None:
        key = name, about
        if is_on and key not in self._on:
            self._on[key] = alarm = Alarm(name, self._step, text())
            self.raised[name] += 1
            log.warning("alarm %s: %s", name, alarm.text)
        elif not is_on:
            self._on.pop(key, None)

    def _collapse_text(self, name: str, drafter: Form, expected: float | None) -> str:
        """Say what collapsed and, from who else it happened to, why."""
        what = f"{name}: {drafter.suspect.right:.0f} of {drafter.suspect.seen:.0f} guesses came true"
        if expected is None:
            return (
                f"{what} since it began; likely it has another tokenizer than the target, or heads that were wired to "
                "other layers or trained for another model; see `paceline inspect`, or go without it"
            )
        if not drafter.is_known:
            return (
                f"{what}, {expected:.0%} in earlier runs; likely the target or the drafter is another than it was: its "
                "weights or their quantisation; see that both are what was meant"
            )
        failed, known = self._spread(name, drafter, USUAL * expected)
        what = f"{what}, {expected:.0%} before"
        what = f"{what}, in {failed} of the {known} requests of late" if known else what
        if failed == known > 1:
            return (
                f"{what}; likely the target is another than the drafter was made for, in its quantisation say, or all "
                "texts are of another kind now; it is drafted less; if it stays, choose or train another drafter"
            )
        return (
            f"{what}; likely the text is of another kind (domain shift); it is drafted less, nothing has to be done; "
            "for many such texts choose or train another drafter"
        )

    def _spread(self, name: str, drafter: Form, least: float) -> tuple[int, int]:
        """Return in how many requests a drafter fails, and in how many of late it is known how it does."""
        failed = {i for i, level in drafter.suspects.items() if level.seen > 1 and level.rate < least}
        lately = {i: r.guesses.get(name, ()) for i, r in self._requests.items() if self._step - r.step < LATELY}
        known = {i for i, guesses in lately.items() if len(guesses) >= WITNESS}
        return len(failed), len(failed | known)


def _loop_text(request: Said) -> str:
    return (
        f"a text repeats its last {request.period} tokens, for {request.run} tokens by now, and "
        f"{request.luck.rate:.0%} of the guesses come true: a loop, not a success; likely greedy decoding of a small "
        "or damaged model; raise temperature or repetition_penalty, or set a stop or a lower max_tokens"
    )


def _history_text(name: str, rate: float, history: float) -> str:
    return (
        f"{name}: {rate:.0%} of its guesses come true, {history:.0%} in earlier runs of this model; likely texts of "
        "another kind, or a drafter that was changed; compare it on the texts of then"
    )


def _slow_text(name: str, now: float, slowdown: float) -> str:
    return (
        f"{name}: a pass takes {now * 1e3:.1f} ms, beside the target's {slowdown:.1f} × what was measured at start; "
        "likely something else competes for cores or memory, or did when it was measured; see what else runs, start "
        "anew, or take a smaller drafter"
    )


def _overdrawn_text(account: Account) -> str:
    return (
        f"speculation has lost more than it may ({account.balance:.1f} plain steps), so steps are plain until that is "
        "made good; likely passes take longer than measured, on a machine that is busier now, or texts turned hard; if "
        "it comes back often, lower max_draft or leave a drafter out"
    )
