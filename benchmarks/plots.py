"""Plots, for whoever asks for one with --plot FILE.svg or .png."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def require() -> None:
    """Say at the start, not after the measuring, that there can be no plot."""
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install 'paceline[bench]'")


@contextmanager
def drawing(path: Path, title: str, rows: int = 1) -> Iterator[Any]:
    """Yield [rows] axes, one below the other, and write them to a file."""
    require()
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, 1, figsize=(9, 1 + 2.6 * rows), sharex=True, squeeze=False)
    figure.suptitle(title)
    yield axes[:, 0]
    for axis in axes[:, 0]:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
