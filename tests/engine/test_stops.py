"""Where a request ends, and that nothing behind its end shows: in text, tokens, events or counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import Completion, Request, SpeculationParams
from paceline.models.toy import VOCAB_SIZE
from tests.core.strategies import examples

from . import reference
from .rig import CHAOS, EOS, PLAIN, Oracle, Rig, ask, crew, make, tokenizer
from .test_equality import prompts, same

FULL = SpeculationParams()


def visible(done: Completion) -> tuple[object, ...]:
    return done.text, done.token_ids, done.logprobs, done.finish_reason, done.prompt_tokens, done.error


def spelled(rig: Rig, request: Request) -> tuple[str, list[int], str]:
    """Text, tokens and reason by the references alone."""
    tokens, reason = rig.expected(request)
    words = tokens[:-1] if reason == "stop" else tokens
    count, text, stopped = reference.spell(map(tokenizer().token_bytes, words), request.sampling.stop)
    return (text, tokens[:count], "stop") if stopped else (text, tokens, reason)


def agree(rig: Rig, requests: Sequence[Request]) -> list[Completion]:
    """Run requests with and without drafts, and hold both against the reference; return those with drafts."""
    drafted = rig.run(requests)
    plain = make(law=rig.law, eos=rig.eos, context=rig.engine.context).run(
        replace(r, speculation=PLAIN) for r in requests
    )
    for request, with_drafts, without in zip(requests, drafted, plain, strict=True):
        assert visible(with_drafts) == visible(without)
        assert (with_drafts.text, list(with_drafts.token_ids), with_drafts.finish_reason) == spelled(rig, request)
        assert without.speculation.drafted == 0
        assert without.speculation.plain_steps == without.speculation.steps == len(without.token_ids)
    return drafted


@pytest.mark.parametrize("at", range(1, 14))
@pytest.mark.parametrize("kind", ["eos", "stop token", "stop string", "long stop string"])
def test_an_end_anywhere_in_a_block(kind: str, at: int) -> None:
    """Four drafted tokens and one more a step: the end falls on every place of a block, and on its borders."""
    free = ask([7, 1, 8, 2], ignore_eos=True, temperature=1.0, max_tokens=30)
    tokens, _ = reference.decode(CHAOS.logits, free)
    place = next(i for i in range(at, 30) if tokens[i] not in tokens[:i] or kind.endswith("string"))
    eos = (tokens[place],) if kind == "eos" else ()
    words = {"stop string": tokens[place - 1 : place + 1], "long stop string": tokens[max(0, place - 6) : place + 1]}
    change = {
        "eos": {"ignore_eos": False},
        "stop token": {"stop_token_ids": (tokens[place],)},
        "stop string": {"stop": (tokenizer().decode(words["stop string"]),)},
        "long stop string": {"stop": (tokenizer().decode(words["long stop string"]), "never")},
    }[kind]
    request = replace(free, sampling=replace(free.sampling, logprobs=2, **change))
    for drafters in (crew()["right"], crew()["tree"]):
        rig = make(drafters(), length=4, eos=eos)
        [done] = agree(rig, [request])
        assert done.finish_reason == "stop"
        assert len(done.token_ids) <= place + 1
        assert all(len(event.token_ids) <= 5 for event in rig.events[0])


def test_what_a_perfect_drafter_drafts_behind_the_end_is_in_no_count() -> None:
    free = ask([7, 1, 8, 2], ignore_eos=True, max_tokens=30)
    tokens, _ = reference.decode(CHAOS.logits, free)
    place = next(i for i in range(9, 30) if tokens[i] not in tokens[:i])
    for length in range(1, 17):
        rig = make({"oracle": Oracle(CHAOS)}, length=length)
        [done] = rig.run([ask([7, 1, 8, 2], ignore_eos=True, max_tokens=30, stop_token_ids=(tokens[place],))])
        counts = done.speculation
        assert counts.drafted == counts.verified == counts.accepted, "all that was drafted up to the end was right"
        assert counts.steps == 1 + -(-place // (length + 1))
        assert done.sources[-1] is None


def test_a_wrong_draft_behind_the_end_is_not_counted_either() -> None:
    for seed in range(20):
        rig = make({"oracle": Oracle(CHAOS, miss=0.2, width=2)}, length=8)
        [done] = rig.run([ask([seed % 20, 1], temperature=1.0, seed=seed, stop_token_ids=(1, 2, 3, 4, 5, 6))])
        assert done.speculation.verified <= 8 * (done.speculation.steps - 1)


def texts(low: int = 1, high: int = 3):
    return st.text(alphabet="!\"#$%&'()*+", min_size=low, max_size=high)


@given(
    st.lists(texts(), min_size=1, max_size=4),
    st.sampled_from(["lookup", "model", "right", "wrong tree", "tree"]),
    st.integers(0, 10**6),
    st.integers(1, 9),
)
@examples(60)
def test_stop_strings(stops: list[str], drafters: str, seed: int, length: int) -> None:
    """Streamed and whole, with drafts and without: one text."""
    dice = random.Random(seed)
    common = {"stop": tuple(stops), "top_k": 12, "logprobs": 1, "max_tokens": 20}
    bias = dict.fromkeys(range(11), 1.5)
    requests = [
        ask(p, temperature=dice.choice([0.0, 1.0]), seed=seed + i, logit_bias=bias, **common)
        for i, p in enumerate(prompts(3, seed))
    ]
    agree(make(crew()[drafters](), length=length), requests)


def test_text_that_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    free = ask([7, 1, 8, 2], ignore_eos=True, max_tokens=12)
    tokens, _ = reference.decode(CHAOS.logits, free)
    text = tokenizer().decode(tokens)
    stop = text[3:8] + "~"
    rig = make({})
    [done] = rig.run([replace(free, sampling=replace(free.sampling, stop=(stop,)))])
    assert done.text == text
    pieces = [event.text for event in rig.events[0]]
    assert pieces[3:8] == [""] * 5
    assert text[3:8] in pieces[8]
    rig = make({})
    [done] = rig.run([replace(free, sampling=replace(free.sampling, stop=(stop,), max_tokens=6))])
    assert done.text == text[:6], "what is held back comes out at the end"


class Recital:
    """Recites a text after a prompt of one token, over the whole vocabulary of bytes."""

    vocab_size = VOCAB_SIZE

    def __init__(self, text: str) -> None:
        self._tokens = tokenizer().encode(text)

    def logits(self, context: Sequence[int]) -> np.ndarray:
        found = np.random.default_rng(len(context)).normal(size=self.vocab_size).astype(np.float32)
        place = len(context) - 1
        found[self._tokens[place] if place < len(self._tokens) else 256] += 20
        return found


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("text", ["héllo wörld, ça va ?", "日本語のテキスト", "a🙂b👩‍👩‍👧🇫🇷 end", "ﷺ·½"])
def test_no_character_is_streamed_in_halves(text: str, length: int) -> None:
    law = Recital(text)
    drafters = {"oracle": Oracle(law, width=1 + length % 2)}
    rig = make(drafters, law, length=length, eos=(256,), context=128)
    [done] = rig.run([ask([0], max_tokens=100)])
    assert done.text == text
    assert done.finish_reason == "stop"
    for event in rig.events[0]:
        assert "\ufffd" not in event.text
    assert len(done.token_ids) == len(text.encode()) + 1


@pytest.mark.parametrize("count", range(1, 9))
def test_a_character_cut_short_is_marked_at_the_end_only(count: int) -> None:
    law = Recital("é日🙂")
    rig = make({"oracle": Oracle(law)}, law, length=3, context=128)
    [done] = rig.run([ask([0], max_tokens=count)])
    assert done.text == "é日🙂".encode()[:count].decode("utf-8", "replace")
    assert all("\ufffd" not in event.text for event in rig.events[0][:-1])


@pytest.mark.parametrize("stop", ["界", "🙂", "o, 世界", "\n"])
def test_stop_strings_of_several_bytes(stop: str) -> None:
    text = "hello, 世界 🙂\nmore"
    for length in (0, 2, 5, 12):
        law = Recital(text)
        rig = make({"oracle": Oracle(law)}, law, length=length, context=128, eos=(256,))
        [done] = rig.run([ask([0], stop=(stop,), max_tokens=50)])
        assert done.text == text[: text.index(stop)]
        assert len(done.token_ids) == len(text[: text.index(stop) + len(stop)].encode())


@pytest.mark.parametrize("drafters", crew())
def test_the_edge_of_the_context(drafters: str) -> None:
    rig = make(crew()[drafters](), length=16, context=256)
    prompt = tuple(random.Random(1).randrange(19) for _ in range(248))
    requests = [ask(prompt, temperature=t, ignore_eos=True, max_tokens=100) for t in (0.0, 1.0)]
    for done in agree(rig, requests):
        assert (len(done.token_ids), done.finish_reason) == (8, "length")
    if drafters in ("right", "wrong"):
        assert rig.done[0].speculation.reasons["context_limit"] > 0


@pytest.mark.parametrize("prompt", [1, 2, 254, 255])
def test_prompts_that_leave_one_token_or_nearly(prompt: int) -> None:
    rig = make(crew()["right"](), length=16, context=256)
    [done] = agree(rig, [ask([3] * prompt, max_tokens=9, ignore_eos=True)])
    assert len(done.token_ids) == min(9, 256 - prompt)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("drafters", crew())
def test_few_tokens(drafters: str, most: int) -> None:
    rig = make(crew()[drafters](), length=8)
    done = agree(rig, [ask(p, max_tokens=most, temperature=1.0, seed=s) for s, p in enumerate(prompts(4, seed=7))])
    for one in done:
        assert len(one.token_ids) <= most
        assert one.speculation.drafted <= most - 1, "the last token is the target's own"


@pytest.mark.parametrize("drafters", ["none", "right", "model", "tree"])
def test_min_tokens_put_every_end_off(drafters: str) -> None:
    rig = make(crew()[drafters](), length=5)
    requests = [
        ask(p, temperature=1.0, seed=s, min_tokens=12, stop_token_ids=tuple(range(9)), max_tokens=40)
        for s, p in enumerate(prompts(4, seed=8))
    ]
    for done in agree(rig, requests):
        assert len(done.token_ids) >= 13
        assert done.finish_reason == "stop"
        assert not set(done.token_ids[:-1]) & {*range(9), EOS}


@pytest.mark.parametrize("drafters", crew())
def test_log_probabilities_are_the_targets_at_every_token(drafters: str) -> None:
    rig = make(crew()[drafters](), length=6)
    requests = [
        ask(p, temperature=t, seed=s, logprobs=n, top_k=8, repetition_penalty=1.3)
        for s, (p, t, n) in enumerate(zip(prompts(4, seed=10), (0.0, 0.5, 1.0, 1.5), (0, 1, 5, 20), strict=True))
    ]
    for request, done in zip(requests, agree(rig, requests), strict=True):
        text = list(request.prompt)
        assert [found.token_id for found in done.logprobs] == list(done.token_ids)
        for found in done.logprobs:
            logits = CHAOS.logits(text).astype(np.float64)
            p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            assert found.logprob == pytest.approx(float(np.log(p[found.token_id])), abs=1e-9)
            assert [token for token, _ in found.top] == [int(i) for i in np.argsort(-p)[: request.sampling.logprobs]]
            text.append(found.token_id)


@pytest.mark.parametrize("drafters", ["none", "lookup, model", "right", "wrong tree"])
@pytest.mark.parametrize("share_output", [False, True])
def test_the_next_turn_over_cached_blocks_is_as_fresh(drafters: str, share_output: bool) -> None:
    rig = make(crew()[drafters](), length=5, share_output=share_output, context=200)
    text = list(prompts(1, seed=11)[0])
    for turn in range(4):
        request = ask(text, temperature=0.9, seed=turn, ignore_eos=True, stop_token_ids=(2,))
        same(rig, [request])
        [fresh] = make(context=200).run([request])
        assert visible(rig.done[turn]) == visible(fresh)
        text += [*fresh.token_ids, 4, 4, turn]


def test_a_prefix_is_read_once() -> None:
    class Counting:
        rows = 0

    rig = make({}, share_output=True)
    forward = rig.runner.forward

    def counted(spans, *rest):
        Counting.rows += sum(len(span.tokens) for span in spans)
        return forward(spans, *rest)

    rig.runner.forward = counted
    prompt = [5, 6, 7, 8] * 10
    rig.run([ask(prompt, max_tokens=1)])
    first, Counting.rows = Counting.rows, 0
    rig.run([ask(prompt, max_tokens=1)])
    assert (first, Counting.rows) == (40, 4), "the block with the last row is read again"
