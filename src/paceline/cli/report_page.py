"""A journal's account as a page that stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.bench import plots
from paceline.bench.document import document, figure, heading, paragraph, table
from paceline.cli.report_table import MS, clean, sections, summary
from paceline.server.account_records import Account


def page(account: Account) -> str:
    """Raises MissingExtra: there is nothing to draw with."""
    return document(f"paceline report: {clean(account.journal)}", _parts(account))


def _parts(account: Account) -> Iterator[str]:
    yield from map(paragraph, summary(account))
    for section in sections(account):
        yield heading(section.title)
        yield from map(paragraph, section.lines)
        if section.rows:
            yield table(section.names, section.rows)
        if section.names[:1] == ("day",):
            yield from _figures(account)


def _figures(account: Account) -> Iterator[str]:
    sums = list(account.by_day.values())
    days = range(1 - len(sums), 1)
    times = {
        "wasted": [(day, each.wasted_ms * MS) for day, each in zip(days, sums, strict=True)],
        "saved": [(day, each.saved_ms * MS) for day, each in zip(days, sums, strict=True)],
    }
    from_zero = all(each.saved_ms >= 0 for each in sums)
    yield from _figure("Time saved and wasted, by day", "seconds", times, from_zero)
    rates = [(day, rate) for day, each in zip(days, sums, strict=True) if (rate := each.acceptance_rate) is not None]
    if rates:
        yield from _figure("Accepted of the verified tokens, by day", "share", {"accepted": rates})


def _figure(title: str, unit: str, series: Mapping[str, plots.Points], from_zero: bool = True) -> Iterator[str]:
    yield paragraph(title, "dim")
    yield figure(plots.lines(title, "days before the last", unit, series, base=from_zero))
