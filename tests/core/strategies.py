"""What hypothesis may choose: laws, worlds of two models, drafts, and sampling parameters."""

from __future__ import annotations

import math
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from paceline.core import rows
from paceline.core.law import Law
from paceline.core.sampling import Shaping
from paceline.core.tree import Draft
from paceline.core.types import SamplingParams

from .reference import Context


@contextmanager
def narrowed(reach: float = 1.0, most: int = 4, few: int = 0, part: int = 3):
    """Small rows that have unlikely tokens, too, and are worked on in several parts."""
    with mock.patch.multiple(rows, REACH=reach, MOST=most, FEW=few, _PART=part):
        yield


def examples(number: int) -> settings:
    """The same examples every run, and no clock: a slow machine must not fail a test."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def vectors(draw, size: int):
    """Laws with zeros, ties, single survivors and tiny shares."""
    weights = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 5, 1e-3, 1e-9]), min_size=size, max_size=size))
    if not any(weights):
        weights[draw(st.integers(0, size - 1))] = 1
    return tuple(np.array(weights) / math.fsum(weights))


def choice(seed: int, context: Context, options: int) -> int:
    """A fixed, arbitrary choice for each context."""
    return zlib.crc32(repr((seed, context)).encode()) % options


@dataclass(frozen=True)
class World:
    """A target p and a drafter q whose laws hang on the whole context."""

    vocabulary: int
    depth: int
    target: tuple[tuple[float, ...], ...]
    drafter: tuple[tuple[float, ...], ...]
    seed: int
    silent: bool = False
    """Whether draws from a one-hot q come without a law, as deterministic drafters give them."""

    def p(self, context: Context) -> tuple[float, ...]:
        return self.target[choice(self.seed, context, len(self.target))]

    def q(self, context: Context) -> tuple[float, ...]:
        return self.drafter[choice(self.seed + 1, context, len(self.drafter))]

    def p_law(self, context: Context) -> Law:
        return Law.of(np.array(self.p(context)))

    def q_law(self, context: Context) -> Law | None:
        law = Law.of(np.array(self.q(context)))
        return None if self.silent and len(law.ids) == 1 else law

    def draft(self, tokens: Context) -> Draft:
        return Draft.chain(tokens, "drafter", laws=[self.q_law(tokens[:i]) for i in range(len(tokens))])


@st.composite
def worlds(draw, max_vocabulary: int = 4, max_depth: int = 3, one_hot: bool = False):
    size, depth = draw(st.integers(1, max_vocabulary)), draw(st.integers(1, max_depth))
    if size == 4 and depth == 3:
        depth = draw(st.sampled_from([2, 2, 3]))  # the largest worlds cost the most and show the least
    target = tuple(draw(st.lists(vectors(size), min_size=1, max_size=5)))
    point = st.integers(0, size - 1).map(lambda x: tuple(float(t == x) for t in range(size)))
    laws = point if one_hot else st.one_of(vectors(size), vectors(size), point, st.sampled_from(target))
    drafter = tuple(draw(st.lists(laws, min_size=1, max_size=5)))
    return World(size, depth, target, drafter, draw(st.integers(0, 1000)), draw(st.booleans()))


@st.composite
def drafts(draw, max_nodes: int = 10, vocabulary: int = 3):
    """Trees of any shape; few tokens, so twins are common."""
    size = draw(st.integers(0, max_nodes))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.integers(0, vocabulary - 1)) for _ in range(size))
    confidence = tuple(draw(st.integers(0, 8)) / 8 for _ in range(size))
    source = tuple(draw(st.sampled_from(["lookup", "suffix", "model"])) for _ in range(size))
    return Draft(tokens, parents, confidence, source)


def _rounded(low: float, high: float, digits: int = 3):
    return st.floats(low, high).map(lambda x: round(x, digits))


@st.composite
def logits(draw, max_size: int = 12):
    """Values on a coarse grid, so that ties are common; some -inf, never all."""
    size = draw(st.integers(1, max_size))
    coarse = st.integers(-40, 40).map(lambda n: n / 8)
    some = draw(st.lists(st.one_of(coarse, coarse, st.just(-math.inf)), min_size=size, max_size=size))
    if max(some) == -math.inf:
        some[draw(st.integers(0, size - 1))] = 0.0
    return np.array(some, np.float32)


@st.composite
def requests(draw, size: int):
    """A request's shaping and its output so far, for a vocabulary of `size`."""
    token = st.integers(0, size - 1)
    sometimes = lambda default, strategy: draw(st.one_of(st.just(default), strategy))  # noqa: E731
    params = SamplingParams(
        temperature=sometimes(1.0, _rounded(0.1, 3) | st.just(0.0)),
        top_p=sometimes(1.0, _rounded(0.01, 1)),
        top_k=sometimes(0, st.integers(1, size + 2)),
        min_p=sometimes(0.0, _rounded(0, 1)),
        min_tokens=sometimes(0, st.integers(0, 4)),
        repetition_penalty=sometimes(1.0, _rounded(0.5, 2)),
        presence_penalty=sometimes(0.0, _rounded(-2, 2)),
        frequency_penalty=sometimes(0.0, _rounded(-2, 2)),
        logit_bias=sometimes({}, st.dictionaries(token, _rounded(-9, 9) | st.just(-math.inf), max_size=4)),
    )
    texts = st.lists(token, max_size=5).map(tuple)
    bad = sometimes((), st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple))
    ending = draw(st.sets(token, max_size=2))
    return Shaping(params, draw(texts), ending, bad), draw(texts)
