"""The rollout gate lets what is right pass, and finds each fault that is planted."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.bench.modes import Mode, Modes, listed
from paceline.bench.prove import law, limits
from paceline.bench.prove.checks import Check, Report
from paceline.bench.prove.equality import Equality, samplings
from paceline.bench.prove.page import page
from paceline.bench.prove.prove import Effort, Prove
from paceline.bench.prove.speed import Speed
from paceline.bench.trials import Ask, take
from paceline.config import Config, Targets
from paceline.core import verify as rules
from paceline.core.types import Verdict
from paceline.core.verify import Randomness
from paceline.engine import engine as engines

from .clocked import clocked

SMALL = Effort(prompts=1, max_tokens=16, draws=1000, timed=1, timed_tokens=24, bad=2)


def silent(what: str, done: int, total: int) -> None:
    assert what


def asks(count: int, sampling: SamplingParams) -> list[Ask]:
    dice = random.Random(5)
    return [Ask("all", tuple(dice.choices(range(97, 123), k=6)), sampling) for _ in range(count)]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("toy:ngram", draft="toy:ngram-draft", sequences=8, keep_costs=False)


def compared(llm: LLM, count: int = 48) -> Check:
    found = Equality(Modes(llm, SamplingParams(64)), tolerance=0.1)
    for sampling in samplings(64):
        found.run(asks(count // 4, replace(sampling, ignore_eos=True)), listed("fixed:8,always"), 8, silent)
    return found.check("again")


def test_right_texts_hold(llm: LLM) -> None:
    check = compared(llm)
    assert check.verdict == "holds" and "96 answers of 6,144 tokens" in check.found and "0 near-ties" in check.found


def test_one_wrong_token_in_two_thousand_is_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counter[str]()

    def trusting(rule: Any, draft: Any, choices: Any, noise: Any, position: int) -> Verdict:
        right = rules.verify(rule, draft, choices, noise, position)
        counted["tokens"] += 1 + len(right.path)
        if draft and not right.path and counted["tokens"] > 2000 * (1 + counted["wrong"]):
            counted["wrong"] += 1
            return Verdict((0,), choices(1, (draft.tokens[0],)).draw(noise.target(position + 1)))
        return right

    monkeypatch.setattr(engines, "verify", trusting)
    check = compared(llm, 60)
    assert check.verdict == "fails"
    assert 0 < counted["wrong"] <= counted["tokens"] / 2000
    assert "parts at token" in check.detail[0]


def drawn(llm: LLM, rule: Any, tokens: int = 6_000, **sampling: Any) -> Check:
    draws, laws, modes = law.Draws(), law.Laws(), Modes(llm, SamplingParams())
    mode = Mode(rule, SpeculationParams("always", max_draft=4, rule=rule))
    asked = {"max_tokens": 120, "temperature": 1.0, "logprobs": law.KNOWN, "ignore_eos": True} | sampling
    seed = 0
    while draws.count < tokens:
        group = [
            replace(ask, sampling=replace(ask.sampling, seed=seed + i))
            for i, ask in enumerate(asks(8, SamplingParams(**asked)))
        ]
        seed += 8
        for done in take(modes, mode, group, 8, watch=laws.stepped).done:
            draws.add(done, laws.of(done.request_id))
    return law.check(rule, draws, "again")


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_right_rule_draws_the_law(llm: LLM, rule: str) -> None:
    check = drawn(llm, rule)
    assert check.verdict == "holds" and " 0 drafted" not in check.found


def test_noise_shared_between_draft_and_residual_is_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Randomness, "draft", lambda self, start, depth: self.target(start + depth))
    assert drawn(llm, "ratio", 16_000).verdict == "fails"


def test_a_draw_from_another_law_is_found(llm: LLM) -> None:
    assert drawn(llm, "ratio", 2000, top_k=4).verdict == "fails", "the law that is told is the whole one"


def test_too_few_draws_say_nothing() -> None:
    assert law.check("ratio", law.Draws(), "again").verdict == "holds"


def judged(slow: float, monkeypatch: pytest.MonkeyPatch, batch: int = 8) -> Check:
    with clocked(monkeypatch) as (llm, clock):
        drafter = llm.engine.desk.drafters["model"]
        inner = type(drafter).observe

        def observe(self: Any, seq: Any, seen: Any) -> None:
            if len(llm.engine.scheduler.running) == 8 and seen.verdict is not None:
                clock.now += slow * 0.01 / 8
            inner(self, seq, seen)

        monkeypatch.setattr(type(drafter), "observe", observe)
        found = Speed(Modes(llm, SamplingParams()), "a toy", batch, slowdown=1.02)
        found.run(asks(32, SamplingParams(32, ignore_eos=True)), silent)
        return found.check("again")


def test_a_drafter_that_slows_eight_by_five_percent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = judged(0.5, monkeypatch)
    assert check.verdict == "fails", check.found


def test_one_that_does_not_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(0.0, monkeypatch).verdict == "holds"


def test_one_that_slows_eight_is_no_slower_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(0.5, monkeypatch, batch=1).verdict == "holds"


def test_memory_above_the_target_fails_and_below_it_holds() -> None:
    low, high = Targets(memory_bytes=1 << 20), Targets(memory_bytes=1 << 40)
    assert [check.verdict for check in limits.memory(low, 2 << 20, None, "")] == ["fails"]
    assert [check.verdict for check in limits.memory(high, 2 << 20, 2 << 20, "")] == ["holds", "holds"]
    assert [check.verdict for check in limits.memory(Targets(), 3 << 20, 2 << 20, "")] == ["not asked", "fails"]


def test_latencies_are_held_against_their_targets(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    turn = take(Modes(llm, SamplingParams()), listed("auto")[0], asks(8, SamplingParams(16)), 8)
    tight, loose = Targets(ttft_p95_ms=1e-6, tpot_p95_ms=1e-6), Targets(ttft_p95_ms=1e6, tpot_p95_ms=1e6)
    assert {check.verdict for check in limits.latencies(tight, [turn], "")} == {"fails"}
    assert {check.verdict for check in limits.latencies(loose, [turn], "")} == {"holds"}
    assert {check.verdict for check in limits.latencies(Targets(), [turn], "")} == {"not asked"}


def test_all_of_it_on_a_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    with clocked(monkeypatch) as (llm, _):
        found = Prove(llm, Config.of({"targets": {"memory_bytes": 1 << 40, "slowdown": 1.2}}), SMALL, "paceline prove")
        assert not found.report().holds, "what has not run proves nothing"
        found.run(silent)
        report = found.report()
    names = [check.name for check in report.checks]
    assert names[:3] == ["same text", "same law: ratio", "same law: block"]
    assert [name for name in names if "our prompts" in name] == [
        f"never slower: our prompts, {n} at a time" for n in (1, 2, 4, 8)
    ]
    assert report.holds, [check for check in report.checks if check.verdict == "fails"]
    assert json.loads(json.dumps(report.as_json()))["checks"][0]["verdict"] == "holds"
    assert "toy:ngram" in page(report) and "paceline bench --model toy:ngram" in page(report)


def test_what_failed_is_named_on_the_page() -> None:
    bad = Check("<b>", "a & b", "c", "fails", "run", ("<script>",))
    shown = page(Report({"model": "x"}, (bad,)))
    assert "Does not hold: &lt;b&gt;" in shown and "<script>" not in shown
    assert "proves nothing" in page(Report({"model": "x"}, (), complete=False))
