"""Figures as SVG text, for pages that need nothing else: no network, no script, light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

from paceline.errors import MissingExtra

COLOURS = ("#8c8c8c", "#e8590c", "#1c7ed6", "#2b8a3e", "#ae3ec9", "#c9a227", "#0b7285", "#c2255c")
"""Told apart in both themes; the first is the reference's."""
_INK = "#010203"
"""Stands for the colour of the text while matplotlib draws."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its interval."""

    value: float
    low: float
    high: float


def require() -> None:
    """Raises MissingExtra: there is nothing to draw with."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("plots need matplotlib, which is not installed; pip install 'paceline[bench]'") from None
    matplotlib.use("Agg")


def lines(
    title: str, xlabel: str, ylabel: str, series: Mapping[str, Points], steps: bool = False, base: bool = True
) -> str:
    """Return a figure of lines, by name.

    Args:
        steps: whether a value holds until the next one.
        base: whether the vertical axis begins at 0.
    """
    with _figure(title, _told(series)) as (axis, svg):
        for colour, (name, points) in zip(_colours(), series.items(), strict=False):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            style: dict[str, Any] = {"drawstyle": "steps-post"} if steps else {}
            marker = "o" if len(points) <= 16 else ""
            axis.plot(xs, ys, label=_safe(name), color=colour, marker=marker, markersize=4, linewidth=1.6, **style)
        axis.set(xlabel=_safe(xlabel), ylabel=_safe(ylabel))
        if base:
            axis.set_ylim(bottom=0)
        if all(float(x).is_integer() for points in series.values() for x, _ in points):
            axis.xaxis.get_major_locator().set_params(integer=True)
        _legend(axis, len(series))
    return svg()


def bars(title: str, ylabel: str, groups: Mapping[str, Mapping[str, Bar]], line: float | None = None) -> str:
    """Return a figure of bars with intervals: by category, then by name.

    Args:
        line: where a horizontal line is drawn.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    told = {name: [(i, g[name].value) for i, g in enumerate(groups.values()) if name in g] for name in names}
    with _figure(title, _told(told), width=max(7.0, 0.5 + 0.8 * len(groups))) as (axis, svg):
        width = 0.8 / max(1, len(names))
        for i, (colour, name) in enumerate(zip(_colours(1), names, strict=False)):
            places = [
                (x + (i - (len(names) - 1) / 2) * width, g[name]) for x, g in enumerate(groups.values()) if name in g
            ]
            xs, ys = [x for x, _ in places], [bar.value for _, bar in places]
            reach = [[bar.value - bar.low for _, bar in places], [bar.high - bar.value for _, bar in places]]
            axis.bar(xs, ys, width * 0.9, label=_safe(name), color=colour)
            axis.errorbar(xs, ys, yerr=reach, fmt="none", ecolor=_INK, elinewidth=1, capsize=2)
        if line is not None:
            axis.axhline(line, color=_INK, linewidth=0.8, linestyle="--")
        # One wild interval would make all others flat: it leaves the figure, and is in the table.
        highest = max((bar.value for group in groups.values() for bar in group.values()), default=1.0)
        axis.set_ylim(0, 1.4 * max(highest, line or 0.0) or 1.0)
        axis.set_xticks(range(len(groups)), [_safe(name) for name in groups], rotation=30, ha="right")
        axis.set(ylabel=_safe(ylabel))
        _legend(axis, len(names))
    return svg()


def stacks(title: str, ylabel: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return a figure of columns, each of parts upon each other: by column, then by part."""
    parts = list(dict.fromkeys(part for column in columns.values() for part in column))
    told = {part: [(i, c.get(part, 0.0)) for i, c in enumerate(columns.values())] for part in parts}
    with _figure(title, _told(told)) as (axis, svg):
        bottom = [0.0] * len(columns)
        for colour, part in zip(_colours(1), parts, strict=False):
            heights = [column.get(part, 0.0) for column in columns.values()]
            axis.bar(range(len(columns)), heights, 0.6, bottom=bottom, label=_safe(part), color=colour)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        slanted: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(columns) > 4 else {}
        axis.set_xticks(range(len(columns)), [_safe(name) for name in columns], **slanted)
        axis.set(ylabel=_safe(ylabel))
        _legend(axis, len(parts))
    return svg()


@contextmanager
def _figure(title: str, told: str, width: float = 7.0) -> Iterator[tuple[Any, Callable[[], str]]]:
    require()
    from matplotlib import pyplot, rc_context

    ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "paceline", "font.family": "sans-serif", "font.size": 9}
    with rc_context({**ink, **settings}):
        figure, axis = pyplot.subplots(figsize=(width, 3.2))
        written = io.StringIO()
        try:
            yield axis, lambda: _clean(written.getvalue(), title, told)
            axis.grid(alpha=0.25, color=_INK, linewidth=0.5)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            figure.tight_layout()
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(figure)


def _clean(svg: str, title: str, told: str) -> str:
    """Return an <svg> element that takes the page's colours and says what it shows."""
    body = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # the same in all figures of a page, and named by nobody
    head, rest = body.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    title, told = escape(_printable(title)), escape(_printable(told))
    return f'{head} role="img" aria-label="{title}"><title>{title}</title><desc>{told}</desc>{rest}'


def _told(series: Mapping[str, Points]) -> str:
    """Return the figures in words, for who cannot see them."""
    return "; ".join(f"{name}: " + ", ".join(f"{y:.3g} at {x:g}" for x, y in points) for name, points in series.items())


def _safe(text: str) -> str:
    """Return a text that matplotlib takes as it is: a dollar sign would begin a formula."""
    return _printable(text).replace("$", r"\$")


def _printable(text: str) -> str:
    """Return a text without characters that no XML may have."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _colours(first: int = 0) -> Iterator[str]:
    while True:
        yield from COLOURS[first:]
        first = 0


def _legend(axis: Any, names: int) -> None:
    if names > 1:
        axis.legend(frameon=False, fontsize=8, ncols=min(4, names), loc="lower left", bbox_to_anchor=(0, 1))
