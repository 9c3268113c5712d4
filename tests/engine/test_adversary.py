"""Drafters that propose anything, or raise anywhere, never change a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.law import Law
from paceline.core.tree import Draft
from paceline.core.types import ROOT, SpeculationParams
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.lookup import Lookup
from tests.core.strategies import examples

from .rig import CHAOS, EOS, VOCAB, Oracle, Quiet, Script, ask, crew, make
from .test_equality import prompts, same

ODD_TOKENS = [-1, -7, VOCAB, VOCAB + 1, 2**40, 2**70, 1.0, math.nan, "3", None, True, np.int64(4), np.float32(4)]
ODD_CONFIDENCES = [math.nan, math.inf, -0.1, 1.1, None, "high", np.float32(0.5), 1]
ODD_PARENTS = [-2, 0, 3, 99, 0.0, None, "root", np.int32(0), True]
ODD_SOURCES = ["", None, 3, ["list"], {}]
ODD_LAWS = [Law.point(0), Law.of(np.full(VOCAB, 1 / VOCAB)), "law", 0.3]


@st.composite
def anything(draw) -> Any:
    """Something in the place of a draft: a good tree, one with a few flaws, or no draft at all."""
    size = draw(st.integers(0, 24))
    tokens = [draw(st.integers(0, VOCAB - 1)) for _ in range(size)]
    parents = [draw(st.integers(max(ROOT, node - 3), node - 1)) for node in range(size)]
    columns: dict[str, list[Any]] = {
        "tokens": tokens,
        "parents": parents if draw(st.booleans()) else list(range(-1, size - 1)),
        "confidence": [0.5] * size,
        "source": ["odd"] * size,
        "laws": [None] * size if draw(st.booleans()) else [],
    }
    odd = {
        "tokens": [EOS, *ODD_TOKENS],
        "parents": ODD_PARENTS,
        "confidence": ODD_CONFIDENCES,
        "source": ODD_SOURCES,
        "laws": ODD_LAWS,
    }
    for _ in range(draw(st.integers(0, 4))):
        column = draw(st.sampled_from(sorted(columns)))
        if columns[column]:
            place = draw(st.integers(0, len(columns[column]) - 1))
            columns[column][place] = draw(st.sampled_from(odd[column]))
    if draw(st.integers(0, 5)) == 0:
        column = draw(st.sampled_from(sorted(columns)))
        columns[column] = columns[column][1:] if draw(st.booleans()) else [*columns[column], 0]
    whole = draw(st.sampled_from([tuple, tuple, tuple, list]))
    draft = Draft(**{name: whole(column) for name, column in columns.items()})
    return draft if draw(st.integers(0, 5)) else draw(st.sampled_from([None, 7, "draft", (), SimpleNamespace()]))


@st.composite
def moves(draw) -> Any:
    """What one call of `propose` does."""
    kind = draw(st.sampled_from(["drafts", "drafts", "drafts", "truth", "raise", "count", "nothing"]))
    drafts = [draw(anything()) for _ in range(3)]
    if kind == "truth":
        return lambda seqs, limits: Oracle(CHAOS, miss=0.2).propose(seqs, limits)
    if kind == "raise":
        return lambda seqs, limits: 1 // 0
    if kind == "count":
        return lambda seqs, limits: (drafts * len(seqs))[: len(seqs) + 1]
    if kind == "nothing":
        return lambda seqs, limits: None
    return lambda seqs, limits: [drafts[i % 3] for i in range(len(seqs))]


@st.composite
def adversaries(draw) -> Any:
    script = Script(*draw(st.lists(moves(), min_size=1, max_size=4)))
    for verb in ("begin", "observe", "end"):
        if draw(st.integers(0, 7)) == 0:
            setattr(script, verb, _raise)
    return script


def _raise(*given: Any) -> None:
    raise RuntimeError("a drafter's own mistake")


@given(adversaries(), st.integers(1, 9), st.sampled_from([0.0, 1.0]), st.booleans())
@examples(100)
def test_no_drafter_changes_a_text(adversary: Any, length: int, temperature: float, small: bool) -> None:
    rig = make({"odd": adversary}, length=length, blocks=24 if small else 100)
    requests = [ask(p, temperature=temperature, seed=i, logprobs=0) for i, p in enumerate(prompts(4, seed=length))]
    same(rig, requests)
    plain = make().run(requests)
    assert [rig.done[i].logprobs for i in rig.requests] == [done.logprobs for done in plain]


@pytest.mark.long
@pytest.mark.timeout(1200)
@given(adversaries(), st.integers(1, 17), st.sampled_from([0.0, 0.3, 1.5]), st.booleans())
@examples(1500)
def test_no_drafter_ever_changes_a_text(adversary: Any, length: int, temperature: float, small: bool) -> None:
    test_no_drafter_changes_a_text.hypothesis.inner_test(adversary, length, temperature, small)


@given(st.lists(anything(), min_size=1, max_size=3), st.sampled_from(["ratio", "block", "typical"]))
@examples(100)
def test_no_draft_ends_a_request_under_another_rule(drafts: list[Any], rule: str) -> None:
    """The text is undefined where a drafter misreports its laws; that it comes to its end is not."""
    rig = make({"odd": Script(lambda seqs, limits: [drafts[i % len(drafts)] for i in range(len(seqs))])})
    wish = SpeculationParams(rule=rule)
    for done in rig.run(ask(p, wish, temperature=1.0, seed=i) for i, p in enumerate(prompts(3, seed=8))):
        assert done.finish_reason in ("stop", "length")


@pytest.mark.parametrize("verb", ["begin", "propose", "observe"])
def test_a_drafter_that_raises_is_off_for_that_sequence_alone(verb: str) -> None:
    class Picky(Oracle):
        """Cannot do with odd first tokens."""

    def picky(real: Any) -> Any:
        def call(seqs: Any, *rest: Any) -> Any:
            for seq in seqs if isinstance(seqs, list) else [seqs]:
                if seq.tokens[0] % 2:
                    raise KeyError("odd")
            return real(seqs, *rest)

        return call

    drafter = Picky(CHAOS)
    setattr(drafter, verb, picky(getattr(drafter, verb)))
    rig = make({"oracle": drafter, "lookup": Lookup()})
    requests = [ask([i, 5, 6, 7], temperature=1.0, seed=i, ignore_eos=True) for i in range(6)]
    same(rig, requests)
    for i, done in rig.done.items():
        counts = done.speculation
        assert counts.reasons.get("drafter_failed", 0) == i % 2
        found = counts.by_drafter["oracle"].accepted if "oracle" in counts.by_drafter else 0
        assert found >= 10 if i % 2 == 0 else found <= 8
        if i % 2 and verb != "observe":
            assert found == 0


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda seqs, limits: None, id="none"),
        pytest.param(lambda seqs, limits: [], id="too few"),
        pytest.param(lambda seqs, limits: [Draft()] * (len(seqs) + 1), id="too many"),
        pytest.param(lambda seqs, limits: (Draft() for _ in seqs), id="a generator"),
        pytest.param(lambda seqs, limits: 1 // 0, id="an error"),
    ],
)
def test_a_failed_proposal_is_counted_once_and_ends_the_asking(move: Any) -> None:
    script = Script(move)
    rig = make({"odd": script})
    same(rig, [ask([1, 2]), ask([3, 4])])
    assert [done.speculation.reasons["drafter_failed"] for done in rig.done.values()] == [1, 1]
    assert script.calls == 3, "once for both, then once for each"


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(None, id="none"),
        pytest.param("draft", id="text"),
        pytest.param(Draft((1, 2), (-1,), (1.0, 1.0), ("a", "a")), id="lengths that differ"),
        pytest.param(Draft((VOCAB,), (-1,), (1.0,), ("a",)), id="no such token"),
        pytest.param(Draft((-1,), (-1,), (1.0,), ("a",)), id="a negative token"),
        pytest.param(Draft((1.5,), (-1,), (1.0,), ("a",)), id="half a token"),  # type: ignore[arg-type]
        pytest.param(Draft((1, 1), (-1, -1), (1.0, 1.0), ("a", "a")), id="twins"),
        pytest.param(Draft((1, 2), (1, -1), (1.0, 1.0), ("a", "a")), id="not causal"),
        pytest.param(Draft((1,), (-2,), (1.0,), ("a",)), id="no such parent"),
        pytest.param(Draft((1,), (-1,), (math.nan,), ("a",)), id="no number"),
        pytest.param(Draft((1,), (-1,), (2.0,), ("a",)), id="no probability"),
        pytest.param(Draft((1,), (-1,), (1.0,), (["a"],)), id="no name"),  # type: ignore[arg-type]
        pytest.param(Draft((1,), (-1,), (1.0,), ("a",), ("q",)), id="no law"),  # type: ignore[arg-type]
        pytest.param(Draft((1,), (-1,), (1.0,), ("a",), (Law.point(2),)), id="an impossible draw"),
        pytest.param(Draft.chain([1] * 9, "a"), id="too long"),
    ],
)
def test_what_cannot_be_verified_is_dropped_and_counted(draft: Any) -> None:
    script = Script(lambda seqs, limits: [draft] * len(seqs))
    rig = make({"odd": script}, length=8)
    same(rig, [ask([1, 2], ignore_eos=True)])
    reasons = rig.done[0].speculation.reasons
    assert reasons["draft_invalid"] == script.calls > 10
    assert "drafter_failed" not in reasons


def test_a_flaw_costs_only_the_nodes_below_it() -> None:
    class Flawed(Oracle):
        def _draft(self, seq: SequenceView, limit: int) -> Draft:
            good = super()._draft(seq, limit - 1)
            n = len(good)
            more = Draft.chain([*good.tokens, VOCAB], self.name)
            return Draft(more.tokens, more.parents, more.confidence, ("oracle",) * (n + 1))

    rig = make({"oracle": Flawed(CHAOS)}, length=5)
    same(rig, [ask([1, 2], ignore_eos=True)])
    counts = rig.done[0].speculation
    assert counts.reasons["draft_invalid"] > 0
    assert counts.accepted == counts.drafted > 10


@dataclass
class Meddler(Quiet):
    """Keeps what it is shown, and would like to change it."""

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [Draft.chain([np.int64(t) for t in seq.tokens[-3:]], "meddler") for seq in seqs]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        assert seen.hidden == {}


def test_numbers_of_other_kinds_do_not_reach_the_output() -> None:
    """`Rig` asserts that every token id is an int."""
    rig = make({"meddler": Meddler()}, crew and make().law)
    same(rig, [ask([1, 2, 3], temperature=1.0, seed=s, ignore_eos=True) for s in range(4)])
    assert sum(done.speculation.accepted for done in rig.done.values()) > 0
