"""What goes wrong in one place stays there: a failing pass, a failing sequence, too little memory, a poor model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.sampling import RowChoice, law
from paceline.core.tree import Draft, depths
from paceline.core.types import SpeculationParams
from paceline.engine import engine as engine_module
from paceline.engine.text import TextStream
from paceline.errors import RequestError
from paceline.models.toy import ToyLaw

from .rig import CHAOS, EOS, PLAIN, VOCAB, Oracle, Rig, ask, crew, make, model, tokenizer
from .test_equality import prompts, same


def break_pass(rig: Rig, number: int, error: BaseException) -> None:
    """Let the target's pass of this number raise, after it has written what it would."""
    forward, calls = rig.runner.forward, iter(range(1000))

    def failing(*given: Any) -> Any:
        output = forward(*given)
        if next(calls) == number:
            raise error
        return output

    rig.runner.forward = failing  # type: ignore[method-assign]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt()])
def test_a_pass_that_fails_ends_its_sequences_alone(number: int, error: BaseException) -> None:
    rig = make(crew()["tree"](), length=3, sequences=3, prefill_rows=8)
    requests = [ask(p, ignore_eos=True, seed=i) for i, p in enumerate(prompts(6, seed=3))]
    for request in requests:
        rig.add(request)
    break_pass(rig, number, error)
    with pytest.raises(type(error)):
        rig.drain()
    rig.engine.pool.check()
    hit = {event.request_id for event in rig.engine._pending_events}
    assert 1 <= len(hit) <= 3
    rig.drain()
    for i, request in enumerate(requests):
        done = rig.done[i]
        tokens, reason = rig.expected(request)
        if i in hit:
            assert (done.finish_reason, done.error) == ("error", "the forward pass failed")
            assert list(done.token_ids) == tokens[: len(done.token_ids)]
        else:
            assert (list(done.token_ids), done.finish_reason) == (tokens, reason)
    same(rig, [replace(r, sampling=replace(r.sampling, seed=9)) for r in requests[:1]])


def test_news_that_waits_outlives_a_failing_pass() -> None:
    rig = make({})
    first, second = rig.add(ask([1])), rig.add(ask([2]))
    rig.engine.abort(first)
    break_pass(rig, 0, RuntimeError("device lost"))
    with pytest.raises(RuntimeError):
        rig.step()
    assert [(e.request_id, e.finish_reason) for e in rig.step()] == [(first, "abort"), (second, "error")]


def test_a_sequence_that_cannot_be_sampled_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(row: Any, shaping: Any, output: Sequence[int]) -> Any:
        if shaping.prompt[0] == 3 and len(output) >= 5:
            raise FloatingPointError("no law")
        return RowChoice(row, shaping, output)

    monkeypatch.setattr(engine_module, "RowChoice", picky)
    rig = make(crew()["right"](), length=4)
    requests = [ask([i, 7, 8], repetition_penalty=1.1, seed=i, ignore_eos=True) for i in range(5)]
    done = rig.run(requests)
    for i, request in enumerate(requests):
        tokens, reason = rig.expected(request)
        if i == 3:
            assert (done[i].finish_reason, done[i].error) == ("error", "FloatingPointError: no law")
            assert 0 < len(done[i].token_ids) <= 5
            assert list(done[i].token_ids) == tokens[: len(done[i].token_ids)]
        else:
            assert (list(done[i].token_ids), done[i].finish_reason) == (tokens, reason)


def test_text_that_fails_takes_back_the_tokens_that_no_event_shows() -> None:
    class Fragile(TextStream):
        pushed = 0

        def push(self, token: int) -> tuple[str, bool]:
            self.pushed += 1
            if self.pushed == 9:
                raise UnicodeError("no such character")
            return super().push(token)

    rig = make(crew()["right"](), length=4, text=lambda request: Fragile(tokenizer(), request))
    [done] = rig.run([ask([1, 2], logprobs=1, ignore_eos=True)])
    assert done.error == "UnicodeError: no such character"
    assert len(done.token_ids) == len(done.text) == 6, "one of the prompt's pass, five of a whole step"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask([]), "the prompt is empty; give at least one token of text"),
        (ask([1, VOCAB]), f"the prompt has token id {VOCAB}; this model's ids are 0 to {VOCAB - 1}"),
        (ask([-1]), f"the prompt has token id -1; this model's ids are 0 to {VOCAB - 1}"),
        (ask([1], logit_bias={99: 1.0}), f"logit_bias has token id 99; this model's ids are 0 to {VOCAB - 1}"),
        (ask([1], stop_token_ids=(30,)), f"stop_token_ids has token id 30; this model's ids are 0 to {VOCAB - 1}"),
        (ask([1], bad=[(1, 77)]), f"bad_token_ids has token id 77; this model's ids are 0 to {VOCAB - 1}"),
        (
            ask([1] * 96),
            "the prompt has 96 tokens; at most 95 fit in the context of 96; shorten it or raise the context",
        ),
        (
            ask([1] * 30, max_tokens=50),
            "prompt and max_tokens need 20 KV blocks and the pool has 10; lower max_tokens or raise the context",
        ),
    ],
)
def test_a_request_that_cannot_be_served_says_why(request_: Any, message: str) -> None:
    rig = make({}, blocks=10)
    with pytest.raises(RequestError) as error:
        rig.engine.add(request_)
    assert str(error.value) == message
    assert rig.engine.idle
    same(rig, [ask([1] * 30, max_tokens=10)])


