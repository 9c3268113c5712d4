"""Every kind of drafter, every two in one tree, and all of them: the same text, chain and tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from paceline.core.law import Law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import Request, SpeculationParams
from paceline.drafters.base import Drafter
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.lookup import Lookup
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.prediction import Prediction
from paceline.drafters.recycle import Recycle
from paceline.drafters.shaped import Head
from paceline.drafters.suffix import Suffix
from paceline.engine.drafting import mixed
from paceline.governor.adaptive import Adaptive
from paceline.governor.costs import Costs
from paceline.runners.kv import Pool
from paceline.runners.toy import WIDTH, ToyRunner
from tests import heads

from .rig import CHAOS, RHYME, VOCAB, Oracle, Rig, Script, ask, make
from .test_equality import prompts, same

TAPS = (0, 1)
"""The states that the toy heads below read."""
TEMPERATURES = (0.0, 0.7, 1.2)
LAWS = {"chaos": CHAOS, "rhyme": RHYME}


POOLS: list[Pool] = []
"""Of the drafters that a test has made."""


def pooled(runner: Any, block_size: int) -> Pool:
    runner.allocate(300)
    POOLS.append(Pool(300, block_size, runner.move))
    return POOLS[-1]


@cache
def eagle_heads() -> Any:
    return heads.make(
        replace(heads.EAGLE3, width=WIDTH, target_width=WIDTH, vocab_size=VOCAB, draft_vocab_size=VOCAB, taps=TAPS)
    )


@cache
def medusa_heads() -> Any:
    return heads.make(
        replace(heads.MEDUSA, width=WIDTH, target_width=WIDTH, vocab_size=VOCAB, draft_vocab_size=VOCAB, taps=(1,))
    )


def draft_model(law: Any, trees: bool) -> ModelDrafter:
    """Often right."""
    runner = ToyRunner(replace(law, noise=0.5), 512, 3)
    target = replace(ToyRunner(law).info, tree_context=None if trees else 0)
    return ModelDrafter(runner, pooled(runner, 3), target=target)


def eagle(trees: bool) -> EagleDrafter:
    made = eagle_heads()
    table = ToyRunner(CHAOS).embed(np.arange(VOCAB))
    runner = heads.NumpyStepHead(made, table, block_size=4)
    return EagleDrafter(runner, pooled(runner, 4), TAPS, _names(), None if trees else 0)


def medusa(trees: bool) -> MedusaDrafter:
    return MedusaDrafter(heads.NumpyParallelHead(medusa_heads()), 1, _names(), None if trees else 0)


def _names() -> Head:
    return Head(VOCAB, np.arange(VOCAB))


KINDS: dict[str, Callable[[Any, bool], Drafter]] = {
    "prediction": lambda law, trees: Prediction(),
    "suffix": lambda law, trees: Suffix(),
    "lookup": lambda law, trees: Lookup(longest=3, shortest=1),
    "recycle": lambda law, trees: Recycle(),
    "eagle": lambda law, trees: eagle(trees),
    "medusa": lambda law, trees: medusa(trees),
    "model": lambda law, trees: draft_model(law, trees),
    "tree": lambda law, trees: Oracle(law, miss=0.3, width=3, name="tree"),
}
CREWS = [*((name,) for name in KINDS), *combinations(KINDS, 2), tuple(KINDS)]


def rig_of(names: tuple[str, ...], law: Any = CHAOS, trees: bool = True, **options: Any) -> Rig:
    made = {name: KINDS[name](law, trees) for name in names}
    return make(made, law, tree_context=None if trees else 0, taps=TAPS, **options)


def batch(size: int, temperature: float, seed: int, rig: Rig, **speculation: Any) -> list[Request]:
    """Requests of which every other one predicts its answer, with a few tokens changed."""
    asked = [ask(p, temperature=temperature, seed=seed + i) for i, p in enumerate(prompts(size, seed))]
    wish = SpeculationParams(**speculation)
    found = []
    for i, request in enumerate(asked):
        answer, _ = rig.expected(request)
        expected = [token if j % 7 else (token + 1) % VOCAB for j, token in enumerate(answer)] if i % 2 == 0 else []
        found.append(replace(request, speculation=wish, prediction=tuple(expected)))
    return found


@pytest.mark.parametrize("trees", [True, False], ids=["tree", "chain"])
@pytest.mark.parametrize("names", CREWS, ids="+".join)
def test_the_same_text_with_every_drafter_and_every_pair(names: tuple[str, ...], trees: bool) -> None:
    """Temperatures, laws and lengths take turns; batches of 1 to 8."""
    turn = CREWS.index(names)
    drafted = 0
    for i, temperature in enumerate(TEMPERATURES):
        law = list(LAWS.values())[(turn + i) % 2]
        rig = rig_of(names, law, trees, length=(3, 6, 9)[(turn + i) % 3])
        size = 1 + (turn + 3 * i) % 8 if i else 8
        same(rig, batch(size, temperature, 31 * turn + i, rig))
        drafted += sum(done.speculation.drafted for done in rig.done.values())
        settled()
    assert drafted > 0, "a test in which nothing is drafted shows nothing"


@pytest.mark.long
@pytest.mark.parametrize("trees", [True, False], ids=["tree", "chain"])
@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("names", CREWS, ids="+".join)
def test_the_whole_grid(names: tuple[str, ...], size: int, trees: bool) -> None:
    for law in LAWS.values():
        for temperature in TEMPERATURES:
            for seed in (0, 1, 2):
                rig = rig_of(names, law, trees, length=6)
                same(rig, batch(size, temperature, seed, rig))


def settled() -> None:
    """Assert that nothing is left of the sequences in any drafter's pool."""
    while POOLS:
        pool = POOLS.pop()
        pool.check()
        assert pool.available == pool.num_blocks


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("trees", [True, False], ids=["tree", "chain"])
def test_under_the_governor(temperature: float, trees: bool) -> None:
    """Whatever it decides, at a cost curve with a stair."""
    costs = Costs()
    for rows in (1, 2, 4, 8, 12, 16, 24):
        costs.learn(rows, 0.01 + 0.0002 * rows + 0.01 * (rows > 8))
    costs.learn_draft("model", 1, 0.002)
    rig = rig_of(tuple(KINDS), RHYME, trees)
    rig.engine.governor = Adaptive(8, costs, tuple(KINDS))
    same(rig, batch(6, temperature, 5, rig))
    assert sum(done.speculation.accepted for done in rig.done.values()) > 0


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_deterministic_drafters_under_rules_that_sample(rule: str) -> None:
    names = tuple(name for name in KINDS if name not in ("model", "eagle", "tree"))
    rig = rig_of(names, RHYME)
    same(rig, batch(6, 0.8, 3, rig, rule=rule))


