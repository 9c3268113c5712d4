"""The governor's decisions one by one: limits and reasons, drafters, trimming, modes."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from paceline.core.law import Law
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import SpeculationParams
from paceline.governor.adaptive import ALWAYS, CROWD, LISTEN, QUIET, REFRESH, Adaptive
from paceline.governor.base import Limit, Outcome, Reason, StepReport
from paceline.governor.costs import Costs
from paceline.governor.fixed import asked
from paceline.governor.profile import PROFILED_ROWS

AUTO = SpeculationParams()
ALWAYS_ON = SpeculationParams(mode="always")
MOST = 8


@dataclass
class Seq:
    id: int = 0
    speculation: SpeculationParams = AUTO
    room: int = 500
    meets_context: bool = False
    num_tokens: int = 50
    tree_room: int = 0


def curve(slope: float = 0.05, draft: float | None = None) -> Costs:
    costs = Costs()
    for rows in sorted(PROFILED_ROWS):
        costs.learn(rows, 1 + slope * (rows - 1))
    if draft is not None:
        costs.learn_draft("model", 1, draft)
    return costs


def governor(slope: float = 0.05, draft: float | None = None, most: int = MOST) -> Adaptive:
    return Adaptive(most, curve(slope, draft))


def chain(n: int, confidence: float = 0.9, source: str = "lookup") -> Draft:
    return Draft.chain([1] * n, source, [confidence] * n)


def sampled(n: int) -> Draft:
    law = Law.of(np.array([0.5, 0.5]))
    return Draft.chain([1] * n, "model", [0.01] * n, [law] * n)


def observe(adaptive: Adaptive, seqs, drafts, verified, tokens, draft_s=0.0, forward_s=1.0, prefill=0) -> None:
    outcomes = [Outcome(s, d, v, (1,) * t) for s, d, v, t in zip(seqs, drafts, verified, tokens, strict=True)]
    by = {"model": draft_s} if draft_s else {}
    adaptive.observe(StepReport(outcomes, prefill, draft_s, forward_s, 0.0, by))


def chance(adaptive: Adaptive, source: str = "lookup") -> float:
    """Of a first guess."""
    return adaptive.acceptance.survivals(0, chain(1, source=source))[0]


def overdraw(adaptive: Adaptive) -> None:
    while not adaptive.account.overdrawn:
        adaptive.account.book(-1.0, 2.0)


@pytest.mark.parametrize(
    ("seq", "limit"),
    [
        (Seq(), Limit(MOST)),
        (Seq(speculation=SpeculationParams(mode="off")), Limit(0, Reason.REQUESTED_OFF)),
        (Seq(speculation=SpeculationParams(max_draft=0)), Limit(0, Reason.REQUESTED_OFF)),
        (Seq(speculation=SpeculationParams(max_draft=3)), Limit(3)),
        (Seq(speculation=SpeculationParams(max_draft=64)), Limit(MOST)),
        (Seq(room=2), Limit(2)),
        (Seq(room=2, meets_context=True), Limit(2, Reason.CONTEXT_LIMIT)),
        (Seq(speculation=ALWAYS_ON), Limit(ALWAYS)),
        (Seq(speculation=SpeculationParams(mode="always", max_draft=6)), Limit(6)),
        (Seq(speculation=SpeculationParams(mode="always", max_draft=64)), Limit(MOST)),
    ],
)
def test_limits(seq: Seq, limit: Limit) -> None:
    (given,) = governor().plan([seq])
    assert (given.nodes, given.reason, given.by_drafter) == (limit.nodes, limit.reason, {})


def test_always_is_never_stopped() -> None:
    adaptive = governor(slope=3.0, draft=5.0)
    overdraw(adaptive)
    seqs = [Seq(0, ALWAYS_ON), Seq(1)]
    limits = adaptive.plan(seqs)
    assert (limits[0].nodes, limits[0].by_drafter) == (ALWAYS, {})
    assert limits[1].reason == Reason.ACCOUNT_OVERDRAWN
    drafts = [chain(4, 0.0), chain(4)]
    assert [len(d) for d in adaptive.trim(seqs, drafts)] == [4, 0]
    balance = adaptive.account.balance
    observe(adaptive, seqs, drafts, [drafts[0], EMPTY], [1, 1], forward_s=9.0)
    assert adaptive.account.balance == balance, "a request that measures is not charged to those that do not"


def test_overdrawn_is_plain_but_free_drafters_are_still_learnt_about() -> None:
    adaptive, seq = governor(draft=0.1), Seq()
    overdraw(adaptive)
    (limit,) = adaptive.plan([seq])
    assert (limit.reason, limit.nodes, limit.by_drafter["model"]) == (Reason.ACCOUNT_OVERDRAWN, MOST, 0)
    assert limit.by_drafter.get("lookup", MOST) == MOST
    assert adaptive.trim([seq], [chain(4)]) == [EMPTY]
    before = chance(adaptive)
    for _ in range(20):
        adaptive.plan([seq])
        observe(adaptive, [seq], [chain(4)], adaptive.trim([seq], [chain(4)]), [1])
        seq.num_tokens += 1
    assert chance(adaptive) > before


def test_the_first_step_is_plain_where_nothing_was_measured() -> None:
    adaptive, seq = Adaptive(MOST, Costs()), Seq()
    assert adaptive.least_survival() == 0
    assert adaptive.plan([seq]) == [Limit(0, Reason.PROBING)]
    observe(adaptive, [seq], [EMPTY], [EMPTY], [1], prefill=30)
    assert adaptive.plan([seq]) == [Limit(0, Reason.PROBING)], "a prompt's pass says nothing about decoding"
    observe(adaptive, [seq], [EMPTY], [EMPTY], [1])
    (limit,) = adaptive.plan([seq])
    assert (limit.nodes, limit.reason) == (MOST, None)
    assert adaptive.plan([]) == []


@pytest.mark.parametrize("most", [0, 1])
def test_the_least_that_an_engine_may_allow(most: int) -> None:
    adaptive = governor(draft=0.1, most=most)
    assert adaptive.plan([Seq()])[0].nodes == most
    assert 0 <= adaptive.least_survival() <= 1


def test_drafters_that_a_request_does_not_name_are_not_limited_for_it() -> None:
    adaptive = governor(draft=0.1)
    (limit,) = adaptive.plan([Seq(speculation=SpeculationParams(drafters=("lookup",)))])
    assert (limit.nodes, limit.reason, limit.by_drafter) == (MOST, None, {})


@pytest.mark.parametrize(("draft", "reason"), [(2.0, Reason.DRAFT_TOO_SLOW), (0.85, Reason.LOW_ACCEPTANCE)])
def test_why_a_drafter_is_off(draft: float, reason: Reason) -> None:
    (limit,) = governor(draft=draft).plan([Seq()])
    assert (limit.by_drafter, limit.reason) == ({"model": 0}, reason)


def test_off_when_the_batch_is_compute_bound() -> None:
    adaptive = governor(slope=1.0, draft=0.1)
    limits = adaptive.plan([Seq(i) for i in range(8)])
    assert [(limit.nodes, limit.reason) for limit in limits] == [(0, Reason.BATCH_COMPUTE_BOUND)] * 8


@pytest.mark.parametrize("seed", range(30))
def test_a_reason_is_given_exactly_when_something_was_lowered(seed: int) -> None:
    rng = random.Random(seed)
    adaptive = governor(rng.choice((0.0, 0.05, 0.3, 1.0)), rng.choice((None, 0.01, 0.1, 0.5, 2.0)))
    for _ in range(80):
        speculation = SpeculationParams(rng.choice(("auto", "auto", "off", "always")), rng.choice((None, 0, 3)))
        seqs = [Seq(i, speculation, rng.choice((1, 5, 500)), rng.random() < 0.3) for i in range(rng.randint(1, 4))]
        limits = adaptive.plan(seqs, rng.choice((0, 0, 50)))
        for seq, limit in zip(seqs, limits, strict=True):
            own = asked(seq, ALWAYS if seq.speculation == ALWAYS_ON else MOST)
            shut = adaptive.trim([seq], [chain(1, 1.0)] if limit.nodes else [EMPTY]) == [EMPTY]
            lowered = limit.nodes < own.nodes or any(n < limit.nodes for n in limit.by_drafter.values())
            if limit.reason is None:
                assert not lowered
            else:
                tried = limit.reason == Reason.PROBING and any(limit.by_drafter.values())
                assert lowered or own.reason == limit.reason or shut or tried
        drafts = [chain(min(2, limit.nodes), 0.5) for limit in limits]
        verified = adaptive.trim(seqs, drafts)
        right = [rng.randint(1, 1 + len(v)) for v in verified]
        observe(adaptive, seqs, drafts, verified, right, forward_s=1 + 0.3 * sum(map(len, verified)))


def test_best_first_over_the_batch() -> None:
    """Twelve rows are flat and the next costs everything: the twelve best nodes of all are kept, each with its
    parents."""
    costs = Costs()
    for rows in range(1, 41):
        costs.learn(rows, 1.0 if rows <= 12 else 50.0)
    adaptive, seqs = Adaptive(MOST, costs), [Seq(i) for i in range(4)]
    adaptive.plan(seqs)
    kept = adaptive.trim(seqs, [chain(6, sure) for sure in (0.95, 0.9, 0.5, 0.2)])
    assert sum(map(len, kept)) == 8
    assert [len(draft) for draft in kept] == sorted((len(draft) for draft in kept), reverse=True)
    assert len(kept[0]) > len(kept[2])
    assert not kept[3]


def test_a_cliff_is_crossed_only_for_what_pays_for_it() -> None:
    costs = Costs()
    for rows in range(1, 33):
        costs.learn(rows, 1.0 if rows == 1 else 5.0)
    adaptive, seq = Adaptive(16, costs), Seq()
    adaptive.plan([seq])
    assert adaptive.trim([seq], [chain(3, 0.98)]) == [EMPTY]
    assert len(adaptive.trim([seq], [chain(16, 0.98)])[0]) == 16


def test_prompt_rows_of_the_pass_are_costed() -> None:
    """The rows of a prompt fill the flat part of the curve; drafts would then be dear."""
    costs = Costs()
    for rows in range(1, 65):
        costs.learn(rows, 1.0 + max(0, rows - 16))
    adaptive, seq = Adaptive(MOST, costs), Seq()
    adaptive.plan([seq])
    assert len(adaptive.trim([seq], [chain(6)])[0]) == 6
    (limit,) = adaptive.plan([seq], prefill_rows=40)
    assert (limit.nodes, limit.reason) == (0, Reason.BATCH_COMPUTE_BOUND)
    assert adaptive.trim([seq], [chain(6)]) == [EMPTY]


def test_a_sampled_draft_is_never_trimmed_by_what_was_drawn() -> None:
    adaptive = governor(slope=0.6)
    seqs = [Seq(0, SpeculationParams(rule="ratio")), Seq(1)]
    adaptive.plan(seqs)
    kept = adaptive.trim(seqs, [sampled(5), chain(5, 0.05)])
    assert [len(draft) for draft in kept] == [5, 0]


def test_a_drafter_that_samples_is_limited_beforehand_however_cheap() -> None:
    adaptive, seq = governor(slope=0.6), Seq(speculation=SpeculationParams(rule="block"))
    assert adaptive.plan([seq])[0].by_drafter == {}
    adaptive.trim([seq], [sampled(5)])
    (limit,) = adaptive.plan([seq])
    assert limit.by_drafter["model"] < 3
    assert adaptive.plan([Seq(1)])[0].by_drafter == {}, "under the coupled rule it can be trimmed"


def test_value_is_in_tokens_beyond_what_the_rows_cost() -> None:
    adaptive, seq = governor(slope=0.1), Seq()
    adaptive.plan([seq])
    assert adaptive.value(seq, chain(1, 0.8)) == pytest.approx(0.7)
    assert adaptive.value(seq, chain(1, 0.05)) == 0
    assert adaptive.value(seq, chain(4, 0.9)) > adaptive.value(seq, chain(2, 0.9))
    assert adaptive.value(seq, sampled(4)) < 0, "it cannot be trimmed to nothing"


def test_a_costly_drafter_is_left_alone_where_another_has_enough() -> None:
    adaptive, seq = governor(draft=0.1), Seq()
    (limit,) = adaptive.plan([seq])
    assert 0 < limit.enough < adaptive.value(seq, chain(8, 0.98))
    assert limit.enough > adaptive.value(seq, chain(2, 0.2))


def test_a_chain_goes_on_while_its_next_token_pays() -> None:
    cheap, dear = governor(draft=0.02), governor(draft=0.3)
    for adaptive in (cheap, dear):
        adaptive.plan([Seq()])
    assert 0 < cheap.least_survival() < 0.1 < 0.3 < dear.least_survival() < 0.5


def play(adaptive: Adaptive, seq: Seq, steps: int, right: bool) -> list[Limit]:
    """Run steps of a model drafter that takes 0.1 a token and is always right, or never."""
    limits = []
    for _ in range(steps):
        (limit,) = adaptive.plan([seq])
        limits.append(limit)
        length = limit.by_drafter.get("model", 0)
        draft = Draft.chain([int(right)] * length, "model", [0.9] * length)
        if length:
            adaptive.value(seq, draft)
        (kept,) = adaptive.trim([seq], [draft])
        tokens = 1 + len(kept) if right else 1
        forward = 1 + 0.05 * len(kept)
        observe(adaptive, [seq], [draft], [kept], [tokens], draft_s=0.1 * length, forward_s=forward)
        seq.num_tokens += tokens
    return limits


def test_a_drafter_that_is_never_right_is_tried_seldom_and_briefly() -> None:
    adaptive = governor(draft=0.1)
    play(adaptive, Seq(), 100, right=False)
    limits = play(adaptive, Seq(), 2000, right=False)
    lengths = [limit.by_drafter.get("model", 0) for limit in limits]
    tried = [n for n in lengths if n]
    assert 2 <= len(tried) <= 40
    assert max(tried) <= 2
    assert 0.1 * sum(tried) <= 0.01 * 2000
    assert all(limit.reason for limit in limits)


def test_a_drafter_that_is_right_again_comes_back() -> None:
    adaptive, seq = governor(draft=0.1), Seq()
    play(adaptive, seq, 400, right=False)
    back = play(adaptive, seq, 400, right=True)
    lengths = [limit.by_drafter["model"] for limit in back]
    assert max(lengths[-20:]) == MOST
    assert lengths.index(MOST) < 250


def test_the_plain_cost_is_kept_fresh_and_seldom_where_much_is_won() -> None:
    won, even = governor(), governor()
    for adaptive, tokens, forward_s in ((won, 5, 1.2), (even, 1, 1.0)):
        refreshed = 0
        for _ in range(10 * REFRESH):
            (limit,) = adaptive.plan([Seq()])
            plain = limit.reason == Reason.PROBING
            refreshed += plain
            draft = EMPTY if plain else chain(4, 0.99)
            observe(
                adaptive, [Seq()], [draft], [draft], [1 if plain else tokens], forward_s=1.0 if plain else forward_s
            )
        assert refreshed == (0 if adaptive is won else pytest.approx(9, abs=1))


def test_a_plain_cost_from_a_bad_moment_is_soon_put_right() -> None:
    """Steps with drafts say nothing of the plain one, so a wrong one could make a loss look like a gain for long."""
    costs = Costs()
    for rows in sorted(PROFILED_ROWS):  # another program has run meanwhile
        costs.learn(rows, 1.6 * (1 + 0.05 * (rows - 1)))
    adaptive = Adaptive(MOST, costs)
    plain_steps = 0
    for _ in range(160):
        (limit,) = adaptive.plan([Seq()])
        plain = limit.reason == Reason.PROBING
        plain_steps += plain
        draft = EMPTY if plain else chain(4, 0.99)
        observe(adaptive, [Seq()], [draft], [draft], [1 if plain else 2], forward_s=1.0 if plain else 1.92)
    assert adaptive.costs.plain_seconds(1) == pytest.approx(1.0, rel=0.1)
    assert plain_steps < 12


def entries(thing: Any, seen: set[int]) -> int:
    """Return how many entries all containers have that a governor holds, directly or not."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        return len(thing) + sum(entries(value, seen) for value in thing.values())
    if isinstance(thing, (list, set, tuple, deque)):
        return len(thing) + sum(entries(value, seen) for value in thing)
    names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
    return sum(entries(getattr(thing, name), seen) for name in names)


