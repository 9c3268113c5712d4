"""What `bench` found, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from statistics import median

from paceline.bench import files, plots
from paceline.bench.document import document, facts, figure, heading, paragraph, table
from paceline.bench.plots import Bar
from paceline.bench.result import ALL, Cell, Comparison, Result

KINDS = {"faster": "good", "same": "", "slower": "bad"}
MIB = 1 << 20


def write(result: Result, path: Path) -> None:
    """Write one file that holds everything.

    Raises:
        MissingExtra: there is nothing to draw with.
        DiskFull, OptionError: it cannot be written.
    """
    files.write(path, page(result))


def page(result: Result, title: str | None = None, what: str = "") -> str:
    """Return the page; what it is about stands below its title."""
    model = str(result.provenance.get("model") or _flat(result.provenance.get("servers", "a model")))
    kind = "" if result.synthetic is None else " (synthetic acceptance)"
    lead = [paragraph(what, "dim")] if what else []
    return document(title or f"paceline bench: {model}{kind}", [*lead, *_parts(result)])


def _parts(result: Result) -> Iterator[str]:
    mark = ""
    if result.synthetic is not None:
        rates = ", ".join(f"{rate:g}" for rate in result.synthetic)
        yield paragraph(f"Synthetic acceptance ({rates} by depth): costs are real, acceptance is not.", "warn lead")
        mark = " (synthetic acceptance, no real result)"
    yield from _verdict(result, mark)
    yield from _ratios(result, mark)
    yield from _speeds(result, mark)
    yield from _acceptance(result, mark)
    yield from _time(result, mark)
    yield from _texts(result, mark)
    yield heading("Every cell" + mark)
    yield table(_CELL, map(_cell, result.cells))
    yield heading("Where these numbers come from")
    yield facts((name, _flat(value)) for name, value in result.provenance.items() if value is not None)


def _verdict(result: Result, mark: str) -> Iterator[str]:
    if not result.comparisons:
        yield paragraph("One mode alone: there is nothing to compare it with.", "lead")
    for c in result.comparisons:
        if c.category == ALL and c.mode != "off":
            text = f"{c.mode}, {c.batch} at a time: {c.verdict}, {_interval(c)} times as fast as {c.against}{mark}."
            yield paragraph(text, f"lead {KINDS[c.verdict]}")
    if result.noise:
        noise = ", ".join(f"±{share:.1%} at {batch}" for batch, share in result.noise.items())
        yield paragraph(f"Noise floor, plain decoding against itself: {noise}.", "dim")
    texts = result.text_identical
    kind = "bad" if texts.different else ""
    yield paragraph(
        f"Texts: {texts.equal} of {texts.prompts} identical, {texts.near_ties} parted at a near-tie, "
        f"{texts.different} different.",
        kind,
    )


def _ratios(result: Result, mark: str) -> Iterator[str]:
    for batch in dict.fromkeys(c.batch for c in result.comparisons):
        mine = [c for c in result.comparisons if c.batch == batch]
        title = f"Times as fast as {mine[0].against}, by category, {batch} at a time{mark}"
        groups: dict[str, dict[str, Bar]] = {}
        for c in mine:
            groups.setdefault(c.category, {})[c.mode] = Bar(c.ratio, c.low, c.high)
        yield heading(title)
        yield figure(plots.bars(title, "ratio", groups, line=1.0))
        modes = list(dict.fromkeys(c.mode for c in mine))
        yield table(("category", *(f"{mode}: ratio, 95 % interval" for mode in modes)), _by_category(mine, modes))
    if len({c.batch for c in result.comparisons}) > 1:
        series: dict[str, list[tuple[float, float]]] = {}
        for c in result.comparisons:
            if c.category == ALL:
                series.setdefault(c.mode, []).append((c.batch, c.ratio))
        title = "Ratio by batch, all categories" + mark
        yield heading(title)
        yield figure(plots.lines(title, "requests at a time", "ratio", series))


def _by_category(comparisons: list[Comparison], modes: list[str]) -> Iterator[tuple[object, ...]]:
    for category in dict.fromkeys(c.category for c in comparisons):
        found = {
            c.mode: (f"{_interval(c)} {c.verdict}", KINDS[c.verdict]) for c in comparisons if c.category == category
        }
        yield category, *(found.get(mode, "–") for mode in modes)


def _speeds(result: Result, mark: str) -> Iterator[str]:
    for batch in dict.fromkeys(pace.batch for pace in result.paces):
        mine = [pace for pace in result.paces if pace.batch == batch]
        title = f"Tokens a second over each mode's own time, {batch} at a time{mark}"
        ends = {p.mode: list(accumulate([p.stretch_s] * len(p.tokens_per_s))) for p in mine}
        series = {p.mode: list(zip(ends[p.mode], p.tokens_per_s, strict=True)) for p in mine}
        yield heading(title)
        yield figure(plots.lines(title, "seconds in steps", "tokens/s", series))
        spread = [(p.mode, *(f"{f(p.tokens_per_s):.1f}" for f in (min, median, max))) for p in mine if p.tokens_per_s]
        yield table(("mode", "least", "median", "most"), spread)
        told = [p for p in mine if p.verified_per_step]
        drafted = {p.mode: list(zip(ends[p.mode], p.verified_per_step, strict=True)) for p in told}
        if any(y for points in drafted.values() for _, y in points):
            title = f"Drafted tokens in a pass, of each sequence, {batch} at a time{mark}"
            yield heading(title)
            yield figure(plots.lines(title, "seconds in steps", "drafted tokens", drafted, steps=True))


def _acceptance(result: Result, mark: str) -> Iterator[str]:
    series = {
        _named(cell): [(float(depth + 1), count / cell.steps) for depth, count in enumerate(cell.accepted_at)]
        for cell in _whole(result)
        if cell.accepted_at and cell.steps
    }
    if series:
        title = "Accepted at each depth, per target pass" + mark
        yield heading(title)
        yield figure(plots.lines(title, "depth in the draft", "accepted per pass", series))
        rows = [(name, *(f"{y:.3f}" for _, y in points[:8])) for name, points in series.items()]
        yield table(("mode", *(str(depth) for depth in range(1, 1 + max(len(row) - 1 for row in rows)))), _even(rows))


def _time(result: Result, mark: str) -> Iterator[str]:
    columns = {}
    for cell in _whole(result):
        if cell.draft_ms is not None and cell.verify_ms is not None and cell.other_ms is not None and cell.tokens:
            parts = {"target pass": cell.verify_ms, "drafting": cell.draft_ms, "rest": cell.other_ms}
            columns[_named(cell)] = {name: ms / cell.tokens for name, ms in parts.items()}
    if columns:
        title = "Where the time of a token goes" + mark
        yield heading(title)
        yield figure(plots.stacks(title, "ms a token", columns))
        rows = [(name, *(f"{ms:.2f}" for ms in parts.values())) for name, parts in columns.items()]
        yield table(("mode", "target pass, ms", "drafting, ms", "rest, ms"), rows)
    if result.cost_curve:
        title = "What a pass of the target takes, by rows" + mark
        points = [(float(point.rows), point.ms) for point in result.cost_curve]
        yield heading(title)
        yield figure(plots.lines(title, "rows of a pass", "ms", {"target": points}))
        yield table(("rows", "ms"), [(f"{rows:g}", f"{ms:.2f}") for rows, ms in points])


def _texts(result: Result, mark: str) -> Iterator[str]:
    if result.differences:
        yield heading("Where texts part" + mark)
        names = ("mode", "batch", "prompt", "category", "token", "gap in logits")
        yield table(
            names,
            [
                (d.mode, d.batch, d.prompt + 1, d.category, d.position + 1, "–" if d.gap is None else f"{d.gap:.3f}")
                for d in result.differences
            ],
        )


_CELL = (
    "category", "batch", "mode", "prompts", "tokens", "tokens/s", "ms a token, p50", "p95",
    "first token ms, p50", "p95", "τ", "accepted", "coverage", "wasted", "peak MiB",
)  # fmt: skip


def _cell(cell: Cell) -> tuple[object, ...]:
    peak = None if cell.peak_memory_bytes is None else cell.peak_memory_bytes / MIB
    return (
        cell.category,
        cell.batch,
        cell.mode,
        cell.prompts,
        cell.tokens,
        f"{cell.tokens_per_s:.1f}",
        *(f"{ms:.1f}" for ms in (cell.tpot_ms.p50, cell.tpot_ms.p95, cell.ttft_ms.p50, cell.ttft_ms.p95)),
        _known(cell.acceptance_length, "{:.2f}"),
        _known(cell.acceptance_rate, "{:.1%}"),
        _known(cell.coverage, "{:.2f}"),
        _known(cell.wasted_share, "{:.1%}"),
        _known(peak, "{:,.0f}"),
    )


def _whole(result: Result) -> list[Cell]:
    return [cell for cell in result.cells if cell.category == ALL]


def _named(cell: Cell) -> str:
    return f"{cell.mode}, {cell.batch} at a time"


def _interval(c: Comparison) -> str:
    return f"{c.ratio:.3f} ({c.low:.3f}–{c.high:.3f})"


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _even(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    most = max(map(len, rows))
    return [row + ("",) * (most - len(row)) for row in rows]


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {what}" for name, what in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
