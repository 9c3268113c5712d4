"""Spans: their times, their numbers, and that they are sent only where that was asked for."""

from __future__ import annotations

import http.server
import sys
import threading
from dataclasses import replace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from paceline.core.types import Completion, Request, SpeculationReport, Timings
from paceline.errors import MissingExtra
from paceline.server.answer import Ticket
from paceline.server.tracing import Tracing

SECRET = "nobody should read this"
REPORT = SpeculationReport(
    mode="auto", steps=3, plain_steps=1, drafted=9, verified=8, accepted=4, reasons={"probing": 2}
)
DONE = Completion(1, SECRET, (5, 6, 7), "stop", 4, 7, REPORT, Timings(30.0, 50.0, 40.0))
TICKET = Ticket("chatcmpl-1", "ann", "chat", streaming=True)
MS = 1_000_000


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"), "toy:ngram", now_ns=lambda: 1_000 * MS)

    def told(ticket: Ticket = TICKET, completion: Completion = DONE):
        exporter.clear()
        tracing.finished(ticket, Request(tuple(SECRET.encode())), completion)
        return {span.name: span for span in exporter.get_finished_spans()}

    yield told
    provider.shutdown()


def test_a_request_is_a_span_with_its_parts_in_order(spans) -> None:
    found = spans()
    parent = found.pop("chat toy:ngram")
    assert (parent.start_time, parent.end_time) == (910 * MS, 1_000 * MS)
    times = {name: (span.start_time // MS, span.end_time // MS) for name, span in found.items()}
    assert times == {"queue": (910, 920), "prefill": (920, 950), "decode": (950, 1_000)}
    assert {span.parent.span_id for span in found.values()} == {parent.context.span_id}
    assert [(event.name, event.timestamp) for event in parent.events] == [("first token", 950 * MS)]


def test_it_has_the_numbers_of_speculation_and_no_text(spans) -> None:
    found = spans()
    attributes = dict(found["chat toy:ngram"].attributes)
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["paceline.speculation.accepted"] == 4
    assert attributes["paceline.speculation.reasons.probing"] == 2
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert SECRET not in "".join(span.to_json() for span in found.values())


def test_one_that_failed_is_marked(spans) -> None:
    failed = replace(DONE, finish_reason="error", token_ids=(), text="", timings=Timings(0.0, 0.0, 0.0), error=SECRET)
    found = spans(completion=failed)
    assert list(found) == ["chat toy:ngram"]
    assert found["chat toy:ngram"].status.status_code == StatusCode.ERROR
    assert SECRET not in found["chat toy:ngram"].to_json()


def test_it_is_off_unless_asked_for() -> None:
    assert Tracing.of({}, "toy:ngram") is None
    assert Tracing.of({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "toy:ngram") is None


def test_without_the_extra_it_says_what_to_install(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set .*pip install 'paceline\[otel\]'"):
        Tracing.of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, "toy:ngram")


def test_a_collector_gets_the_spans(monkeypatch) -> None:
    got: list[bytes] = []
    came = threading.Event()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(body)
            self.send_response(200)
            self.end_headers()
            came.set()

        def log_message(self, *given: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        tracing = Tracing.of(environ, "toy:ngram")
        tracing.finished(TICKET, Request((1,)), DONE)
        assert came.wait(20)
        tracing._tracer.span_processor.shutdown()
        server.shutdown()
    sent = ExportTraceServiceRequest.FromString(b"".join(got))
    names = {span.name for part in sent.resource_spans for scope in part.scope_spans for span in scope.spans}
    assert names == {"chat toy:ngram", "queue", "prefill", "decode"}
    assert SECRET.encode() not in b"".join(got)
