"""A server's state as a picture for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.cli.render import visible

BAR = 24
"""Characters of a bar."""
_SAME = 0.02
"""Speeds that differ by less are not told apart."""


def panel(state: Mapping[str, Any], url: str, gone: str | None = None) -> RenderableType:
    """Return what is shown.

    Args:
        gone: why the server no longer answers; the state is then its last.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="dim", min_width=12)
    table.add_column(overflow="fold")
    for name, value in _rows(state):
        table.add_row(name, value)
    parts: list[RenderableType] = [_title(state, url), table, *_alarms(state)]
    if gone is not None:
        parts.append(Text(visible(f"{gone}; this is what it said last"), style="bold red"))
    return Group(*parts)


def _title(state: Mapping[str, Any], url: str) -> Text:
    model = state["model"]
    title = Text(visible(str(model.get("id", "?"))), style="bold")
    return title.append(f"  {model.get('runner', '?')} {model.get('weights', '')} at {visible(url)}", style="dim")


def _rows(state: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    rate, busy, batch = state["rate"], state["busy"], state["batch"]
    acceptance, latency, memory = state["acceptance"], state["latency"], state["memory"]
    yield "speed", _speed(_number(rate, "tokens_per_s"), rate.get("plain_tokens_per_s"))
    yield "busy", _busy(_number(busy, "share"), _number(busy, "wasted_share"))
    yield "batch", Text(f"{_count(batch, 'running')} of {_count(batch, 'limit')} run, {_count(batch, 'waiting')} wait")
    yield "speculation", _speculation(state["speculation"])
    length, share = _number(acceptance, "length"), _number(acceptance, "rate")
    yield "accepted", Text(f"{share:.0%} of verified tokens, {length:.2f} tokens a pass")
    yield "first token", Text(f"p50 {_ms(latency, 'ttft_p50_ms')}, p95 {_ms(latency, 'ttft_p95_ms')}")
    yield "each token", Text(f"p50 {_ms(latency, 'tpot_p50_ms')}, p95 {_ms(latency, 'tpot_p95_ms')}")
    used, blocks = _mib(memory, "kv_used_bytes"), _mib(memory, "kv_bytes")
    yield "memory", Text(f"{_mib(memory, 'process_bytes')} in all, KV {used} of {blocks} in use")
    if reasons := state["reasons"]:
        ordered = sorted(reasons.items(), key=lambda item: -item[1] if isinstance(item[1], int) else 0)
        yield "reasons", Text(visible(", ".join(f"{code} {count}" for code, count in ordered)))


def _speed(rate: float, plain: object) -> Text:
    text = Text(f"{rate:.1f} tokens/s")
    if not isinstance(plain, (int, float)) or not plain:
        return text
    ratio = rate / plain
    style = "green" if ratio > 1 + _SAME else "red" if ratio < 1 - _SAME else ""
    return text.append(f", plain {plain:.1f}: ").append(f"×{ratio:.2f}", style)


def _busy(share: float, wasted: float) -> Text:
    filled, lost = round(BAR * share), round(BAR * wasted)
    bar = Text("█" * (filled - lost)).append("▒" * lost, "red").append("·" * (BAR - filled), "dim")
    return bar.append(f"  {share:.0%} of the time in steps, {wasted:.0%} on rejected drafts")


def _speculation(found: Mapping[str, Any]) -> Text:
    mode = visible(str(found.get("mode", "?")))
    drafters = ", ".join(map(str, found.get("drafters") or ())) or "none"
    text = Text(mode, "bold" if mode == "off" else "")
    return text.append(visible(f" ({found.get('why', '?')}); drafters: {drafters}"))


def _alarms(state: Mapping[str, Any]) -> Iterator[Text]:
    for alarm in state["alarms"]:
        name, text = (visible(str(alarm.get(key, "?"))) for key in ("name", "text"))
        line = Text(f"alarm {name}: ", style="bold red").append(text, "not bold")
        if runbook := alarm.get("runbook"):
            line.append(visible(f" (runbook: {runbook})"), "not bold dim")
        yield line


def _number(part: Mapping[str, Any], name: str) -> float:
    value = part.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _count(part: Mapping[str, Any], name: str) -> str:
    return f"{_number(part, name):.0f}"


def _ms(part: Mapping[str, Any], name: str) -> str:
    return f"{_number(part, name):,.0f} ms" if part.get(name) is not None else "not known yet"


def _mib(part: Mapping[str, Any], name: str) -> str:
    return f"{_number(part, name) / 2**20:,.0f} MiB"
