"""The draft model's branches: which they are, how far they reach, and what of them stays cached."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree
from paceline.core.noise import Stream, gumbel, stream_key
from paceline.core.sampling import law
from paceline.core.tree import Draft
from paceline.core.types import ROOT, Rule, SamplingParams
from paceline.drafters.beam import ROWS, SLIGHT, WIDTH
from paceline.drafters.grow import Growth
from paceline.drafters.guesses import APART
from paceline.drafters.model import ModelDrafter
from paceline.models.toy import ToyLaw
from paceline.runners.kv import Pool
from tests.core.strategies import examples
from tests.engine import rig

from .test_model import LAW, Watched
from .views import View

UNSURE = replace(LAW, spread=0.6)
TEMPERATURES = (0.0, 0.7, 1.2)


def made(
    toy: ToyLaw = UNSURE, reach: int | None = None, least: float = 0.0, blocks: int = 200, context: int = 200
) -> tuple[ModelDrafter, Watched, Pool]:
    """A drafter for a target that verifies trees in texts of up to `reach` tokens."""
    runner = Watched(toy, context, 4)
    runner.allocate(blocks)
    pool = Pool(blocks, 4, runner.move)
    target = replace(runner.info, tree_context=reach)
    return ModelDrafter(runner, pool, None, lambda: least, target), runner, pool


def ranked(seq: View, drafted: list[int], toy: ToyLaw = UNSURE) -> tuple[list[int], list[float]]:
    """Every token, likeliest first, and its chance, from dense vectors."""
    temperature = seq.params.temperature
    tokens = [*seq.tokens, *drafted]
    logits = toy.logits(tokens)
    if temperature == 0:
        scores = logits.astype(np.float64)
    else:
        q = law(logits, seq.shaping, tokens[seq.prompt_len :])
        scores = np.full(toy.vocab_size, -np.inf)
        scores[q.ids] = q.log_p + gumbel(stream_key(seq.seed, len(tokens), Stream.TARGET), q.ids)
    chances = np.exp((scores - scores.max()) * (temperature or 1) / APART)
    order = sorted(range(toy.vocab_size), key=lambda t: (-scores[t], t))
    return order, [float(chances[t] / chances.sum()) for t in order]


def path_tokens(draft: Draft, node: int) -> list[int]:
    return [draft.tokens[i] for i in tree.path_to(draft.parents, node)]


def chain_of(seq: View, count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(ranked(seq, tokens)[0][0])
    return tokens


def main_branch(draft: Draft) -> list[int]:
    """First children all the way down."""
    node, tokens = ROOT, []
    while node in draft.parents or (node == ROOT and len(draft)):
        node = draft.parents.index(node)
        tokens.append(draft.tokens[node])
    return tokens


@pytest.mark.parametrize("rule", ["coupled", "typical"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_children_are_the_targets_likeliest_draws(rule: Rule, temperature: float) -> None:
    drafter, _, _ = made()
    params = SamplingParams(temperature=temperature)
    seqs = [View([3, i], id=i, rule=rule, params=params, seed=i) for i in range(6)]
    branched = 0
    for seq, draft in zip(seqs, drafter.propose(seqs, [12] * 6), strict=True):
        assert len(draft) <= 12
        assert not draft.laws
        assert set(draft.source) == {"model"}
        for parent in {ROOT, *draft.parents}:
            siblings = [n for n in range(len(draft)) if draft.parents[n] == parent]
            order, chances = ranked(seq, path_tokens(draft, parent))
            assert [draft.tokens[n] for n in siblings] == order[: len(siblings)]
            assert [draft.confidence[n] for n in siblings] == pytest.approx(chances[: len(siblings)])
            assert len(siblings) <= WIDTH
            branched += len(siblings) > 1
    assert branched > 6


def test_a_sure_drafter_has_one_branch() -> None:
    drafter, runner, _ = made(replace(LAW, spread=40.0))
    [draft] = drafter.propose([View([1, 2])], [8])
    assert draft.is_chain
    assert len(draft) == 8
    assert runner.passes == [[2]] + [[1]] * 7


@given(
    st.integers(0, 10_000),
    st.sampled_from(TEMPERATURES),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.05, 0.3, 0.7]),
    st.sampled_from([0.4, 1.0, 2.0]),
)
@examples(120)
def test_no_branch_makes_the_chain_shorter(
    seed: int, temperature: float, limit: int, least: float, spread: float
) -> None:
    """After the same number of passes it is as long, and the best nodes fill what is left of the limit."""
    toy = replace(UNSURE, spread=spread)
    seq = View([seed % 18, 5], params=SamplingParams(temperature=temperature), seed=seed)
    wide, wide_runner, _ = made(toy, None, least)
    [draft] = wide.propose([seq], [limit])
    passes = len(wide_runner.passes)
    narrow, narrow_runner, _ = made(toy, 0, least)
    [chain] = narrow.propose([seq], [limit])
    assert chain.is_chain
    reached = min(passes, len(narrow_runner.passes), len(chain))
    assert main_branch(draft)[:reached] == list(chain.tokens)[:reached]
    assert len(draft) <= limit
    assert len(chain) == len(narrow_runner.passes)


@given(st.integers(0, 10_000), st.sampled_from(TEMPERATURES))
@examples(60)
def test_nothing_likelier_is_left_out(seed: int, temperature: float) -> None:
    """Beside the chain: against the tree of a limit that leaves nothing out."""
    seq = View([seed % 18, 5], params=SamplingParams(temperature=temperature), seed=seed)
    drafter, _, _ = made()
    [draft] = drafter.propose([seq], [9])
    [whole] = made(reach=None)[0].propose([seq], [64])
    known = {tuple(path_tokens(whole, n)): s for n, s in enumerate(tree.survivals(whole))}
    chosen = {tuple(path_tokens(draft, n)) for n in range(len(draft))}
    chain = chain_of(seq, 64)
    beside = [known[path] for path in chosen if path in known and list(path) != chain[: len(path)]]
    left = [s for path, s in known.items() if path not in chosen and path[:-1] in chosen and len(path) == 1]
    assert not beside or not left or max(left) <= min(beside) + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_whatever_branch_was_taken_it_catches_up(seed: int) -> None:
    """Any path of a tree, left at any point; drafts are those of a drafter that has never drafted before."""
    dice = random.Random(seed)
    drafter, _, pool = made(blocks=120)
    params = SamplingParams(temperature=dice.choice(TEMPERATURES))
    seqs = [
        View([dice.randrange(18) for _ in range(dice.randrange(1, 9))], id=i, seed=i, params=params) for i in (0, 1)
    ]
    for _ in range(8):
        asked = [seq for seq in seqs if dice.random() < 0.8] or seqs
        limits = [dice.randrange(9) for _ in asked]
        for seq, draft, limit in zip(asked, drafter.propose(asked, limits), limits, strict=True):
            [fresh] = made()[0].propose([seq], [limit])
            assert (draft.tokens, draft.parents, draft.confidence) == (fresh.tokens, fresh.parents, fresh.confidence)
            node = dice.randrange(-1, len(draft))
            seq.tokens += path_tokens(draft, node)  # in place, as an engine does
        pool.check()
        for seq in seqs:
            seq.tokens += [dice.randrange(18) for _ in range(dice.choice([0, 1, 1, 3]))]
    for seq in seqs:
        drafter.end(seq)
    pool.check()
    assert pool.available == pool.num_blocks


def test_what_the_target_took_of_a_branch_is_not_run_again() -> None:
    """As far as the last pass ran it."""
    followed = 0
    for seed in range(30):
        drafter, runner, _ = made(blocks=60)
        seq = View([1, 2, 3], seed=seed, params=SamplingParams(temperature=1.2))
        [draft] = drafter.propose([seq], [8])
        depth = tree.depths(draft.parents)
        node = max((n for n in range(len(draft)) if list(draft.tokens[: n + 1]) != chain_of(seq, n + 1)), default=-1)
        if node < 0:
            continue
        taken = path_tokens(draft, node)
        reading = vars(vars(drafter)["_reader"])["_readings"][seq.id]
        kept = [*reading.slot.tokens[3:]]
        rows = Draft.chain(reading.ahead, "x")
        rows = replace(rows, parents=tuple(reading.parents))
        ran = {(*kept, *path_tokens(rows, n)) for n in range(len(rows))}
        seq.tokens = [*seq.tokens, *taken, 9]
        runner.passes.clear()
        drafter.propose([seq], [1])
        known = max(
            [n for n in range(len(kept) + 1) if taken[:n] == kept[:n]]
            + [n for n in range(len(taken) + 1) if tuple(taken[:n]) in ran]
        )
        assert runner.passes[0] == [depth[node] + 1 - known]
        followed += known > len(kept)
    assert followed > 3


def test_a_pass_runs_only_what_the_growing_nodes_follow() -> None:
    drafter, runner, _ = made()
    drafter.propose([View([1, 2, 3], seed=4, params=SamplingParams(temperature=1.2))], [10])
    assert runner.passes[0] == [3]
    assert runner.passes[1][0] <= WIDTH
    for level, (rows,) in enumerate(runner.passes[1:], 1):
        assert rows <= max(min(ROWS, (WIDTH + 1) * level), level)
    assert any(rows > 1 for (rows,) in runner.passes[1:])


@pytest.mark.parametrize("reach", [0, 9, 12, 13, 20, None])
def test_where_trees_round_differently_it_drafts_a_chain(reach: int | None) -> None:
    """And no pass has rows for branches."""
    drafter, runner, _ = made(reach=reach)
    seq = View([1, 2, 3, 4, 5], seed=4, params=SamplingParams(temperature=1.2))
    [draft] = drafter.propose([seq], [8])
    fits = reach is None or reach >= 13
    assert draft.is_chain != fits
    if not fits:
        assert all(rows == [1] for rows in runner.passes[1:])


def test_a_drafter_that_cannot_run_trees_drafts_chains() -> None:
    runner = Watched(UNSURE, 200, 4)
    target, runner.info = runner.info, replace(runner.info, tree_context=0)
    runner.allocate(20)
    [draft] = ModelDrafter(runner, Pool(20, 4, runner.move), target=target).propose([View([1, 2])], [8])
    assert draft.is_chain


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_drafts_that_are_sampled_are_chains(rule: Rule) -> None:
    drafter, _, _ = made()
    [draft] = drafter.propose([View([1, 2], rule=rule, params=SamplingParams(temperature=1.0))], [8])
    assert draft.is_chain
    assert len(draft.laws) == 8


def test_slight_chances_get_no_node() -> None:
    drafter, _, _ = made(replace(LAW, spread=2.0))
    seqs = [View([1, i], id=i, seed=i) for i in range(8)]
    for draft in drafter.propose(seqs, [16] * 8):
        first = {parent: draft.parents.index(parent) for parent in set(draft.parents)}
        assert all(c >= SLIGHT or n in first.values() for n, c in enumerate(draft.confidence))


def test_without_room_for_the_next_pass_what_there_is_is_drafted() -> None:
    drafter, _, pool = made(blocks=2)
    [draft] = drafter.propose([View([1, 2, 3, 4, 5, 6, 7])], [9])
    assert 1 <= len(draft) <= 9
    pool.check()
    assert draft.tokens[0] == ranked(View([1, 2, 3, 4, 5, 6, 7]), [])[0][0]


def test_an_error_in_a_tree_leaves_nothing_half_done() -> None:
    drafter, runner, pool = made()
    seq = View([1, 2, 3], params=SamplingParams(temperature=1.2))
    whole = runner.forward

    def fails_late(spans, *rest):
        if len(runner.passes) == 2:
            raise ZeroDivisionError
        return whole(spans, *rest)

    runner.forward = fails_late  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        drafter.propose([seq], [8])
    assert pool.available == pool.num_blocks
    runner.forward = whole  # type: ignore[method-assign]
    [again], [fresh] = drafter.propose([seq], [8]), made()[0].propose([seq], [8])
    assert again.tokens == fresh.tokens


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.floats(0, 1), min_size=1, max_size=3)), max_size=10))
@examples(100)
def test_the_bar_and_the_nodes_that_are_always_in(levels: list[tuple[int, list[float]]]) -> None:
    growth = Growth()
    for at, sure in levels:
        growth.add(at % (len(growth.tokens) + 1) - 1, range(len(sure)), sure)
    n = len(growth.tokens)
    for limit in range(1, n + 2):
        bar = sorted(growth.survival, reverse=True)[limit - 1] if limit <= n else -1.0
        assert growth.bar(limit) == bar
    deepest = tree.path_to(growth.parents, n - 1) if n else ()
    for limit in range(len(deepest), n + 1):
        draft = growth.draft(limit, "x", deepest)
        assert len(draft) == limit
        assert all(parent < node for node, parent in enumerate(draft.parents))
        assert (
            not n
            or limit == 0
            or [growth.tokens[i] for i in deepest] in [path_tokens(draft, node) for node in range(limit)]
        )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_of_plain_decoding(temperature: float) -> None:
    for batch, seed in ((1, 0), (3, 1), (8, 2)):
        speculative = rig.make({"model": engine_drafter()}, rig.CHAOS, length=7)
        asked = [
            rig.ask([1, 2, i], temperature=temperature, seed=seed + i, max_tokens=20, top_p=0.95) for i in range(batch)
        ]
        done = speculative.run(asked)
        for request, completion in zip(asked, done, strict=True):
            assert list(completion.token_ids) == speculative.expected(request)[0]
        assert sum(c.speculation.accepted for c in done) > 0


def engine_drafter() -> ModelDrafter:
    runner = rig.CheckedRunner(replace(rig.CHAOS, noise=0.7), 512, 3)
    runner.allocate(200)
    return ModelDrafter(runner, Pool(200, 3, runner.move), target=runner.info)
