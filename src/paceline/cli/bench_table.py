"""What `bench` found, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from paceline.bench.result import ALL, Cell, Comparison, Result

COLOURS = {"faster": "green", "same": "", "slower": "red"}
MIB = 1 << 20


def parts(result: Result) -> Iterator[RenderableType]:
    if result.synthetic is not None:
        rates = ", ".join(f"{rate:g}" for rate in result.synthetic)
        yield Text(f"SYNTHETIC acceptance ({rates} by depth): costs are real, acceptance is not", style="bold red")
    for batch in dict.fromkeys(cell.batch for cell in result.cells):
        yield _speeds(result, batch)
        yield _ratios(result, batch)
    yield Text("\n".join(_closing(result)))


def _speeds(result: Result, batch: int) -> Table:
    table = Table(title=f"{batch} at a time, all categories", title_justify="left", box=None, pad_edge=False)
    table.add_column("mode", no_wrap=True)
    for name in ("tokens/s", "ms a token, p50–p95", "first token, ms", "τ", "accepted", "wasted", "peak MiB"):
        table.add_column(name, justify="right")
    for cell in result.cells:
        if cell.batch == batch and cell.category == ALL:
            table.add_row(cell.mode, *_speed(cell))
    return table


def _speed(cell: Cell) -> Iterator[str]:
    yield f"{cell.tokens_per_s:.1f}"
    yield f"{cell.tpot_ms.p50:.1f}–{cell.tpot_ms.p95:.1f}"
    yield f"{cell.ttft_ms.p50:.0f}–{cell.ttft_ms.p95:.0f}"
    yield _known(cell.acceptance_length, "{:.2f}")
    yield _known(cell.acceptance_rate, "{:.0%}")
    yield _known(cell.wasted_share, "{:.1%}")
    yield _known(None if cell.peak_memory_bytes is None else cell.peak_memory_bytes / MIB, "{:,.0f}")


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _ratios(result: Result, batch: int) -> Table:
    mine = [c for c in result.comparisons if c.batch == batch]
    modes = list(dict.fromkeys(c.mode for c in mine))
    against = mine[0].against if mine else ""
    table = Table(title=f"times as fast as {against}", title_justify="left", box=None, pad_edge=False)
    table.add_column("category", no_wrap=True)
    for mode in modes:
        table.add_column(mode, justify="right", no_wrap=True)
    for category in dict.fromkeys(c.category for c in mine):
        row = {c.mode: c for c in mine if c.category == category}
        table.add_row(category, *(_ratio(row[mode]) if mode in row else Text("–") for mode in modes))
    return table


def _ratio(c: Comparison) -> Text:
    return Text(f"{c.ratio:.2f} ({c.low:.2f}–{c.high:.2f}) {c.verdict}", style=COLOURS[c.verdict])


def _closing(result: Result) -> Iterator[str]:
    if result.noise:
        noise = ", ".join(f"±{share:.1%} at {batch}" for batch, share in result.noise.items())
        yield f"noise floor (plain against plain, all categories): {noise}"
    texts = result.text_identical
    yield (
        f"texts: {texts.equal} of {texts.prompts} identical, {texts.near_ties} parted at a near-tie, "
        f"{texts.different} different"
    )
    for d in result.differences:
        gap = "a gap that cannot be measured" if d.gap is None else f"a gap of {d.gap:.3f} logits"
        where = f"prompt {d.prompt + 1} ({d.category}) parts at token {d.position + 1}"
        yield f"  {d.mode}, {d.batch} at a time: {where}, {gap}"
    about = result.provenance
    yield f"{about.get('machine', '')}, {about.get('date', '')}; {' '.join(map(str, about.get('argv', ())))}"
