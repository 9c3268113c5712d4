"""A journal's account in sections: the same for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from paceline.server.account_records import Account, Difference, Finding, Loss, Spell, Spells, Sums

MS, MINUTE_S, HOUR_S = 1e-3, 60.0, 3600.0
_COLUMNS = ("requests", "tokens", "saved", "wasted", "× plain", "τ", "accepted")
_NO_DRAFTERS = "Counts of single drafters are not in a journal; a running server has them at /metrics."


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    """Above the table, or in its place."""


def summary(account: Account) -> list[str]:
    """Return what there is to know, in a few sentences."""
    total, audits = account.total, account.audits
    said = [f"{_moment(account.since)} to {_moment(account.until)} UTC"]
    if account.first is None:
        return [*said, "The journal is empty: nothing was served yet."]
    if account.first > account.since:
        said.append(f"The journal begins at {_moment(account.first)}; what was before is not known.")
    if not total.requests:
        return [*said, f"No requests in this time. The last entry is of {_moment(account.last or account.first)}."]
    said.append(
        f"{total.requests:,} requests, {total.completion_tokens:,} tokens; {total.speculated:,} speculated, "
        f"{total.failed:,} failed, {total.broken_off:,} were broken off."
    )
    verb = "saved" if total.saved_ms >= 0 else "lost"
    speed = f", {total.plain_ratio:.2f} × plain" if total.plain_ratio is not None else ""
    said.append(
        f"Speculation {verb} {span(abs(total.saved_ms) * MS)} against plain decoding{speed}; "
        f"{total.slower:,} requests were slower, by {span(total.lost_ms * MS)}; "
        f"{span(total.wasted_ms * MS)} went into rejected drafts. Both are in the account already."
    )
    said.append(
        f"Audits: {audits.equal:,} equal, {audits.near_tie:,} near-ties, {audits.different:,} different, "
        f"{audits.failed:,} without a verdict; they took {span(audits.ms * MS)}."
    )
    return said


def sections(account: Account) -> Iterator[Section]:
    """Yield what there is something to say of, what is worth looking at first."""
    yield Section("Worth looking at", (), (), tuple(map(_finding, account.findings)) or ("Nothing stands out.",))
    if account.total.requests:
        yield _sums("By day (UTC)", "day", account.by_day)
        yield _sums("By mode and rule", "mode", account.by_mode, _NO_DRAFTERS)
    if account.reasons:
        reasons = tuple((clean(code), f"{count:,}") for code, count in account.reasons.items())
        yield Section("Why less was drafted", ("reason", "times"), reasons)
    if account.off:
        yield _spells("Without speculation, by cause", "cause", account.off)
        one_by_one = tuple(map(_spell, account.off_spells))
        yield Section("Without speculation, the newest first", ("since", "for", "cause", "why"), one_by_one)
    if account.alarms:
        yield _spells("Alarms", "alarm", account.alarms)
    if account.audits.differences:
        different = tuple(map(_difference, account.audits.differences))
        yield Section("Audits that differ", ("request", "at", "position", "gap, logits"), different)
    if account.losses:
        losses = tuple(map(_loss, account.losses))
        yield Section("Requests that lost most", ("request", "key", "at", "lost", "verified", "accepted"), losses)


def _finding(finding: Finding) -> str:
    return f"• {clean(finding.text)}" + (f" (docs/runbooks/{finding.runbook}.md)" if finding.runbook else "")


def _sums(title: str, name: str, groups: Mapping[str, Sums], *lines: str) -> Section:
    return Section(title, (name, *_COLUMNS), tuple(_row(group, sums) for group, sums in groups.items()), lines)


def _row(name: str, sums: Sums) -> tuple[str, ...]:
    return (
        clean(name),
        f"{sums.requests:,}",
        f"{sums.completion_tokens:,}",
        span(sums.saved_ms * MS),
        span(sums.wasted_ms * MS),
        _known(sums.plain_ratio, "{:.2f}"),
        _known(sums.acceptance_length, "{:.2f}"),
        _known(sums.acceptance_rate, "{:.0%}"),
    )


def _spells(title: str, name: str, found: Iterable[Spells]) -> Section:
    rows = tuple(
        (
            clean(each.name),
            f"{each.times:,}",
            span(each.seconds),
            f"{each.unended:,}",
            _moment(each.last.since),
            clean(each.last.text),
        )
        for each in found
    )
    return Section(title, (name, "times", "in all", "no end", "last began", "and said"), rows)


def _spell(spell: Spell) -> tuple[str, ...]:
    lasted = "no end in the journal" if spell.until is None else span(spell.until - spell.since)
    return (_moment(spell.since), lasted, spell.name, clean(spell.text))


def _difference(found: Difference) -> tuple[str, ...]:
    return (clean(found.id), _moment(found.at), _known(found.position, "{:d}"), _known(found.gap, "{:.3f}"))


def _loss(loss: Loss) -> tuple[str, ...]:
    counts = (f"{loss.verified:,}", f"{loss.accepted:,}")
    return (clean(loss.id), clean(loss.key), _moment(loss.at), span(-loss.saved_ms * MS), *counts)


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def span(seconds: float) -> str:
    """Return a length of time, which may be negative, in a unit that suits it."""
    if abs(seconds) < MINUTE_S:
        return f"{seconds:.1f} s"
    return f"{seconds / MINUTE_S:.1f} min" if abs(seconds) < HOUR_S else f"{seconds / HOUR_S:.1f} h"


def clean(text: object) -> str:
    """Return a text of one line in which no character steers a terminal or breaks a page."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(text).split()))


def parts(account: Account) -> Iterator[RenderableType]:
    """Yield the account for a terminal."""
    yield Text("\n".join([clean(f"Journal {account.journal}"), *summary(account)]))
    for section in sections(account):
        yield Text(f"\n{section.title}", style="bold")
        yield from map(Text, section.lines)
        if section.rows:
            yield _table(section)


def _table(section: Section) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(section.names):
        cells = [row[i] for row in section.rows]
        is_short = all(cell[:1] in "–-0123456789" for cell in cells)  # a number, or a time
        table.add_column(Text(name), justify="right" if is_short else "left", no_wrap=is_short, overflow="fold")
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table
