"""What every route reads: `request.app.state.hub`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from paceline.config import Config
from paceline.engine.llm import LLM
from paceline.server.keys import Keyring
from paceline.server.worker import Worker

if TYPE_CHECKING:
    from paceline.server.audit import Auditor
    from paceline.server.journal import Journal
    from paceline.server.metrics import Metrics
    from paceline.server.rollback import Rollback


@dataclass(frozen=True, slots=True, eq=False)
class Hub:
    """The parts of a running server."""

    llm: LLM
    worker: Worker
    config: Config
    keys: Keyring
    metrics: Metrics
    journal: Journal | None
    auditor: Auditor
    rollback: Rollback
    started: float
    """Seconds since 1970."""
    model_id: str


def hub(request: Request) -> Hub:
    """Return the hub of the app that a request is for; a dependency of routes."""
    found: Hub = request.app.state.hub
    return found
