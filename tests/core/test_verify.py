"""The walks: what is confirmed of a draft, against walks that ask one question at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import verify as module
from paceline.core.law import Law
from paceline.core.noise import Stream, gumbel, stream_key, uniform
from paceline.core.sampling import Shaping, law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, RULES, SamplingParams, SpeculationParams, Verdict
from paceline.core.verify import Randomness, acceptance, block_acceptance, block_weights, coupled, typical, verify

from . import reference
from .strategies import World, choice, drafts, examples, vectors, worlds

LOSSLESS = [rule for rule in RULES if SpeculationParams(rule=rule).lossless]
SEEDS = st.integers(0, 2**64 - 1)
VOCABULARY = 3


class Toy:
    """A target over a few tokens whose logits hang on all tokens so far; remembers which rows were asked for."""

    def __init__(self, draft: Draft, params: SamplingParams, seed: int, said: tuple[int, ...] = ()) -> None:
        self.draft, self.shaping, self.seed, self.said = draft, Shaping(params), seed, said
        self.asked: list[int] = []

    def law(self, context: tuple[int, ...]) -> Law:
        logits = np.array([choice(self.seed, (*context, t), 16) / 4 for t in range(VOCABULARY)], np.float32)
        return law(logits, self.shaping, context)

    def __call__(self, row: int, tokens: tuple[int, ...]) -> Law:
        expected = reference.token_path(self.draft, row - 1) if row else ()
        assert tokens == expected, "a row is shaped with the tokens of its own path"
        self.asked.append(row)
        return self.law(self.said + tokens)


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.5),
]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "shaped"])
@examples(150)
@given(drafts(), SEEDS, st.integers(0, 100), st.integers(0, 99))
def test_coupled_is_the_walk(params, draft, seed, position, model):
    toy, noise = Toy(draft, params, model), Randomness(seed)
    verdict = coupled(draft, toy, noise, position)
    path, token = reference.walk(draft, lambda said: toy.law(said).draw(noise.target(position + len(said))))
    assert verdict == Verdict(path, token)
    assert toy.asked == [0, *(node + 1 for node in path)], "only rows on the walk are looked at"


@pytest.mark.parametrize("rule", LOSSLESS)
@examples(100)
@given(drafts(), SEEDS, st.integers(0, 100), st.integers(0, 99))
def test_drafts_without_laws_are_coupled_under_every_rule(rule, draft, seed, position, model):
    toy, noise = Toy(draft, PARAMS[1], model), Randomness(seed)
    assert verify(rule, draft, toy, noise, position) == coupled(draft, toy, noise, position)


def decode(propose, rule: str, params: SamplingParams, seed: int, model: int, length: int) -> list[int]:
    """Speculative decoding at its smallest; with empty drafts it is plain decoding."""
    said: list[int] = []
    while len(said) < length:
        draft = propose(tuple(said))
        toy = Toy(draft, params, model, tuple(said))
        verdict = verify(rule, draft, toy, Randomness(seed), 1 + len(said))
        said += [*(draft.tokens[n] for n in verdict.path), verdict.token]
    return said[:length]


def shifted(draft: Draft) -> Draft:
    """Also tokens that do not exist: one vocabulary further up, and below zero."""
    tokens = tuple(t + VOCABULARY if n % 4 == 3 else t - 9 if n % 7 == 6 else t for n, t in enumerate(draft.tokens))
    return Draft(tokens, draft.parents, draft.confidence, draft.source)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "shaped"])
@examples(60)
@given(st.lists(drafts(8), min_size=1, max_size=6), SEEDS, st.integers(0, 99), st.sampled_from(LOSSLESS))
def test_no_draft_changes_the_text(params, trees, seed, model, rule):
    """Whatever is drafted, twins and tokens that do not exist included, the text is that of plain decoding."""
    plain = decode(lambda said: EMPTY, "coupled", params, seed, model, 20)
    assert decode(lambda said: shifted(trees[len(said) % len(trees)]), rule, params, seed, model, 20) == plain


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "shaped"])
def test_a_drafter_that_knows_the_text_is_taken_whole(params):
    plain = decode(lambda said: EMPTY, "coupled", params, 5, 7, 20)
    steps = []

    def oracle(said):
        steps.append(len(said))
        return Draft.chain(plain[len(said) : len(said) + 4], "oracle")

    assert decode(oracle, "coupled", params, 5, 7, 20) == plain
    assert steps == [0, 5, 10, 15]


@pytest.mark.parametrize("seed", range(50))
def test_a_drafter_with_the_targets_law_and_noise_is_always_right(seed):
    """Under the coupled rule the drafter shares the target's noise; with q = p nothing is ever rejected."""
    noise, world = Randomness(seed), World(3, 3, ((0.5, 0.3, 0.2), (0.1, 0.1, 0.8)), (), seed)
    tokens: tuple[int, ...] = ()
    for i in range(3):
        tokens += (world.p_law(tokens).draw(noise.target(10 + i)),)
    verdict = coupled(Draft.chain(tokens, "model"), lambda row, said: world.p_law(said), noise, 10)
    assert verdict.path == (0, 1, 2)


