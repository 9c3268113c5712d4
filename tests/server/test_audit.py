"""Continuous audit against a live server: a clean run, a verifier at fault, near-ties, and what is left alone."""

from __future__ import annotations

import math
import re
import time
from contextlib import closing, contextmanager
from sqlite3 import connect

import numpy as np
import pytest

from paceline.config import AuditConfig
from paceline.core import verify as rules
from paceline.core.gap import gap
from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow
from paceline.core.sampling import RowChoice, Shaping, logprob
from paceline.core.types import (
    Completion,
    GrammarSpec,
    Request,
    SamplingParams,
    SpeculationParams,
    TokenLogprob,
    Verdict,
)
from paceline.engine import engine as engines
from paceline.engine.llm import LLM
from paceline.server.answer import Ticket
from paceline.server.audit import PENDING, Auditor

from .asking import ALWAYS, ask, wait_for
from .live import live


@contextmanager
def audited(tmp_path, **audit):
    tables = {"audit": {"share": 1.0, **audit}, "journal": {"file": str(tmp_path / "journal.db")}}
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), tables) as server:
        yield server


def verdicts(server) -> list[tuple]:
    assert server.hub.journal.flush()
    with closing(connect(server.hub.journal.stats.file)) as db:
        return db.execute("SELECT verdict, position, gap FROM audits").fetchall()


def test_a_grammar_is_replayed_with_its_answer(kept, tmp_path) -> None:
    async def constrained(server) -> Completion:
        sampling = SamplingParams(max_tokens=60, temperature=0.8, seed=3)
        request = server.llm.request("abc", sampling, ALWAYS, grammar=GrammarSpec("regex", "(yes|no|maybe){12}"))
        answer = await server.hub.worker.open(request, Ticket("cmpl-grammar", endpoint="completions"))
        async for _ in answer:
            pass
        return answer.completion

    with audited(tmp_path) as server:
        done = server.wait(constrained(server))
        assert done.speculation.accepted > 0
        assert re.match("(yes|no|maybe)+", done.text)
        wait_for(lambda: server.hub.auditor.done == 1)
        assert server.hub.auditor.counts["equal"] == 1


def trusting(rule, draft, choices, noise, position) -> Verdict:
    """A verifier at fault: it takes the first node of a draft, whatever the target says."""
    if draft and position % 4 == 0:
        return Verdict((0,), choices(1, (draft.tokens[0],)).draw(noise.target(position + 1)))
    return rules.verify(rule, draft, choices, noise, position)


def alarms(server) -> dict[str, str]:
    return {alarm.name: alarm.text for alarm in server.hub.metrics.board.active}


def test_a_clean_run_raises_nothing(kept, tmp_path) -> None:
    with audited(tmp_path) as server:
        for seed, temperature in enumerate([0.0, 0.0, 0.7, 1.0, 1.3]):
            done = ask(server, tokens=60, temperature=temperature, seed=seed, frequency_penalty=0.2)
            assert done.speculation.accepted > 0, "otherwise this shows nothing"
        wait_for(lambda: server.hub.auditor.done == 5)
        assert server.hub.auditor.counts["equal"] == 5
        assert "audit_difference" not in alarms(server)
        assert verdicts(server) == [("equal", None, None)] * 5
        server.settle()


def test_a_verifier_that_takes_a_wrong_token_is_found_out_and_speculation_goes_off(kept, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "verify", trusting)
    with audited(tmp_path) as server, server.client() as client:
        for i in range(4):
            ask(server, prompt=f"text {i} of a few", tokens=60)
        wait_for(lambda: server.hub.auditor.counts["different"] > 0)
        wait_for(lambda: client.get("/api/state").json()["speculation"]["mode"] == "off")
        state = client.get("/api/state").json()
        [alarm] = [alarm for alarm in state["alarms"] if alarm["name"] == "audit_difference"]
        assert alarm["runbook"] == "audit-difference" and "test-" in alarm["text"]
        assert state["speculation"]["why"].startswith("audit: token ") and state["speculation"]["by"] == "server"
        assert state["audit"]["different"] >= 1
        assert 'paceline_rollbacks_total{cause="audit"} 1.0' in client.get("/metrics").text
        assert 'paceline_speculation_mode{mode="off"} 1.0' in client.get("/metrics").text
        assert ask(server).speculation.verified == 0, "no request speculates any more"
        _, position, distance = next(found for found in verdicts(server) if found[0] == "different")
        assert 0 <= position < 60 and (distance is None or distance > 0.1)

        monkeypatch.undo()  # the fault is mended, and the operator says so
        back = client.post("/admin/speculation", json={"mode": "always"}).json()
        assert back["mode"] == "auto" and "audit_difference" not in alarms(server)
        assert ask(server).speculation.verified > 0


def test_with_alarm_alone_speculation_stays_on(kept, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "verify", trusting)
    with audited(tmp_path, on_difference="alarm") as server:
        for i in range(4):
            ask(server, prompt=f"text {i} of a few", tokens=60)
        wait_for(lambda: "audit_difference" in alarms(server))
        assert ask(server).speculation.verified > 0


def hesitating(rule, draft, choices, noise, position) -> Verdict:
    """Rounds otherwise than plain decoding: where the two best are within half a logit, it takes the other."""
    ids, logits = choices(0, ()).row.top(2)
    if draft and len(ids) == 2 and abs(float(logits[0] - logits[1])) < 0.5:
        return Verdict((), int(ids[np.argmin(logits)]))
    return rules.verify(rule, draft, choices, noise, position)


