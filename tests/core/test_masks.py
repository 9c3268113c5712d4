"""A mask takes tokens out of the law and leaves the rest of it as it is, at every row of a draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.law import Law
from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow
from paceline.core.sampling import RowChoice, Shaping, law, masked, shape
from paceline.core.types import SamplingParams
from tests.core.test_exact import EXACT, check_world, distance, emissions

from . import reference
from .reference import Context
from .strategies import World, choice, examples, logits, narrowed, requests, worlds

GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Table:
    """An arbitrary mask for each text, never empty."""

    size: int
    seed: int = 0

    def allowed(self, output: Sequence[int]):
        bits = [choice(self.seed + 7 * t, tuple(output), 2) for t in range(self.size)]
        bits[choice(self.seed, tuple(output), self.size)] = 1
        return np.array(bits, np.bool_)

    def forced(self, output: Sequence[int], most: int) -> list[int]:
        raise AssertionError("laws have no use for it")


@dataclass
class Forgetful:
    """Never goes back: after it was asked for a path it believes that the text went on from there."""

    mask: Table
    said: list[int] = field(default_factory=list)

    def allowed(self, output: Sequence[int]):
        if len(output) > len(self.said):
            self.said = list(output)
        return self.mask.allowed(self.said)


@dataclass(frozen=True)
class Only:
    """Allows some tokens, whatever was said."""

    tokens: tuple[int, ...]
    size: int = 4

    def allowed(self, output: Sequence[int]):
        return np.isin(np.arange(self.size), self.tokens)

    def forced(self, output: Sequence[int], most: int) -> list[int]:
        raise AssertionError("laws have no use for it")


def dense(found: Law, size: int) -> list[float]:
    return found.at(np.arange(size)).tolist()


@examples(200)
@given(logits(), st.integers(0, 50), st.lists(st.integers(0, 3), max_size=4))
def test_the_law_under_a_mask_is_the_law_without_renormalised(row, seed: int, output: list[int]) -> None:
    mask = Table(len(row), seed)
    free, allowed = dense(law(row, Shaping(DRAWN), output), len(row)), mask.allowed(output)
    total = math.fsum(p for p, may in zip(free, allowed, strict=True) if may)
    found = dense(law(row, Shaping(DRAWN, grammar=mask), output), len(row))
    if total > 0:
        expected = [p / total if may else 0.0 for p, may in zip(free, allowed, strict=True)]
    else:  # the model knows none of them
        expected = [may / int(allowed.sum()) for may in allowed.tolist()]
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < EXACT


@examples(300)
@given(st.data())
def test_everything_else_comes_after_the_mask_and_leaves_a_law(data) -> None:
    """As the plain reference has it where the logits never had the tokens that the mask forbids."""
    row = data.draw(logits())
    given_, output = data.draw(requests(len(row)))
    shaping = replace(given_, grammar=Table(len(row), data.draw(st.integers(0, 50))))
    allowed = shaping.grammar.allowed(output)
    if not np.isfinite(row[allowed]).any():
        row = np.where(allowed, np.float32(0), row)
    without = np.where(allowed, row, np.float32(-np.inf))
    expected = reference.dense_law(without.tolist(), given_, output)
    found = dense(law(row, shaping, output), len(row))
    assert found == pytest.approx(expected, abs=1e-9)
    assert not any(p > 0 for p, may in zip(found, allowed, strict=True) if not may)


@examples(200)
@given(logits(max_size=30), st.integers(0, 50), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 99))
def test_a_draw_is_that_of_the_law(row, seed: int, temperature: float, noise: int) -> None:
    """Also where most tokens are unlikely and share one number."""
    mask, params = Table(len(row), seed), SamplingParams(temperature=temperature)
    drawn = RowChoice(HostRow(row), Shaping(params, grammar=mask), (1, 2))
    target = TargetNoise(noise, 5)
    token = drawn.draw(target)
    assert mask.allowed((1, 2))[token]
    assert token == drawn.law().draw(target)
    if temperature:
        cut = masked(row, mask.allowed((1, 2)))
        with narrowed():
            assert drawn.draw(target) == reference.two_level_draw(cut.tolist(), temperature, target, 1.0, 4)


def test_top_k_counts_what_is_allowed() -> None:
    shaping = Shaping(SamplingParams(temperature=1.0, top_k=1), grammar=Only((0, 1)))
    row = np.array([1, 2, 3, 4], np.float32)
    assert law(row, shaping, ()).ids.tolist() == [1]
    assert RowChoice(HostRow(row), shaping, ()).draw(TargetNoise(0, 0)) == 1


@pytest.mark.parametrize(
    "shaping",
    [
        Shaping(SamplingParams(min_tokens=5), ending=(2,)),
        Shaping(GREEDY, bad=((2,),)),
        Shaping(SamplingParams(logit_bias={2: -math.inf})),
        Shaping(SamplingParams(min_tokens=5, logit_bias={2: -math.inf}), ending=(2,), bad=((2,), (1, 2))),
    ],
)
def test_the_grammar_wins(shaping: Shaping) -> None:
    row = np.array([4, 3, 1, 2], np.float32)
    assert RowChoice(HostRow(row), shaping, (1,)).draw(TargetNoise(0, 0)) != 2
    forced = replace(shaping, grammar=Only((2,)))
    assert RowChoice(HostRow(row), forced, (1,)).draw(TargetNoise(0, 0)) == 2
    choosing = replace(shaping, grammar=Only((2, 3)))
    assert RowChoice(HostRow(row), choosing, (1,)).draw(TargetNoise(0, 0)) == 3


def test_a_row_that_knows_none_of_the_allowed_tokens_takes_them_for_equal() -> None:
    row = np.array([1, -np.inf, -np.inf, 2], np.float32)
    assert shape(row, Shaping(GREEDY, grammar=Only((1, 2))), ()).tolist() == [-np.inf, 0, 0, -np.inf]
    assert row.tolist() == [1, -np.inf, -np.inf, 2], "the argument has changed"


@dataclass(frozen=True)
class Masked(World):
    """A target under a mask; its drafter knows nothing of it, so it drafts what is forbidden."""

    mask: object = None

    def p_law(self, context: Context) -> Law:
        with np.errstate(divide="ignore"):
            row = np.log(np.array(super().p(context))).astype(np.float32)
        return law(row, Shaping(DRAWN, grammar=self.mask), context)

    def p(self, context: Context) -> tuple[float, ...]:
        return tuple(dense(self.p_law(context), self.vocabulary))


def under(world: World, mask: object) -> Masked:
    fields = {name: getattr(world, name) for name in World.__dataclass_fields__}
    return Masked(**fields, mask=mask)


@examples(80)
@given(worlds(), st.integers(0, 50))
def test_ratio_and_block_give_the_masked_law(world: World, seed: int) -> None:
    """By enumeration of every draft and every outcome, to 1e-12."""
    check_world(under(world, Table(world.vocabulary, seed)))


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_negative_control_a_mask_that_does_not_go_back(rule: str) -> None:
    world = World(3, 2, ((0.2, 0.3, 0.5), (0.6, 0.3, 0.1)), ((0.4, 0.4, 0.2),), 3)
    exact, wrong = under(world, Table(3, 1)), under(world, Forgetful(Table(3, 1)))
    plain = reference.plain_law(exact.p, 3, 3)
    assert distance(reference.completed(emissions(exact, rule), exact.p, 3, 3), plain) < EXACT
    assert distance(reference.completed(emissions(wrong, rule), exact.p, 3, 3), plain) > 1e-2