@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_without_memory_drafts_nothing(blocks: int, temperature: float) -> None:
    rig = make({"model": model(blocks=blocks)}, length=6)
    requests = [ask(p, temperature=temperature, seed=i, ignore_eos=True) for i, p in enumerate(prompts(5, seed=1))]
    same(rig, requests)
    reasons = [done.speculation.reasons for done in rig.done.values()]
    assert all("drafter_failed" not in reason for reason in reasons)
    assert sum(reason.get("nothing_to_draft", 0) for reason in reasons) > 0


def test_a_draft_model_of_a_shorter_context_stops_there() -> None:
    rig = make({"model": model(context=20)}, length=6)
    same(rig, [ask([1] * 10, ignore_eos=True, max_tokens=40), ask([2] * 25, ignore_eos=True)])
    first, second = (rig.done[i].speculation for i in (0, 1))
    assert 0 < first.drafted <= 60
    assert second.drafted == 0
    assert second.reasons["nothing_to_draft"] == second.steps - 2 + second.reasons.get("context_limit", 0)


@pytest.mark.parametrize("broken", [0, 1, 2, 5, 9])
def test_a_draft_model_that_fails_once_goes_on_for_the_others(broken: int) -> None:
    """Some call of its runner raises: the batch is asked again, one by one."""
    drafter = model()
    forward, calls = drafter._reader._runner.forward, iter(range(10**6))

    def failing(*given: Any) -> Any:
        if next(calls) == broken:
            raise RuntimeError("device lost")
        return forward(*given)

    drafter._reader._runner.forward = failing  # type: ignore[method-assign]
    rig = make({"model": drafter}, length=4, prefill_rows=200)
    requests = [ask(p, temperature=0.5, seed=i, ignore_eos=True) for i, p in enumerate(prompts(4, seed=2))]
    same(rig, requests)
    counts = [done.speculation for done in rig.done.values()]
    assert all("drafter_failed" not in count.reasons for count in counts), "asked alone, each one works"
    assert all(count.accepted > 0 for count in counts)
    drafter.pool.check()
    assert drafter.pool.available == drafter.pool.num_blocks


def test_a_draft_model_that_fails_for_one_prompt_is_off_for_that_alone() -> None:
    drafter = model()
    forward = drafter._reader._runner.forward

    def failing(spans: Any, *rest: Any) -> Any:
        if any(13 in span.tokens for span in spans):
            raise RuntimeError("cannot read this")
        return forward(spans, *rest)

    drafter._reader._runner.forward = failing  # type: ignore[method-assign]
    rig = make({"model": drafter}, length=4, prefill_rows=200)
    banned = {"logit_bias": {13: float("-inf")}, "ignore_eos": True}
    same(rig, [ask([5, 6, 7], **banned), ask([5, 13, 7], **banned), ask([8, 9], **banned)])
    counts = [rig.done[i].speculation for i in range(3)]
    assert [count.reasons.get("drafter_failed", 0) for count in counts] == [0, 1, 0]
    assert counts[1].drafted == 0
    assert min(counts[0].accepted, counts[2].accepted) > 0
    drafter.pool.check()
    assert drafter.pool.available == drafter.pool.num_blocks


def test_a_draft_that_finds_no_blocks_is_not_verified() -> None:
    rig = make({"oracle": Oracle(CHAOS)}, length=16, blocks=6, sequences=2)
    requests = [ask([i, 2, 3], ignore_eos=True, max_tokens=17, seed=i) for i in range(2)]
    same(rig, requests)
    counts = [done.speculation for done in rig.done.values()]
    assert sum(count.reasons.get("memory", 0) for count in counts) > 0
    assert any(count.drafted > count.verified for count in counts)


def test_a_model_that_cannot_rewind_is_served_plain() -> None:
    rig = make(crew()["right"](), length=5, can_rewind=False, reuse=False)
    same(rig, [ask(p, temperature=1.0, seed=i) for i, p in enumerate(prompts(3, seed=4))])
    for done in rig.done.values():
        counts = done.speculation
        assert counts.drafted == 0
        assert counts.reasons == {"unsupported_model": counts.steps - 1}
        assert counts.plain_steps == counts.steps


