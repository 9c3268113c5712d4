"""A runner in front of another."""

from __future__ import annotations

from typing import Any

from paceline.runners.base import Runner, RunnerInfo


class Wrapped:
    """All of a runner's own, but for what a subclass does otherwise."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner

    @property
    def info(self) -> RunnerInfo:
        return self._inner.info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
