"""What Prometheus reads. Counters come from the engine's account, running requests included, at every scrape."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from paceline import __version__
from paceline.core.types import Completion, Request, SpeculationReport
from paceline.engine.report import reasons
from paceline.governor.base import Reason, StepReport
from paceline.server.answer import Ticket
from paceline.server.board import NAMES, Board
from paceline.server.latency import Latencies
from paceline.server.records import RequestRow
from paceline.server.series import Series
from paceline.server.stepper import Snapshot
from paceline.server.switch import effective

if TYPE_CHECKING:
    from paceline.server.hub import Hub

TARGET = "target"
"""In the place of a drafter's name: what is the target's own, each pass and the token that only it can give."""
RECENT = 1000
"""Finished requests that are shown."""
_STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TPOT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class Metrics:
    """A watcher that keeps what the account does not have: histograms, rates over time, the newest requests."""

    def __init__(self, model_id: str) -> None:
        self.board, self.latencies, self.series = Board(), Latencies(), Series()
        self.recent: deque[RequestRow] = deque(maxlen=RECENT)
        """The newest last."""
        self._model_id = model_id
        self._registry = CollectorRegistry()
        self._step = Histogram(
            "paceline_step_seconds", "Seconds of a step, by part.", ["part"], buckets=_STEP_S, registry=self._registry
        )
        self._parts = {part: self._step.labels(part) for part in ("draft", "forward", "other")}
        self._ttft = Histogram(
            "paceline_time_to_first_token_seconds",
            "Of finished requests.",
            ["endpoint"],
            buckets=_TTFT_S,
            registry=self._registry,
        )
        self._tpot = Histogram(
            "paceline_time_per_output_token_seconds",
            "Of finished requests, after the first token.",
            ["endpoint"],
            buckets=_TPOT_S,
            registry=self._registry,
        )
        self._requests = Counter(
            "paceline_requests", "Finished requests.", ["endpoint", "finish_reason"], registry=self._registry
        )
        self._prompt = Counter("paceline_prompt_tokens", "Of finished requests.", registry=self._registry)
        self._net = _Net()

    def stepped(self, step: StepReport) -> None:
        self.series.add_step(step)
        for part, seconds in (("draft", step.draft_s), ("forward", step.forward_s), ("other", step.other_s)):
            self._parts[part].observe(seconds)

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        row = RequestRow.of(ticket, completion, time.time())
        self._requests.labels(row.endpoint, row.finish_reason).inc()
        self._prompt.inc(row.prompt_tokens)
        if ticket.background:
            return
        self.recent.append(row)
        self.latencies.add(ticket, completion)
        if row.completion_tokens:
            self._ttft.labels(row.endpoint).observe(row.ttft_ms / 1e3)
        if row.completion_tokens > 1:
            self._tpot.labels(row.endpoint).observe(row.decode_ms / 1e3 / (row.completion_tokens - 1))

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Take in how things stand; once a second."""
        self.series.look(snapshot, now)
        self._net.take(snapshot.report)

    def render(self, hub: Hub, accept: str) -> tuple[bytes, str]:
        """Return the exposition, in the format that a scraper accepts, and its content type."""
        encoder, content_type = choose_encoder(accept)
        whole = CollectorRegistry(auto_describe=False)
        whole.register(_Families([*map(_lean, self._registry.collect()), *self._families(hub)]))
        return encoder(whole), content_type

    def _families(self, hub: Hub) -> Iterator[Metric]:
        snapshot = hub.worker.snapshot
        self._net.take(snapshot.report)
        yield from _account(snapshot.report, self._net)
        yield from _vllm(snapshot.report, self._model_id)
        yield from _state(hub, snapshot)
        alarm = GaugeMetricFamily("paceline_alarm", "1 while the alarm is on.", labels=["name"])
        ringing = {each.name for each in self.board.active}
        for name in (*NAMES, *sorted(ringing - set(NAMES))):
            alarm.add_metric([name], float(name in ringing))
        yield alarm


