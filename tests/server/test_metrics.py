"""What Prometheus reads: the contract's names, vLLM's, and that they add up while requests run."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from paceline.core.types import Completion, SpeculationReport, Timings
from paceline.engine.llm import LLM
from paceline.server.answer import Ticket
from paceline.server.latency import Latencies, quantile
from paceline.server.metrics import _Net
from paceline.server.series import Mark, Rates, Series

from .asking import answered, ask
from .live import Live, live

CONTRACT = (
    *(f"paceline_{name}_total" for name in ("steps", "plain_steps", "time_saved_seconds", "wasted_seconds", "reasons")),
    *(f"paceline_{name}_tokens_total" for name in ("drafted", "verified", "accepted", "committed")),
    "paceline_accepted_tokens_per_position_total",
    "paceline_step_seconds_bucket",
    "paceline_alarm",
)
LABELS = {
    "paceline_steps_total": "drafter",
    "paceline_plain_steps_total": "drafter",
    "paceline_drafted_tokens_total": "drafter",
    "paceline_verified_tokens_total": "drafter",
    "paceline_accepted_tokens_total": "drafter",
    "paceline_committed_tokens_total": "drafter",
    "paceline_accepted_tokens_per_position_total": "position",
    "paceline_step_seconds_bucket": "part",
    "paceline_reasons_total": "code",
    "paceline_alarm": "name",
}
VLLM = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
ROOT = Path(__file__).parents[2]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def server(kept, tmp_path_factory):
    journal = {"file": str(tmp_path_factory.mktemp("journal") / "journal.db")}
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), {"journal": journal}) as running:
        for seed in range(3):
            ask(running, temperature=0.3, seed=seed)
        yield running


def samples(server: Live) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample, by name and labels, as an unmodified Prometheus client reads them."""
    with server.client() as client:
        text = client.get("/metrics").raise_for_status().text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def summed(found, name: str, /, **labels: str) -> float:
    chosen = [v for (n, given), v in found.items() if n == name and labels.items() <= dict(given).items()]
    assert chosen, f"there is no {name} {labels}"
    return sum(chosen)


def test_the_names_are_those_of_the_contract(server) -> None:
    found = samples(server)
    names = {name for name, _ in found}
    assert set(CONTRACT) <= names
    assert set(VLLM) <= names
    for name, label in LABELS.items():
        assert all(label in dict(labels) for n, labels in found if n == name)


def test_counts_add_up_to_the_engines_account(server) -> None:
    server.settle()
    found, report = samples(server), server.call(lambda engine: engine.report())
    assert report.accepted > 0, "otherwise this shows nothing"
    assert summed(found, "paceline_steps_total") == report.steps
    assert summed(found, "paceline_plain_steps_total") == report.plain_steps
    assert summed(found, "paceline_drafted_tokens_total") == report.drafted
    assert summed(found, "paceline_verified_tokens_total") == report.verified
    assert summed(found, "paceline_accepted_tokens_total") == report.accepted
    assert summed(found, "paceline_committed_tokens_total") == report.accepted + report.steps
    assert summed(found, "paceline_accepted_tokens_per_position_total") == report.accepted
    assert summed(found, "paceline_accepted_tokens_total", drafter="model") == report.by_drafter["model"].accepted
    net = summed(found, "paceline_time_saved_seconds_total") - summed(found, "paceline_time_lost_seconds_total")
    assert net == pytest.approx(report.saved_ms / 1e3)


def test_vllm_names_count_drafts_that_were_verified(server) -> None:
    server.settle()
    found, report = samples(server), server.call(lambda engine: engine.report())
    drafts, tokens, accepted, by_position = (summed(found, name, model_name="toy:ngram", engine="0") for name in VLLM)
    assert drafts == report.steps - report.plain_steps
    assert (tokens, accepted) == (report.verified, report.accepted)
    assert by_position == report.accepted


def test_counters_rise_while_a_request_runs_and_never_fall(server) -> None:
    seen = [samples(server)]

    async def running() -> None:
        task = asyncio.ensure_future(answered(server, tokens=400))
        while not task.done():
            seen.append(await asyncio.to_thread(samples, server))
        seen.append(await asyncio.to_thread(samples, server))

    server.wait(running())
    finished = [summed(one, "paceline_requests_total") for one in seen]
    committed = [summed(one, "paceline_committed_tokens_total") for one in seen]
    during = [c for c, f in zip(committed, finished, strict=True) if f == finished[0]]
    assert len(set(during)) > 2, "it is seen before it has ended"
    for before, after in pairwise(seen):
        for key, value in before.items():
            if key[0].endswith(("_total", "_bucket", "_count")):
                assert after[key] >= value, key


