"""What was proved, as a page that a person can sign off."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.document import document, facts, heading, paragraph, table
from paceline.bench.prove.checks import Report

KINDS = {"holds": "good", "fails": "bad", "not asked": "dim"}


def page(report: Report) -> str:
    return document(f"paceline prove: {report.provenance.get('model', '')}", _parts(report))


def _parts(report: Report) -> Iterator[str]:
    if not report.complete:
        yield paragraph("Not complete: it was interrupted, and proves nothing.", "warn lead")
    failed = [check.name for check in report.checks if check.verdict == "fails"]
    said = f"Does not hold: {'; '.join(failed)}." if failed else "Every check that was asked holds."
    yield paragraph(said, f"lead {'bad' if failed else 'good'}")
    yield heading("Checks")
    rows = [(c.name, (c.verdict, KINDS[c.verdict]), c.asked, c.found) for c in report.checks]
    yield table(("check", "verdict", "asked", "found"), rows)
    for check in report.checks:
        for line in check.detail:
            yield paragraph(f"{check.name}: {line}")
    yield heading("To see it again")
    yield table(("check", "command"), [(check.name, check.again) for check in report.checks if check.again])
    yield heading("Where this comes from")
    yield facts((name, value) for name, value in report.provenance.items() if value is not None)
    yield heading("Signed off")
    yield facts((name, "…") for name in ("name", "date", "for which service"))
