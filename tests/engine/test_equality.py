"""The same text with any drafter, length, tree, temperature, seed, batch, pre-emption and cache."""

from __future__ import annotations

import itertools
import random

import pytest

from paceline.core.types import Request, SpeculationParams

from .rig import CHAOS, EOS, RHYME, VOCAB, Rig, ask, crew, make

TEMPERATURES = (0.0, 0.3, 1.0, 1.5)
LENGTHS = (0, 1, 2, 3, 5, 8, 16)
LAWS = {"chaos": CHAOS, "rhyme": RHYME}
PARAMS = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "rewards": {"repetition_penalty": 0.7, "presence_penalty": -0.6, "frequency_penalty": -0.2},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.2},
    "bias": {"logit_bias": {0: 4.0, 1: -3.0, 2: float("-inf"), EOS: -2.0}},
    "bad words": {"bad": [(3,), (4, 5), (6, 7, 8), *((a, 9) for a in range(VOCAB))]},
    "min tokens": {"min_tokens": 15, "stop_token_ids": (1, 2, 3)},
    "stop tokens": {"stop_token_ids": (4, 5), "ignore_eos": True},
    "everything": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "logit_bias": {7: 2.0},
        "bad": [(1, 2), (3,)],
        "min_tokens": 6,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.05,
    },
}


def same(rig: Rig, requests: list[Request]) -> None:
    for request, done in zip(requests, rig.run(requests), strict=True):
        assert (list(done.token_ids), done.finish_reason) == rig.expected(request)


def prompts(count: int, seed: int) -> list[tuple[int, ...]]:
    """Some share their beginnings, some repeat themselves."""
    dice = random.Random(seed)
    base = [dice.randrange(VOCAB) for _ in range(11)]
    kinds = (
        lambda: base + [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 6))],
        lambda: [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 30))],
        lambda: base[:4] * dice.randrange(1, 6),
    )
    return [tuple(kinds[i % 3]()) for i in range(count)]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("drafters", crew())
def test_every_drafter_at_every_length(drafters: str, length: int, temperature: float) -> None:
    """The parameters take turns over the requests of a batch."""
    for name, law in LAWS.items():
        rig = make(crew(law)[drafters](), law, length=length)
        turn = LENGTHS.index(length) + TEMPERATURES.index(temperature) + len(name)
        kinds = itertools.islice(itertools.cycle(PARAMS.values()), turn, turn + 4)
        asked = zip(prompts(4, seed=length), kinds, strict=True)
        same(rig, [ask(p, temperature=temperature, seed=17 * i + length, **k) for i, (p, k) in enumerate(asked)])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("drafters", ["lookup, model", "often right", "wrong tree"])
def test_every_parameter_at_every_row(drafters: str, params: str, temperature: float) -> None:
    rig = make(crew()[drafters](), length=6)
    same(rig, [ask(p, temperature=temperature, seed=s, **PARAMS[params]) for s, p in enumerate(prompts(3, seed=1))])


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("drafters", ["lookup", "often right", "wrong tree"])
def test_other_rules_agree_where_nothing_is_sampled(drafters: str, rule: str) -> None:
    for temperature in TEMPERATURES:
        rig = make(crew()[drafters](), length=5)
        wish = SpeculationParams(rule=rule)
        same(rig, [ask(p, wish, temperature=temperature, seed=s) for s, p in enumerate(prompts(4, seed=2))])


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_other_rules_agree_where_the_best_token_is_taken(rule: str) -> None:
    rig = make(crew()["model"](), length=5)
    done = rig.run(requests := [ask(p, SpeculationParams(rule=rule)) for p in prompts(4, seed=3)])
    assert [list(d.token_ids) for d in done] == [rig.expected(request)[0] for request in requests]
    assert sum(d.speculation.accepted for d in done) > 0


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("drafters", ["none", "lookup, model", "wrong tree"])
def test_any_batch(drafters: str, size: int) -> None:
    rig = make(crew()[drafters](), length=4, sequences=5)
    asked = zip(prompts(size, seed=size), itertools.cycle(PARAMS.values()))
    same(rig, [ask(p, temperature=i % 3 / 2, seed=i, **kind) for i, (p, kind) in enumerate(asked)])


@pytest.mark.parametrize("drafters", ["none", "model", "often right", "wrong tree"])
@pytest.mark.parametrize("blocks", [14, 18, 25])
def test_pre_emption(drafters: str, blocks: int) -> None:
    rig = make(crew()[drafters](), length=4, blocks=blocks)
    same(rig, [ask(p, temperature=1.0, seed=i, ignore_eos=True) for i, p in enumerate(prompts(7, seed=blocks))])
    assert rig.engine.scheduler.preemptions > 0