class _Net:
    """Splits a sum that rises and falls into what was won and what was lost, which only rise."""

    def __init__(self) -> None:
        self.won_s = self.lost_s = 0.0

    def take(self, report: SpeculationReport) -> None:
        change = report.saved_ms / 1e3 - (self.won_s - self.lost_s)
        self.won_s += max(change, 0.0)
        self.lost_s += max(-change, 0.0)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _lean(family: Metric) -> Metric:
    """Leave out when each series began: it doubles their number, and no dashboard reads it."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family


def _account(report: SpeculationReport, net: _Net) -> Iterator[Metric]:
    """The contract's counters. The sum over `drafter` is the whole in each of them."""
    own = {TARGET: report.steps}
    named = report.by_drafter
    yield _counter("paceline_steps", "Passes of the target, by sequence.", "drafter", own)
    yield _counter("paceline_plain_steps", "Those without a draft.", "drafter", {TARGET: report.plain_steps})
    for kind, what in (("drafted", "Guessed."), ("verified", "In a target pass."), ("accepted", "Confirmed.")):
        counts = {name: getattr(each, kind) for name, each in named.items()}
        yield _counter(f"paceline_{kind}_tokens", what, "drafter", counts)
    committed = {name: each.accepted for name, each in named.items()} | own
    yield _counter("paceline_committed_tokens", "Part of a text, by who guessed them.", "drafter", committed)
    depths = {str(depth): count for depth, count in enumerate(report.accepted_at)}
    yield _counter("paceline_accepted_tokens_per_position", "By depth in the draft, from 0.", "position", depths)
    codes = dict.fromkeys(map(str, Reason), 0) | reasons(report)
    yield _counter("paceline_reasons", "Why less was drafted than might have been.", "code", codes)
    drafting = {name: each.draft_ms / 1e3 for name, each in named.items()}
    yield _counter("paceline_draft_seconds", "Spent on guessing.", "drafter", drafting)
    yield _counter("paceline_wasted_seconds", "Went into drafts that became no text.", value=report.wasted_ms / 1e3)
    yield _counter("paceline_time_saved_seconds", "Won against plain decoding, losses apart.", value=net.won_s)
    yield _counter("paceline_time_lost_seconds", "Lost against plain decoding, gains apart.", value=net.lost_s)


def _vllm(report: SpeculationReport, model_id: str) -> Iterator[Metric]:
    """vLLM's four counters, with its labels, so that dashboards made for it work; its drafts are all verified."""
    names, values = ["model_name", "engine"], [model_id, "0"]
    sums = {
        "drafts": (report.steps - report.plain_steps, "Number of spec decoding drafts."),
        "draft_tokens": (report.verified, "Number of draft tokens."),
        "accepted_tokens": (report.accepted, "Number of accepted tokens."),
    }
    for name, (count, what) in sums.items():
        family = CounterMetricFamily(f"vllm:spec_decode_num_{name}", what, labels=names)
        family.add_metric(values, count)
        yield family
    family = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted tokens per draft position.",
        labels=[*names, "position"],
    )
    for depth, count in enumerate(report.accepted_at):
        family.add_metric([*values, str(depth)], count)
    yield family


def _state(hub: Hub, snapshot: Snapshot) -> Iterator[Metric]:
    info, chosen = hub.llm.engine.target.info, hub.llm.chosen
    build = InfoMetricFamily("paceline_build", "What runs here.")
    drafters = ",".join(chosen.drafters)
    about = {"version": __version__, "model": hub.model_id, "runner": info.name, "weights": info.weights}
    build.add_metric([], about | {"drafters": drafters})
    yield build
    yield _gauge("paceline_running_requests", "Sequences in the engine.", snapshot.running)
    yield _gauge("paceline_waiting_requests", "Requests in line.", snapshot.waiting)
    yield _gauge("paceline_kv_blocks", "KV blocks there are.", snapshot.blocks)
    yield _gauge("paceline_kv_used_blocks", "KV blocks in use.", snapshot.blocks_used)
    mode = GaugeMetricFamily("paceline_speculation_mode", "1 for the mode of requests without wishes.", labels=["mode"])
    in_force = effective(hub.rollback.switch.ceiling) if hub.llm.engine.desk.drafters else "off"
    for name in ("auto", "off"):
        mode.add_metric([name], float(name == in_force))
    yield mode
    yield _counter("paceline_busy_seconds", "Time in steps.", value=hub.metrics.series.busy_s)
    audits = {verdict: float(count) for verdict, count in hub.auditor.counts.items()}
    yield _counter("paceline_audits", "Requests decoded again plainly, by what came of it.", "verdict", audits)
    rollbacks = {cause: float(count) for cause, count in hub.rollback.counts.items()}
    yield _counter("paceline_rollbacks", "Times that speculation was switched off, by cause.", "cause", rollbacks)
    if hub.journal is not None:
        stats = hub.journal.stats
        yield _gauge("paceline_journal_requests", "Requests in the journal.", stats.rows)
        yield _gauge("paceline_journal_bytes", "Size of the journal.", stats.bytes)
        yield _counter("paceline_journal_dropped", "Entries that were lost.", value=stats.dropped)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _counter(
    name: str, what: str, label: str = "", values: Mapping[str, float] | None = None, value: float = 0.0
) -> Metric:
    if not label:
        return CounterMetricFamily(name, what, value=value)
    family = CounterMetricFamily(name, what, labels=[label])
    for key, each in (values or {}).items():
        family.add_metric([key], each)
    return family
