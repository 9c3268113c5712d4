"""What takes its time is shown on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 0.8
"""Seconds before anything is shown."""
EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class Shown:
    """A `paceline.models.cache.Progress` that can be seen; what it drew is gone when it is closed."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._lock = threading.Lock()
        self._latest: tuple[str, int, int] | None = None
        self._bar: Progress | None = None
        self._timer: threading.Timer | None = None
        self._said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            self._latest = (what, done, total)
            if not self._console.is_terminal:
                self._say()
            elif self._bar is not None:
                self._draw(self._bar)
            elif self._timer is None:
                self._timer = threading.Timer(PATIENCE, self._open)
                self._timer.daemon = True
                self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away; the next call may bring another."""
        if self._latest is None:
            return
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._bar is not None:
                self._bar.stop()
            self._timer = self._bar = self._latest = None

    def _open(self) -> None:
        with self._lock:
            if self._latest is None or self._timer is None:
                return
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,
            )
            self._bar.add_task("")
            self._draw(self._bar)
            self._bar.start()

    def _draw(self, bar: Progress) -> None:
        assert self._latest is not None
        what, done, total = self._latest
        # Of a step that is not counted only the beginning and the end are reported: the bar then just moves.
        bar.update(bar.task_ids[0], description=what, completed=done, total=total if total > 1 else None)

    def _say(self) -> None:
        assert self._latest is not None
        what, done, total = self._latest
        if time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            share = f" {done / total:.0%}" if total > 1 else ""
            typer.echo(f"paceline: {what}{share} …", err=True)