@pytest.mark.parametrize("prefill_rows", [4, 5, 7, 1000])
@pytest.mark.parametrize("share_output", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_chunks_and_caches(prefill_rows: int, share_output: bool, reuse: bool) -> None:
    rig = make(
        crew()["wrong tree"](), length=4, blocks=24, prefill_rows=prefill_rows, share_output=share_output, reuse=reuse
    )
    requests = [ask(p, temperature=0.7, seed=i) for i, p in enumerate(prompts(6, seed=9))]
    same(rig, requests)
    same(rig, requests[::-1])


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 32])
def test_block_sizes(block_size: int) -> None:
    rig = make(crew()["tree"](), length=7, blocks=400 // block_size, block_size=block_size)
    same(rig, [ask(p, temperature=1.0, seed=i) for i, p in enumerate(prompts(5, seed=4))])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drafters", ["lookup, model", "wrong tree", "lookup, tree"])
def test_requests_that_join_leave_and_are_aborted(drafters: str, seed: int) -> None:
    join_and_leave(drafters, seed, count=14)


@pytest.mark.parametrize("drafters", ["none", "lookup", "model", "right", "wrong", "tree"])
def test_one_request_may_draft_and_its_neighbour_not(drafters: str) -> None:
    rig = make(crew()[drafters](), length=8)
    wishes = [
        SpeculationParams(max_draft=0),
        SpeculationParams(mode="off"),
        SpeculationParams(max_draft=1),
        SpeculationParams(drafters=()),
        SpeculationParams(mode="always"),
    ]
    requests = [ask(p, w, temperature=0.6) for p, w in zip(prompts(5, seed=5), wishes, strict=True)]
    same(rig, requests)
    for i in (0, 1, 3):
        assert rig.done[i].speculation.drafted == 0


def test_more_is_accepted_than_committed_by_the_target_alone() -> None:
    """The suites above would pass with drafts that are never taken."""
    for drafters, least in (("right", 3.0), ("tree", 2.0), ("model", 1.3), ("often right", 1.5)):
        rig = make(crew()[drafters](), length=6)
        done = rig.run(ask(p, temperature=1.0, seed=i, ignore_eos=True) for i, p in enumerate(prompts(4, seed=6)))
        assert min(d.speculation.acceptance_length for d in done) > least, drafters
    rig = make(crew(RHYME)["eager lookup"](), RHYME)
    [done] = rig.run([ask([1, 2] * 6, ignore_eos=True, max_tokens=60)])
    assert done.speculation.accepted > 10


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 160))
@pytest.mark.parametrize("drafters", crew())
def test_long_lives(drafters: str, seed: int) -> None:
    join_and_leave(drafters, seed, count=30)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("length", [1, 4, 6, 7, 11, 16])
@pytest.mark.parametrize("drafters", crew())
def test_every_drafter_at_every_length_with_every_parameter(drafters: str, length: int, temperature: float) -> None:
    for law, params in itertools.product(LAWS.values(), PARAMS.values()):
        rig = make(crew(law)[drafters](), law, length=length)
        same(rig, [ask(p, temperature=temperature, seed=seed, **params) for seed, p in enumerate(prompts(2, length))])


def join_and_leave(drafters: str, seed: int, count: int) -> None:
    """Requests come at random, some are aborted, and the pool is so small that some are pre-empted."""
    dice = random.Random(seed)
    rig = make(
        crew()[drafters](),
        length=dice.choice([1, 3, 6]),
        blocks=dice.choice([16, 24, 60]),
        sequences=dice.choice([2, 4, 8]),
        prefill_rows=dice.choice([4, 9, 40]),
        share_output=dice.random() < 0.5,
    )
    waiting = [
        ask(p, temperature=dice.choice(TEMPERATURES), seed=dice.randrange(99), **dice.choice([*PARAMS.values()]))
        for p in prompts(count, seed)
    ]
    aborted = set[int]()
    while waiting or not rig.engine.idle:
        for _ in range(dice.randrange(3)):
            if waiting:
                rig.add(waiting.pop())
        live = sorted(rig.requests.keys() - rig.done.keys() - aborted)
        if live and dice.random() < 0.04:
            aborted.add(dice.choice(live))
            rig.engine.abort(max(aborted & set(live)))
        rig.step()
    assert rig.engine.pool.available == rig.engine.pool.num_blocks
    for i, request in rig.requests.items():
        tokens, reason = rig.expected(request)
        found = rig.done[i]
        if i in aborted:
            assert found.finish_reason == "abort"
            assert list(found.token_ids) == tokens[: len(found.token_ids)]
        else:
            assert (list(found.token_ids), found.finish_reason) == (tokens, reason)