def test_openmetrics_is_spoken_where_it_is_asked_for(server) -> None:
    with server.client() as client:
        answer = client.get("/metrics", headers={"accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list(openmetrics.text_string_to_metric_families(answer.text))
    assert "paceline_steps" in {family.name for family in families}
    with server.client() as client:
        assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=")


def test_histograms_take_in_every_step(server) -> None:
    before = samples(server)
    seen: list[float] = []
    server.call(lambda engine: seen.append(engine.report().steps))
    ask(server, tokens=12)
    after = samples(server)
    for part in ("draft", "forward", "other"):
        name = "paceline_step_seconds_count"
        steps = summed(after, name, part=part) - summed(before, name, part=part)
        assert 1 <= steps <= 12
    ttft = "paceline_time_to_first_token_seconds_count"
    assert summed(after, ttft, endpoint="completions") == summed(before, ttft, endpoint="completions") + 1


def test_alarms_are_told(server) -> None:
    assert summed(samples(server), "paceline_alarm", name="audit_difference") == 0
    server.hub.metrics.board.set("audit_difference", "token 3 of cmpl-1")
    assert summed(samples(server), "paceline_alarm", name="audit_difference") == 1
    server.hub.metrics.board.set("audit_difference", None)
    assert summed(samples(server), "paceline_alarm", name="audit_difference") == 0


def test_the_mode_in_force_is_told(server) -> None:
    with server.client() as client:
        client.post("/admin/speculation", json={"mode": "off"}).raise_for_status()
        assert summed(samples(server), "paceline_speculation_mode", mode="off") == 1
        client.post("/admin/speculation", json={"mode": "auto"}).raise_for_status()
        assert summed(samples(server), "paceline_speculation_mode", mode="auto") == 1
    assert summed(samples(server), "paceline_speculation_mode") == 1


def test_a_sum_that_falls_is_two_that_rise() -> None:
    net = _Net()
    for saved_ms in (5.0, 2.0, -4.0, 3.0):
        net.take(SpeculationReport(saved_ms=saved_ms))
        assert net.won_s - net.lost_s == pytest.approx(saved_ms / 1e3)
    assert (net.won_s, net.lost_s) == pytest.approx((0.012, 0.009))


def mark(t: float, **sums: float) -> Mark:
    names = ("busy_s", "tokens", "steps", "drafted", "accepted", "saved_s", "wasted_s", "running")
    return Mark(t=t, **(dict.fromkeys(names, 0) | sums))


def test_the_plain_rate_is_what_the_account_implies() -> None:
    rates = Rates.between(mark(0), mark(2, busy_s=1, tokens=30, steps=10, drafted=40, saved_s=0.5, wasted_s=0.25))
    assert rates.tokens_per_s == 15
    assert rates.plain_tokens_per_s == pytest.approx(10), "the same tokens would have kept it busy for 1.5 s"
    assert (rates.busy, rates.useful, rates.wasted) == (0.5, 0.375, 0.125)
    assert (rates.drafted_per_step, rates.saved_ms_per_s) == (4, 250)


def test_a_loss_is_shown_as_one() -> None:
    rates = Rates.between(mark(0), mark(1, busy_s=1, tokens=2, steps=2, saved_s=-0.8, wasted_s=0.8))
    assert rates.busy == 1 and rates.tokens_per_s == 2, "busy all the time, and next to nothing comes of it"
    assert rates.plain_tokens_per_s == pytest.approx(10)
    assert rates.useful == pytest.approx(0.2)


def test_series_are_bounded() -> None:
    series = Series()
    series._marks.extend(mark(t, tokens=t) for t in range(1000))
    assert len(series.points()) == 300 and len(series.lengths()) == 120
    assert series.points()[-1]["t"] == 999
    assert {point["tokens_per_s"] for point in series.points()} == {1}


def finished(ms: float, reason: str = "stop") -> Completion:
    return Completion(0, "", (1, 2, 3), reason, 1, 0, SpeculationReport(), Timings(1.0, 2 * ms, 10 * ms))


def test_latencies_are_of_the_window_and_of_what_ended_well() -> None:
    now = [0.0]
    kept = Latencies(lambda: now[0])
    ticket = Ticket("a")
    kept.add(ticket, finished(99.0))
    now[0] = 100.0
    for ms in range(1, 21):
        kept.add(ticket, finished(float(ms)))
    kept.add(Ticket("b", background=True), finished(1000.0))
    kept.add(ticket, finished(1000.0, "abort"))
    found = kept.within(60.0)
    assert found.requests == 20
    assert (found.ttft_p95_ms, found.tpot_p50_ms, found.tpot_p95_ms) == (190.0, 10.0, 19.0)
    assert kept.within(60.0, begun_after=100.0).requests == 0, "all of them began before"


def test_quantiles_are_values_that_were_seen() -> None:
    assert quantile([], 0.95) is None
    assert quantile([7.0], 0.5) == 7.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0


def test_the_grafana_dashboard_asks_for_what_there_is(server) -> None:
    dashboard = json.loads((ROOT / "contrib" / "grafana" / "paceline.json").read_text())
    panels = dashboard["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"\b(?:paceline_|vllm:)\w+", text)}
    assert len(asked) > 20
    assert asked <= {name for name, _ in samples(server)}
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "panels do not overlap"


def test_the_documentation_names_what_there_is(server) -> None:
    text = (ROOT / "docs" / "observability.md").read_text()
    names = {name for name, _ in samples(server)}
    told = set(re.findall(r"`((?:paceline_|vllm:)\w+)`", text))
    known = {re.sub(r"_(?:bucket|count|sum)$", "", name) for name in names}
    assert len(told) > 20 and told <= names | known