def test_randomness_is_keyed_noise():
    noise, ids = Randomness(3), np.arange(5, dtype=np.int64)
    assert np.array_equal(noise.target(8)(ids), gumbel(stream_key(3, 8, Stream.TARGET), ids))
    assert np.array_equal(noise.draft(8, 2)(ids), gumbel(stream_key(3, 8, Stream.DRAFT, 2), ids))
    assert noise.target(8).of_tail() == gumbel(stream_key(3, 8, Stream.TAIL), ids)[0]
    assert noise.target(8).within_tail() == uniform(stream_key(3, 8, Stream.TAIL), ids)[1]
    assert noise.accept(8, 2) == uniform(stream_key(3, 8, Stream.ACCEPT, 2), ids)[0]


@dataclass(frozen=True)
class Scripted(Randomness):
    """Accept numbers from a list, which holds one for each depth; the rest is keyed noise."""

    numbers: Sequence[float] = ()

    def accept(self, start: int, depth: int) -> float:
        assert 0 <= depth < len(self.numbers)
        return self.numbers[depth]


class Rows:
    """The target's laws along a chain: row i is asked for with the i tokens before it, and no row twice."""

    def __init__(self, world: World, draft: Draft) -> None:
        self.world, self.draft, self.asked = world, draft, []

    def __call__(self, row: int, said: tuple[int, ...]) -> Law:
        assert said == self.draft.tokens[:row]
        self.asked.append(row)
        return self.world.p_law(said)


def drawn_draft(world: World, noise: Randomness, start: int) -> Draft:
    tokens: tuple[int, ...] = ()
    for i in range(world.depth):
        q = world.q_law(tokens) or Law.of(np.array(world.q(tokens)))
        tokens += (q.draw(noise.draft(start, i)),)
    return world.draft(tokens)


def sampled_verdict(rule: str, draft: Draft, world: World, noise: Randomness, start: int) -> tuple[int, int]:
    everything = np.arange(world.vocabulary, dtype=np.int64)
    walk = reference.ratio_verdict if rule == "ratio" else reference.block_verdict
    return walk(
        draft.tokens,
        world.p,
        world.q,
        lambda i: noise.accept(start, i),
        lambda i: noise.target(start + i)(everything).tolist(),
    )


@pytest.mark.parametrize("rule", ["ratio", "block"])
@examples(400)
@given(worlds(), SEEDS, st.integers(0, 50))
def test_sampled_chains_are_the_reference_walk(rule, world, seed, start):
    noise = Randomness(seed)
    draft = drawn_draft(world, noise, start)
    if not draft.is_sampled:
        return
    rows = Rows(world, draft)
    verdict = verify(rule, draft, rows, noise, start)
    kept, token = sampled_verdict(rule, draft, world, noise, start)
    assert verdict == Verdict(tuple(range(kept)), token)
    looked_at = kept if rule == "ratio" else len(draft)
    assert rows.asked == list(range(looked_at + 1)), "ratio looks no further than it goes, block at every row"


@pytest.mark.parametrize("rule", ["ratio", "block"])
@examples(100)
@given(worlds(3, 3), SEEDS)
def test_every_accept_outcome_is_the_reference_walk(rule, world, seed):
    """Accept numbers at the ends and in the middle force paths that are rare by chance."""
    draft = drawn_draft(world, Randomness(seed), 0)
    if not draft.is_sampled:
        return
    for numbers in itertools.product([1e-300, 0.5123, 1 - 2**-53], repeat=world.depth):
        noise = Scripted(seed, numbers)
        verdict = verify(rule, draft, Rows(world, draft), noise, 0)
        assert (len(verdict.path), verdict.token) == sampled_verdict(rule, draft, world, noise, 0)


P, Q = Law.of(np.array([0.25, 0.75])), Law.of(np.array([0.5, 0.5]))


def test_acceptance():
    assert acceptance(P, Q, 0) == pytest.approx(0.5)
    assert acceptance(P, Q, 1) == 1.0
    assert acceptance(Law.point(1), Q, 0) == 0.0


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_number_equal_to_the_chance_rejects(rule):
    """Numbers lie below the chance with exactly that probability, so the chance itself is outside."""
    draft = Draft.chain([0], "model", laws=[Q])
    laws = lambda row, said: P  # noqa: E731
    chance = acceptance(P, Q, 0) if rule == "ratio" else block_acceptance(block_weights(draft, [P, P]), 1, P, None)
    for number, path in [(chance, ()), (math.nextafter(chance, 0), (0,))]:
        assert verify(rule, draft, laws, Scripted(1, [number]), 0).path == path


def test_block_looks_past_a_failure():
    """A later block may be accepted after an earlier one was not; ratio stops at the first failure."""
    draft = Draft.chain([0, 1], "model", laws=[Q, Q])
    laws = lambda row, said: P  # noqa: E731
    noise = Scripted(1, [1 - 2**-53, 1e-300])
    assert verify("block", draft, laws, noise, 0).path == (0, 1)
    assert verify("ratio", draft, laws, noise, 0).path == ()