def test_a_sampled_draft_is_not_mixed() -> None:
    """It is taken because it was asked for, whatever was drawn; mixing by what it says would bias the text."""
    sampled = Draft.chain([1, 2], "model", laws=[Law.point(1), Law.point(2)])
    found = Draft.chain([3, 4, 5, 6], "lookup")
    assert mixed(found, sampled) is sampled
    assert mixed(sampled, found) is sampled
    assert mixed(EMPTY, found) is found
    assert mixed(found, Draft.chain([3, 9], "suffix")).tokens == (3, 4, 5, 6, 9)


def test_credit_goes_to_each_source_and_once_into_the_totals() -> None:
    """Two drafters that know everything: what the second agrees on is counted beside, not twice."""
    drafters = {name: Oracle(CHAOS, name=name) for name in ("first", "second")}
    rig = make(drafters, length=4)
    [done] = rig.run([ask([1, 2, 3], ignore_eos=True)])
    counts = done.speculation
    first, second = counts.by_drafter["first"], counts.by_drafter["second"]
    assert counts.accepted == first.accepted == second.shared > 10
    assert (second.accepted, second.drafted, first.shared) == (0, 0, 0)
    assert set(done.sources) == {"first", None}


def test_what_only_the_second_knows_is_in_the_tree() -> None:
    def wrong(seqs: Any, limits: Any) -> list[Draft]:
        return [Draft.chain([VOCAB - 1] * min(2, n), "wrong", [0.9] * min(2, n)) for n in limits]

    rig = make({"wrong": Script(wrong), "right": Oracle(CHAOS, name="right")}, length=8)
    same(rig, [ask([1, 2, 3], ignore_eos=True)])
    counts = rig.done[0].speculation
    assert counts.by_drafter["right"].accepted > 10
    assert counts.by_drafter["wrong"].verified > 0


def test_a_draft_that_finds_too_few_blocks_is_shortened() -> None:
    """Not dropped: the likeliest nodes still go, and the reason is noted."""
    rig = make({"right": Oracle(CHAOS, name="right")}, length=12, blocks=10, block_size=4)
    requests = [ask([1, 2, 3], seed=s, ignore_eos=True, max_tokens=12) for s in (1, 2, 3)]
    same(rig, requests)
    reports = [done.speculation for done in rig.done.values()]
    assert any(report.reasons.get("memory") for report in reports)
    assert all(report.accepted > 0 for report in reports)