@pytest.mark.parametrize("reach", [0, 12, 20, 1000])
def test_trees_end_where_they_would_not_be_exact(reach: int) -> None:
    rig = make({"oracle": Oracle(CHAOS, width=3)}, length=9, tree_context=reach)
    forward, trees, chains = rig.runner.forward, [], 0

    def watched(spans: Any, *rest: Any) -> Any:
        nonlocal chains
        for span in spans:
            if span.mask is not None:
                trees.append(span.cached + len(span.tokens))
            chains += span.mask is None and len(span.tokens) > 1 and len(span.wanted) > 1
        return forward(spans, *rest)

    rig.runner.forward = watched  # type: ignore[method-assign]
    same(rig, [ask([1, 2, 3], ignore_eos=True, max_tokens=40, seed=s, temperature=1.0) for s in range(3)])
    assert all(size <= reach for size in trees)
    assert bool(trees) == (reach > 12)
    assert chains > 0 or reach == 1000


def test_a_sampled_tree_is_cut_to_its_best_chain() -> None:
    def proposal(seqs: Any, limits: Any) -> list[Draft]:
        q = law(CHAOS.logits([0]), seqs[0].shaping, [])
        return [Draft((1, 2, 3), (-1, -1, 1), (0.2, 0.9, 0.5), ("odd",) * 3, (q, q, q)) for _ in seqs]

    seen: list[Draft] = []

    class Sampled(Oracle):
        def propose(self, seqs: Any, limits: Any) -> list[Draft]:
            return proposal(seqs, limits)

    rig = make({"odd": Sampled(CHAOS)})
    desk, propose = rig.engine.desk, rig.engine.desk.propose
    desk.propose = lambda *given: seen.extend(found := propose(*given)) or found  # type: ignore[method-assign]
    rig.run([ask([1], SpeculationParams(rule="ratio"), temperature=1.0, max_tokens=9)])
    assert seen
    assert all(draft.tokens == (2, 3) and max(depths(draft.parents)) == 2 for draft in seen if len(draft) == 2)
    assert max(map(len, seen)) == 2


def test_aborting() -> None:
    rig = make(crew()["model"](), length=3, sequences=1)
    running, waiting = rig.add(ask([1, 2], ignore_eos=True)), rig.add(ask([3, 4]))
    for _ in range(3):
        rig.step()
    shown = sum(len(event.token_ids) for event in rig.events[running])
    rig.engine.abort(running)
    rig.engine.abort(waiting)
    rig.engine.abort(running)
    rig.engine.abort(12345)
    assert not rig.engine.idle
    assert [(e.request_id, e.finish_reason) for e in rig.step()] == [(running, "abort"), (waiting, "abort")]
    assert len(rig.done[running].token_ids) == shown > 0
    assert rig.done[waiting].token_ids == ()
    assert rig.engine.idle
    assert rig.engine.step() == []


def test_what_nobody_asks_for_is_forgotten() -> None:
    rig = make({})
    one, two = rig.engine.add(ask([1])), rig.engine.add(ask([2]))
    rig.engine.abort(one)
    rig.engine.abort(two)
    rig.engine.forget([one, 99])
    assert [event.request_id for event in rig.engine.step()] == [two]
    assert rig.engine.completion(two).finish_reason == "abort"
    with pytest.raises(KeyError):
        rig.engine.completion(one)


def test_a_request_without_a_seed_reports_the_one_it_got() -> None:
    rig = make(crew()["often right"]())
    free = ask([1, 2], temperature=1.5, ignore_eos=True, seed=None)
    first, second = (rig.engine.add(free) for _ in range(2))
    while not rig.engine.idle:
        rig.engine.step()
    one, two = rig.engine.completion(first), rig.engine.completion(second)
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    [again] = make({}).run([replace(free, sampling=replace(free.sampling, seed=one.seed))])
    assert again.token_ids == one.token_ids


def test_times_come_from_the_clock_and_begin_at_any_hour() -> None:
    ticks = iter(np.arange(0, 10_000, 0.5))
    rig = make(crew()["right"](), length=3, clock=lambda: float(next(ticks)))
    [done] = rig.run([ask([1] * 40, ignore_eos=True, max_tokens=12)])
    times = done.timings
    assert times.prefill_ms > 0 and times.decode_ms > 0
    assert times.time_to_first_token_ms > times.prefill_ms
    assert done.speculation.verify_ms > 0


def test_a_wide_law_may_have_a_reach_of_its_own() -> None:
    """The engine's context is the lower of what is asked for and what the model has."""
    assert make({}, context=50).engine.context == 50
    rig = make({}, ToyLaw(VOCAB), context=64)
    engine = type(rig.engine)(
        rig.runner, rig.engine.pool, rig.engine.scheduler, rig.engine.desk, rig.engine.governor, lambda r: None, (EOS,)
    )
    assert engine.context == 64
    assert PLAIN.max_draft == 0
