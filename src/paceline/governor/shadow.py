"""What drafts would have brought while nothing is verified: each is followed until the text has left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.tree import Draft
from paceline.core.types import ROOT

MOST = 256
"""Requests that are followed, the newest."""


@dataclass(slots=True, eq=False)
class Shadow:
    """A draft that was not verified, and the text that came instead, one plain step after the other."""

    draft: Draft
    cost: float
    """Plain steps that drafting and verifying it would have taken beyond one."""
    tokens: list[int] = field(default_factory=list)
    at: int = ROOT
    won: float | None = None
    """Plain steps that it would have been worth; None while the text goes as it says."""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Go on with the text; return whether that was the end of it."""
        for token in tokens:
            below = [n for n, parent in enumerate(self.draft.parents) if parent == self.at]
            self.tokens.append(token)
            self.at = next((n for n in below if self.draft.tokens[n] == token), ROOT) if below else ROOT
            if self.at == ROOT:
                self.won = len(self.tokens) - 1 - self.cost
                return True
        return False


class Shadows:
    """At most one of each request, so that they stand for the steps that speculation would have made."""

    def __init__(self) -> None:
        self._open: dict[int, Shadow] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._open

    def cast(self, request: int, draft: Draft, cost: float) -> None:
        """Begin to follow a draft of a request that has none."""
        if len(self._open) >= MOST:
            del self._open[next(iter(self._open))]
        self._open[request] = Shadow(draft, cost)

    def follow(self, request: int, tokens: Sequence[int]) -> Shadow | None:
        """Go on with a request's text; return its shadow if that is where it ended."""
        shadow = self._open.get(request)
        if shadow is None or not shadow.follow(tokens):
            return None
        return self._open.pop(request)