@pytest.mark.parametrize(("tolerance", "verdict"), [(0.5, "near_tie"), (1e-9, "different")])
def test_a_near_tie_is_told_from_a_difference(kept, tmp_path, monkeypatch, tolerance, verdict) -> None:
    monkeypatch.setattr(engines, "verify", hesitating)
    with audited(tmp_path, tolerance=tolerance, on_difference="alarm") as server:
        for i in range(4):
            ask(server, prompt=f"text {i} of a few", tokens=60)
        wait_for(lambda: server.hub.auditor.done == 4)
        counts = server.hub.auditor.counts
        assert counts[verdict] > 0 and counts["equal"] + counts[verdict] == 4
        assert ("audit_difference" in alarms(server)) == (verdict == "different")
        assert {round(distance, 6) < 0.5 for found, _, distance in verdicts(server) if found == verdict} == {True}


def test_rules_that_draw_otherwise_are_skipped_and_counted(kept, tmp_path) -> None:
    with audited(tmp_path) as server:
        for rule in ("ratio", "block", "typical"):
            ask(server, temperature=0.8, speculation=SpeculationParams("always", 4, rule=rule))
        assert server.hub.auditor.counts["skipped_rule"] == 3
        time.sleep(0.7)  # long enough for an audit to begin
        assert server.hub.auditor.done == 0


def test_the_share_is_drawn_and_audits_are_not_audited(kept, tmp_path) -> None:
    auditor = Auditor(AuditConfig(share=0.25), draw=iter([0.2, 0.3, 0.24, 0.25, 0.9]).__next__)
    with audited(tmp_path) as server:
        done = ask(server)
        ticket = server.hub.metrics.recent[-1]
        wait_for(lambda: server.hub.auditor.done == 1)
    request = Request((1,), SamplingParams(), ALWAYS)
    for _ in range(5):
        auditor.finished(Ticket(ticket.id), request, done)
    assert len(auditor._pending) == 2
    auditor.finished(Ticket("audit-1", endpoint="audit"), request, done)  # draws nothing: there is nothing left to draw
    assert len(auditor._pending) == 2


def test_what_waits_is_bounded() -> None:
    auditor = Auditor(AuditConfig(share=1.0))
    llm = LLM("toy:ngram", draft="toy:ngram-draft")
    [done] = llm.generate("abc", SamplingParams(max_tokens=20, ignore_eos=True), ALWAYS)
    for _ in range(PENDING + 3):
        auditor.finished(Ticket("a"), Request((1,), SamplingParams(), ALWAYS), done)
    assert auditor.counts["skipped_busy"] == 3


def test_an_audit_is_no_traffic(kept, tmp_path) -> None:
    with audited(tmp_path) as server, server.client() as client:
        ask(server)
        wait_for(lambda: server.hub.auditor.done == 1)
        assert [row["endpoint"] for row in client.get("/api/requests").json()] == ["completions"]
        assert client.get("/api/state").json()["latency"]["requests"] == 1
        assert 'paceline_requests_total{endpoint="audit",finish_reason="length"} 1.0' in client.get("/metrics").text


def plain_at(logits: np.ndarray, params: SamplingParams, prompt=(1, 2), output=()) -> TokenLogprob:
    """What plain decoding says at a row: its token and the likeliest ones."""
    token = RowChoice(HostRow(logits), Shaping(params, prompt), output).draw(
        TargetNoise(params.seed or 0, len(prompt) + len(output))
    )
    return logprob(HostRow(logits), token, 20)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_the_gap_is_what_it_takes_to_change_the_token(temperature) -> None:
    rng = np.random.default_rng(5)
    measured = 0
    for seed in range(60):
        logits = rng.normal(0, 3, 64).astype(np.float32)
        params = SamplingParams(temperature=temperature, seed=seed)
        plain = plain_at(logits, params)
        other = next(token for token, _ in plain.top if token != plain.token_id)
        request = Request((1, 2), params)
        found = gap(request, (), plain, other, 64, ())
        if found is None:
            continue
        measured += 1
        raised = logits.copy()
        raised[other] += found + 1e-3
        lowered = logits.copy()
        lowered[other] += found - 1e-3
        assert plain_at(lowered, params).token_id == plain.token_id
        assert plain_at(raised, params).token_id == other
    assert measured > 40


def test_the_gap_counts_bias_and_penalties() -> None:
    logits = np.array([1.0, 3.0, 2.0, 0.0], np.float32)
    params = SamplingParams(logit_bias={2: 0.5}, presence_penalty=0.25, seed=0)
    plain = plain_at(logits, params, output=(1,))
    assert plain.token_id == 1
    assert gap(Request((3,), params), (1,), plain, 2, 4, ()) == pytest.approx(0.25, abs=1e-5)


def test_what_cannot_be_measured_is_not_called_a_tie() -> None:
    logits = np.arange(64, dtype=np.float32)
    greedy = SamplingParams(seed=0)
    plain = plain_at(logits, greedy)
    assert gap(Request((1,), greedy), (), plain, 5, 64, ()) is None, "not among the likeliest"
    penalised = SamplingParams(repetition_penalty=1.1, seed=0)
    assert gap(Request((1,), penalised), (), plain, 62, 64, ()) is None, "it depends on the logits themselves"
    banned = SamplingParams(logit_bias={62: -math.inf}, seed=0)
    assert gap(Request((1,), banned), (), plain, 62, 64, ()) > 1e6