def test_block_weights_are_capped_products():
    draft = Draft.chain([0, 1, 1, 0], "model", laws=[Q, Q, Q, None])
    assert block_weights(draft, [P] * 5) == pytest.approx([1, 0.5, 0.75, 1, 0.25])


def test_block_acceptance_by_hand():
    weights = [1.0, 0.5, 1.0]
    # (0.5 · p − q)+ = (0, 0): nothing to correct with, so stopping here has no chance
    assert block_acceptance(weights, 1, P, Q) == 0.0
    # (0.5 · p − q)+ = (0, 0.275) with q = (0.9, 0.1)
    assert block_acceptance(weights, 1, P, Law.of(np.array([0.9, 0.1]))) == pytest.approx(0.275 / 0.775)
    assert block_acceptance(weights, 1, P, None) == 0.5
    assert block_acceptance(weights, 2, P, P) == 1.0, "p = q at full weight: no room, and no division by it"


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_sampled_trees_are_not_for_these_rules(rule):
    fork = Draft((0, 1), (-1, -1), (1.0, 1.0), ("model",) * 2, (Q, Q))
    with pytest.raises(AssertionError, match=r"^sampled drafts are chains$"):
        verify(rule, fork, lambda row, said: P, Randomness(0), 0)
    assert verify("coupled", fork, lambda row, said: P, Randomness(0), 0).path in [(0,), (1,)]


def test_rules_go_to_their_walks(monkeypatch):
    """Each rule by its name, with all that it was given."""
    draft, noise, laws = Draft.chain([0], "model", laws=[Q]), Randomness(4), lambda row, said: P
    for rule in RULES:
        monkeypatch.setattr(module, rule, lambda *given, rule=rule: (rule, given))
    for rule in RULES:
        assert verify(rule, draft, laws, noise, 9) == (rule, (draft, laws, noise, 9))
        unsampled = Draft.chain([0], "lookup")
        walk = "typical" if rule == "typical" else "coupled"
        assert verify(rule, unsampled, laws, noise, 9) == (walk, (unsampled, laws, noise, 9))


def test_positions_of_corrections_and_bonus():
    """The last token at position n is drawn with position n's noise, wherever the walk ends."""
    world = World(4, 2, ((0.4, 0.3, 0.2, 0.1),), ((0.4, 0.3, 0.2, 0.1),), 0)
    laws = lambda row, said: world.p_law(said)  # noqa: E731
    for seed, rule in itertools.product(range(20), ["ratio", "block"]):
        noise = Randomness(seed)
        verdict = verify(rule, drawn_draft(world, noise, 30), laws, noise, 30)
        assert verdict == Verdict((0, 1), world.p_law(()).draw(noise.target(32))), "q = p: nothing is rejected"


# typical


def test_typical_is_flagged_lossy():
    assert [rule for rule in RULES if not SpeculationParams(rule=rule).lossless] == ["typical"]


@examples(200)
@given(drafts(), SEEDS, st.integers(0, 100), st.integers(0, 99))
def test_typical_is_coupled_at_temperature_zero(draft, seed, position, model):
    toy, noise = Toy(draft, PARAMS[0], model), Randomness(seed)
    assert verify("typical", draft, toy, noise, position) == coupled(draft, toy, noise, position)


@examples(200)
@given(drafts(), SEEDS, st.integers(0, 100), vectors(VOCABULARY))
def test_typical_takes_the_most_probable_child_above_the_bar(draft, seed, position, p):
    law_, noise = Law.of(np.array(p)), Randomness(seed)
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    bar = min(0.09, 0.3 * math.exp(-entropy))
    path: list[int] = []
    while True:
        parent = path[-1] if path else ROOT
        here = [n for n in range(len(draft)) if draft.parents[n] == parent]
        best = min(here, key=lambda n: (-p[draft.tokens[n]], n), default=None)
        if best is None or p[draft.tokens[best]] <= bar:
            break
        path.append(best)
    asked = []
    laws = lambda row, said: asked.append((row, said)) or law_  # noqa: E731
    verdict = typical(draft, laws, noise, position)
    assert verdict == Verdict(tuple(path), law_.draw(noise.target(position + len(path))))
    said = tuple(draft.tokens[n] for n in path)
    assert asked == [(row, said[:i]) for i, row in enumerate([0, *(n + 1 for n in path)])]


@pytest.mark.parametrize(
    ("chance", "others", "taken"),
    [(0.091, 1, True), (0.089, 1, False), (0.07, 64, True), (0.002, 64, False), (0.0, 1, False)],
)
def test_typical_bar(chance, others, taken):
    """Never above 0.09, and lower where the target itself is undecided."""
    p = Law.of(np.array([chance, *[(1 - chance) / others] * others]))
    assert (typical(Draft.chain([0], "model"), lambda row, said: p, Randomness(0), 0).path == (0,)) is taken


def test_typical_refuses_what_equals_the_bar(monkeypatch):
    p = Law.of(np.array([0.09, 0.91]))
    monkeypatch.setattr(module, "TYPICAL_EPSILON", p.prob(0))
    assert typical(Draft.chain([0], "model"), lambda row, said: p, Randomness(0), 0).path == ()