def test_what_is_known_of_requests_is_bounded() -> None:
    adaptive = governor(draft=0.1)
    counts = []
    for i in range(4500):
        seqs = [Seq(2 * i), Seq(2 * i + 1)]
        adaptive.plan(seqs)
        drafts = [chain(1, source="model") for _ in seqs]
        verified = adaptive.trim(seqs, drafts)
        observe(adaptive, seqs, drafts, verified, [1, 1], draft_s=0.1)
        if i in (0, 2999, 4499):
            counts.append(entries(adaptive, set()))
    assert counts[0] < 1000 < counts[1]
    assert counts[2] <= counts[1] + 100


def calls(work: Callable[[], object]) -> int:
    """Return how many Python functions some work calls."""
    count = 0

    def profiler(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profiler)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("batch", "bound"), [(1, 1500), (16, 20_000)])
def test_the_work_of_a_step_is_small(batch: int, bound: int) -> None:
    """Counted in calls of functions, for 16 drafted tokens a sequence; never in seconds."""
    adaptive = governor(draft=0.1, most=16)
    seqs = [Seq(i) for i in range(batch)]

    def step() -> None:
        adaptive.plan(seqs)
        drafts = [chain(16) for _ in seqs]
        for seq, draft in zip(seqs, drafts, strict=True):
            adaptive.value(seq, draft)
        verified = adaptive.trim(seqs, drafts)
        observe(adaptive, seqs, drafts, verified, [1 + len(v) for v in verified])

    step()
    count = calls(step)
    assert 10 < count <= bound


def test_a_crowd_of_which_nothing_comes_is_asked_now_and_then() -> None:
    """Asking takes time that plain decoding does not spend."""
    adaptive, many = governor(), [Seq(id=i) for i in range(CROWD)]
    nothing, one = [EMPTY] * CROWD, [chain(1), *[EMPTY] * (CROWD - 1)]

    def heard(seqs: list[Seq]) -> bool:
        limits = adaptive.plan(seqs)
        assert len({bool(limit.nodes) for limit in limits}) == 1
        assert all(limit.nodes or limit.reason for limit in limits)
        n = len(seqs)
        observe(adaptive, seqs, nothing[:n], nothing[:n], [1] * n)
        return bool(limits[0].nodes)

    steps = [heard(many) for _ in range(QUIET + 40)]
    assert all(steps[:QUIET]) and sum(steps[QUIET:]) == 40 // LISTEN
    assert all(heard(many[:-1]) for _ in range(20)), "few are always asked"
    while heard(many):
        pass
    observe(adaptive, many, one, one, [2] + [1] * (CROWD - 1))
    assert heard(many), "something came of it"
