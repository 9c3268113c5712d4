"""OpenTelemetry: a span for each request, with its queue, prefill and decode as children. Numbers and names only.

Needs the extra `paceline[otel]`, and is off unless OTEL_EXPORTER_OTLP_ENDPOINT (or that of traces alone) is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from paceline import __version__
from paceline.core.types import Completion, Request
from paceline.engine.report import reasons
from paceline.errors import MissingExtra
from paceline.governor.base import StepReport
from paceline.server.answer import Ticket

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
LOCAL = "http://localhost:4318"
"""Where a collector listens by default."""
_OPERATIONS = {"chat": "chat", "completions": "text_completion"}
"""Names of OpenTelemetry's conventions for generative models."""


class Tracing:
    """A watcher that tells of each request when it has ended."""

    def __init__(self, tracer: Tracer, model_id: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._tracer, self._model_id, self._now_ns = tracer, model_id, now_ns

    @classmethod
    def of(cls, environ: Mapping[str, str], model_id: str) -> Tracing | None:
        """Return what tells the collector that the environment names; None where it names none.

        Raises:
            MissingExtra: it names one, and OpenTelemetry is not installed.
        """
        named = next((name for name in VARIABLES if environ.get(name)), None)
        if named is None:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtra(
                f"{named} is set and OpenTelemetry is not installed; pip install 'paceline[otel]', or unset it"
            ) from None
        provider = TracerProvider(
            resource=Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "paceline")})
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # which ends with the process
        return cls(provider.get_tracer("paceline", __version__), model_id)

    def stepped(self, step: StepReport) -> None:
        """Steps are no spans: there are too many."""

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        times, end = completion.timings, self._now_ns()
        first = end - round(times.decode_ms * 1e6)
        started = first - round(times.prefill_ms * 1e6)
        begin = first - round(times.time_to_first_token_ms * 1e6)
        operation = _OPERATIONS.get(ticket.endpoint, ticket.endpoint or "request")
        span = self._tracer.start_span(f"{operation} {self._model_id}", start_time=begin)
        _describe(span, operation, self._model_id, ticket, completion)
        if completion.token_ids:
            span.add_event("first token", timestamp=first)
            for name, start, stop in (("queue", begin, started), ("prefill", started, first), ("decode", first, end)):
                self._child(span, name, start, stop)
        span.end(end)

    def _child(self, parent: Span, name: str, start: int, end: int) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer.start_span(name, context=set_span_in_context(parent), start_time=start).end(end)


def _describe(span: Span, operation: str, model_id: str, ticket: Ticket, completion: Completion) -> None:
    counts = completion.speculation
    span.set_attributes(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model_id,
            "gen_ai.response.id": ticket.id,
            "gen_ai.response.finish_reasons": [completion.finish_reason],
            "gen_ai.usage.input_tokens": completion.prompt_tokens,
            "gen_ai.usage.output_tokens": len(completion.token_ids),
            "paceline.key": ticket.key,
            "paceline.streaming": ticket.streaming,
            "paceline.background": ticket.background,
            "paceline.speculation.mode": counts.mode,
            "paceline.speculation.rule": counts.rule,
            "paceline.speculation.steps": counts.steps,
            "paceline.speculation.plain_steps": counts.plain_steps,
            "paceline.speculation.drafted": counts.drafted,
            "paceline.speculation.verified": counts.verified,
            "paceline.speculation.accepted": counts.accepted,
            "paceline.speculation.saved_ms": counts.saved_ms,
            "paceline.speculation.wasted_ms": counts.wasted_ms,
        }
    )
    for code, count in reasons(counts).items():
        span.set_attribute(f"paceline.speculation.reasons.{code}", count)
    if completion.finish_reason in ("error", "abort"):
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, completion.finish_reason))
