"""What the dashboard and `paceline watch` show: how things stand, as one object."""

from __future__ import annotations

import time
from typing import Any

from paceline import __version__
from paceline.engine.report import reasons
from paceline.server.hub import Hub
from paceline.server.pressure import process_bytes
from paceline.server.series import Rates
from paceline.server.stepper import Snapshot
from paceline.server.switch import effective


def state(hub: Hub) -> dict[str, Any]:
    """Return it; rates and shares that are not known yet are 0, latencies and plain speed null."""
    snapshot, now = hub.worker.snapshot, time.time()
    series = hub.metrics.series
    return {
        "version": __version__,
        "model": _model(hub),
        "draft_model": _draft_model(hub),
        "uptime_s": now - hub.started,
        "now": now,
        "speculation": speculation(hub),
        **_rates(series.now(), snapshot),
        "batch": {
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "limit": hub.llm.chosen.options.sequences,
        },
        "acceptance": _acceptance(snapshot),
        "lengths": series.lengths(),
        "series": series.points(),
        "memory": _memory(hub, snapshot),
        "reasons": reasons(snapshot.report),
        "alarms": [alarm.as_json() for alarm in hub.metrics.board.active],
        "latency": _latency(hub),
        "audit": _audit(hub),
        "journal": _journal(hub),
    }


def speculation(hub: Hub) -> dict[str, Any]:
    """Return what is allowed of speculation at present, and why."""
    last, ceiling = hub.rollback.switch.last, hub.rollback.switch.ceiling
    chosen, desk = hub.llm.chosen, hub.llm.engine.desk
    drafters = tuple(desk.drafters)
    if ceiling.drafters is not None:
        drafters = tuple(name for name in drafters if name in ceiling.drafters)
    most = chosen.options.max_draft
    return {
        "mode": effective(ceiling) if drafters else "off",
        "ceiling": ceiling.mode,
        "why": last.why if desk.drafters else "this server was started without drafters",
        "by": last.by,
        "since": last.at,
        "drafters": list(drafters),
        "max_draft": most if ceiling.max_draft is None else min(most, ceiling.max_draft),
    }


def _model(hub: Hub) -> dict[str, Any]:
    info = hub.llm.engine.target.info
    weights, context = info.weights, hub.llm.engine.context
    return {"id": hub.model_id, "runner": info.name, "weights": weights, "context": context}


def _draft_model(hub: Hub) -> dict[str, Any] | None:
    chosen = hub.llm.chosen
    if chosen.draft is None or "model" not in chosen.drafters:
        return None
    return {"id": chosen.draft.source.id, "weights": chosen.draft_weights}


def _rates(rates: Rates | None, snapshot: Snapshot) -> dict[str, Any]:
    known = snapshot.plain_s is not None
    if rates is None:
        plain = 0.0 if known else None
        return {
            "rate": {"tokens_per_s": 0.0, "plain_tokens_per_s": plain, "saved_ms_per_s": 0.0},
            "busy": {"share": 0.0, "useful_share": 0.0, "wasted_share": 0.0},
        }
    return {
        "rate": {
            "tokens_per_s": rates.tokens_per_s,
            "plain_tokens_per_s": rates.plain_tokens_per_s if known else None,
            "saved_ms_per_s": rates.saved_ms_per_s,
        },
        "busy": {"share": rates.busy, "useful_share": rates.useful, "wasted_share": rates.wasted},
    }


def _acceptance(snapshot: Snapshot) -> dict[str, Any]:
    report = snapshot.report
    return {
        "length": report.acceptance_length,
        "rate": report.accepted / report.verified if report.verified else 0.0,
        "by_depth": list(report.accepted_at),
        "by_drafter": {
            name: {
                "drafted": counts.drafted,
                "verified": counts.verified,
                "accepted": counts.accepted,
                "draft_ms": counts.draft_ms,
            }
            for name, counts in report.by_drafter.items()
        },
    }


def _memory(hub: Hub, snapshot: Snapshot) -> dict[str, Any]:
    plan, block = hub.llm.chosen.memory, hub.llm.engine.target.info.block_bytes
    return {
        "weights_bytes": plan.weights if plan is not None else 0,
        "kv_bytes": block * snapshot.blocks,
        "kv_used_bytes": block * snapshot.blocks_used,
        "draft_bytes": plan.draft_weights + plan.draft_kv if plan is not None else 0,
        "process_bytes": process_bytes(),
    }


def _latency(hub: Hub) -> dict[str, Any]:
    found = hub.metrics.latencies.within(hub.config.targets.window_s)
    names = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms")
    return {name: getattr(found, name) for name in names} | {"requests": found.requests}


def _audit(hub: Hub) -> dict[str, Any]:
    auditor = hub.auditor
    return {
        "share": auditor.share,
        "done": auditor.done,
        "equal": auditor.counts["equal"],
        "near_ties": auditor.counts["near_tie"],
        "different": auditor.counts["different"],
        "skipped": auditor.counts["skipped_rule"] + auditor.counts["skipped_busy"],
        "failed": auditor.counts["failed"],
    }


def _journal(hub: Hub) -> dict[str, Any]:
    if hub.journal is None:
        return {"file": None, "rows": 0, "dropped": 0, "bytes": 0, "failure": None}
    stats = hub.journal.stats
    return {
        "file": stats.file,
        "rows": stats.rows,
        "dropped": stats.dropped,
        "bytes": stats.bytes,
        "failure": stats.failure,
    }
