"""What of an account is worth looking at: one rule a function, each from figures that stand in the account."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import Targets
from paceline.governor.base import Reason
from paceline.server.account_records import Account, Finding, Spells, Sums
from paceline.server.board import AUDIT, RUNBOOKS

COLLAPSE = "collapse"
BY_CAUSE = {"latency": "overload", "slowdown": COLLAPSE, "account": COLLAPSE, "audit": RUNBOOKS[AUDIT]}
BROKEN = (Reason.DRAFT_INVALID, Reason.DRAFTER_FAILED)
"""Reasons that a sound drafter never gives."""


def findings(account: Account) -> tuple[Finding, ...]:
    """Return what stands out, what is wrong first; nothing of a time without requests but what was wrong."""
    rules = (_texts, _losses, _off, _drafters, _alarms, _audits, _requests, _journal)
    return tuple(finding for rule in rules for finding in rule(account))


def _texts(account: Account) -> Iterator[Finding]:
    if different := account.audits.different:
        yield Finding(
            "different_text",
            f"of {account.audits.judged} audited answers, {different} had another text than plain decoding gives; "
            "likely a fault in paceline or a library under it; keep the journal and report it",
            RUNBOOKS[AUDIT],
        )
    lossy = sum(sums.speculated for mode, sums in account.by_mode.items() if mode.endswith(", typical"))
    if lossy:
        yield Finding("lossy", f"{lossy} requests speculated under the rule typical, which changes texts")


def _losses(account: Account) -> Iterator[Finding]:
    total = account.total
    if _is_slow(total):
        yield Finding(
            "slower_than_plain",
            f"speculation lost {-total.saved_ms / 1e3:.1f} s in all; `paceline tune` says whether it can pay here",
            COLLAPSE,
        )
    elif losing := [day for day, sums in account.by_day.items() if _is_slow(sums)]:
        worst = min(losing, key=lambda day: account.by_day[day].saved_ms)
        lost = -account.by_day[worst].saved_ms / 1e3
        yield Finding(
            "losing_days",
            f"on {len(losing)} of {len(account.by_day)} days speculation lost time, most on {worst} ({lost:.1f} s)",
            COLLAPSE,
        )
    if 0 < total.saved_ms < total.wasted_ms:
        yield Finding(
            "waste",
            f"more time went into rejected drafts ({total.wasted_ms / 1e3:.1f} s) than was saved "
            f"({total.saved_ms / 1e3:.1f} s); other drafters, or shorter drafts, may do better",
            COLLAPSE,
        )


def _off(account: Account) -> Iterator[Finding]:
    for spells in account.off:
        if spells.name in BY_CAUSE:
            text = f"the server switched speculation off {_often(spells)} ({spells.name}); last: {spells.last.text}"
            yield Finding(f"off_{spells.name}", text, BY_CAUSE[spells.name])
    last = account.off_spells[0] if account.off_spells else None
    if last is not None and last.until is None:
        yield Finding("off_now", f"speculation was switched off ({last.name}), and nothing shows that it came back")


def _drafters(account: Account) -> Iterator[Finding]:
    for code in BROKEN:
        if count := account.reasons.get(code, 0):
            yield Finding(str(code), f"a drafter is at fault: {code} {count} times; see the server's log")
    total = account.total
    if total.requests and not total.speculated and not account.off:
        reason = next(iter(account.reasons), None)
        why = f"the most frequent reason is {reason}" if reason else "no reason is given"
        yield Finding("never_speculated", f"no request speculated; {why}")


def _alarms(account: Account) -> Iterator[Finding]:
    for spells in account.alarms:
        if spells.name != AUDIT or not account.audits.different:
            text = f"alarm {spells.name} was on {_often(spells)}; last: {spells.last.text}"
            yield Finding(f"alarm_{spells.name}", text, RUNBOOKS.get(spells.name))


def _audits(account: Account) -> Iterator[Finding]:
    audits, speculated = account.audits, account.total.speculated
    if audits.failed:
        yield Finding("audits_failed", f"{audits.failed} audits came to no verdict; see the server's log")
    if speculated and not audits.judged:
        yield Finding(
            "not_audited", f"{speculated} requests speculated and none was audited; a larger audit.share finds one"
        )


def _requests(account: Account) -> Iterator[Finding]:
    total = account.total
    if total.failed:
        yield Finding("failed_requests", f"{total.failed} of {total.requests} requests failed; see the server's log")


def _journal(account: Account) -> Iterator[Finding]:
    if account.ahead:
        text = f"{account.ahead} entries of the journal have a time that is still to come, and are not counted"
        yield Finding("clock", f"{text}; was the clock set back?")


def _is_slow(sums: Sums) -> bool:
    """Whether more time was lost than a server tolerates where its configuration says nothing else."""
    return sums.plain_ratio is not None and sums.plain_ratio * Targets().slowdown < 1


def _often(spells: Spells) -> str:
    ended = f"{spells.times} time{'s' * (spells.times > 1)}, {spells.seconds:.0f} s in all"
    return f"{ended}, and {spells.unended} of them without an end in the journal" if spells.unended else ended
