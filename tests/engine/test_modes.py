"""A ceiling on speculation, set while requests run: it lowers what each may do, and changes no text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.tree import Draft
from paceline.core.types import ALWAYS, RULES, SpeculationParams
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.drafters.lookup import Lookup
from paceline.errors import OptionError
from paceline.governor import adaptive
from paceline.governor.adaptive import Adaptive

from .rig import CHAOS, RHYME, VOCAB, Oracle, Rig, ask, crew, make
from .test_equality import PARAMS, TEMPERATURES, prompts

HEIGHT = {"off": 0, "auto": 1, "always": 2}
OFF = SpeculationParams("off")


@st.composite
def params(draw: st.DrawFn, rule: Any = "coupled") -> SpeculationParams:
    mode = draw(st.sampled_from(["off", "auto", "always"]))
    most = draw(st.none() | st.integers(0, 12))
    names = st.lists(st.sampled_from(["lookup", "model", "oracle"]), unique=True).map(tuple)
    return SpeculationParams(mode, most, draw(st.none() | names), rule)


def nodes(wish: SpeculationParams, most: int = 9) -> int:
    """How many tokens a wish lets draft, in an engine that drafts at most so many for those that do not say."""
    if wish.mode == "off":
        return 0
    default = ALWAYS if wish.mode == "always" else most
    return default if wish.max_draft is None else wish.max_draft


class TestUnder:
    @given(params("ratio"), params())
    def test_it_only_lowers(self, wish: SpeculationParams, ceiling: SpeculationParams) -> None:
        found = wish.under(ceiling)
        assert HEIGHT[found.mode] <= min(HEIGHT[wish.mode], HEIGHT[ceiling.mode])
        assert found.rule == "ratio"
        for name in ("lookup", "model", "oracle"):
            assert found.uses(name) == (wish.uses(name) and ceiling.uses(name))
        assert found.max_draft is None or found.max_draft <= min(12, *_given(wish, ceiling))
        if wish.mode == found.mode:
            assert nodes(found) <= nodes(wish, 12)
        assert found.under(ceiling) == found
        assert found.under(SpeculationParams("always")) == found

    @given(params())
    def test_no_ceiling_changes_nothing(self, wish: SpeculationParams) -> None:
        found = wish.under(SpeculationParams("always"))
        assert found == wish or (found.mode == "off" and wish.drafters == ())

    def test_a_request_that_does_not_say_how_much_is_not_raised(self) -> None:
        always = SpeculationParams("always")
        assert always.under(SpeculationParams("always", max_draft=12)).max_draft == ALWAYS
        assert always.under(SpeculationParams("always", max_draft=2)).max_draft == 2
        assert always.under(SpeculationParams("auto", max_draft=12)).max_draft == 12, "governed, like any other"
        assert adaptive.ALWAYS == ALWAYS

    def test_where_no_drafter_is_left_it_is_off(self) -> None:
        found = SpeculationParams(drafters=("lookup",)).under(SpeculationParams(drafters=("model",)))
        assert (found.mode, found.drafters) == ("off", ())


def _given(*wishes: SpeculationParams) -> list[int]:
    return [wish.max_draft for wish in wishes if wish.max_draft is not None]


class Paired:
    """A drafter that notes whether it is told of all that happens to a sequence, and how often it is asked."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.at: dict[int, int] = {}
        self.begun, self.ended, self.calls = 0, 0, 0

    def begin(self, seq: SequenceView) -> None:
        assert seq.id not in self.at
        self.at[seq.id], self.begun = 0, self.begun + 1
        self._drafter.begin(seq)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        assert {seq.id for seq in seqs} <= self.at.keys()
        self.calls += 1
        return self._drafter.propose(seqs, limits)

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        if seen.verdict is not None and seen.begin > 0 and self.at[seq.id]:
            assert seen.begin == self.at[seq.id], "a pass was not told of"
        self.at[seq.id] = len(seq.tokens) - 1 if seen.verdict is not None else 0
        self._drafter.observe(seq, seen)

    def end(self, seq: SequenceView) -> None:
        del self.at[seq.id]
        self.ended += 1
        self._drafter.end(seq)


def rig_of(drafters: str, law: Any = CHAOS, **given: Any) -> tuple[Rig, dict[str, Paired]]:
    paired = {name: Paired(drafter) for name, drafter in crew(law)[drafters]().items()}
    return make(paired, law, **given), paired


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafters", crew())
def test_no_ceiling_changes_a_text_however_it_moves(drafters: str, temperature: float) -> None:
    for law, seed in ((CHAOS, 1), (RHYME, 2)):
        dice = random.Random(f"{drafters} {temperature} {seed}")
        rig, paired = rig_of(drafters, law, length=6, blocks=30, sequences=4)
        kinds = dice.sample(sorted(PARAMS), 5)
        wishes = [SpeculationParams(), SpeculationParams("always"), SpeculationParams(max_draft=2), OFF]
        wishes.append(SpeculationParams(drafters=tuple(paired)[:1]))
        waiting = [
            ask(p, wish, temperature=temperature, seed=i, **PARAMS[kind])
            for i, (p, wish, kind) in enumerate(zip(prompts(5, seed), wishes, kinds, strict=True))
        ]
        while waiting or not rig.engine.idle:
            if waiting and dice.random() < 0.4:
                rig.add(waiting.pop())
            rig.engine.limit(ceiling(dice, tuple(paired)))
            rig.step()
        for i, request in rig.requests.items():
            assert (list(rig.done[i].token_ids), rig.done[i].finish_reason) == rig.expected(request)
        for drafter in paired.values():
            assert not drafter.at and drafter.begun == drafter.ended >= 3


def ceiling(dice: random.Random, names: tuple[str, ...]) -> SpeculationParams:
    some = tuple(name for name in names if dice.random() < 0.6)
    return SpeculationParams(
        dice.choice(["off", "auto", "auto", "always"]),
        dice.choice([None, None, 0, 1, 3, 20]),
        dice.choice([None, None, some]),
    )


def test_it_holds_from_the_next_step_on_for_requests_that_run() -> None:
    rig, paired = rig_of("right", length=4)
    request = ask([1, 2], ignore_eos=True, max_tokens=60)
    rig.add(request)
    seq = rig.engine._live[0]
    for _ in range(3):
        rig.step()
    tally, drafted, calls = seq.tally, seq.tally.drafted, paired["oracle"].calls
    assert drafted == 8
    rig.engine.limit(OFF)
    for _ in range(5):
        rig.step()
    assert (tally.drafted, paired["oracle"].calls) == (drafted, calls), "off is free"
    assert tally.reasons == {"requested_off": 5}
    rig.engine.limit(SpeculationParams(max_draft=2))
    rig.step()
    assert tally.trace[-1][:3] == (2, 2, 2)
    rig.engine.limit(SpeculationParams())
    rig.drain()
    [done] = rig.done.values()
    assert list(done.token_ids) == rig.expected(request)[0]
    assert done.speculation.trace[9][:3] == (4, 4, 4)
    assert done.speculation.reasons == {"requested_off": 5}


def test_who_joins_under_a_ceiling_drafts_once_it_is_raised() -> None:
    rig, paired = rig_of("lookup, model", length=4)
    rig.engine.limit(OFF)
    requests = [ask([1, 2, 3], ignore_eos=True, max_tokens=50), ask([4, 5], OFF, ignore_eos=True, max_tokens=50)]
    for request in requests:
        rig.add(request)
    for _ in range(9):
        rig.step()
    assert rig.engine.report().drafted == 0
    rig.engine.limit(SpeculationParams())
    rig.drain()
    assert rig.done[0].speculation.drafted > 20 and rig.done[0].speculation.accepted > 0
    assert rig.done[1].speculation.drafted == 0, "it asked for none itself"
    assert [list(rig.done[i].token_ids) for i in (0, 1)] == [rig.expected(r)[0] for r in requests]
    assert all(drafter.begun == 1 for drafter in paired.values()), "who asked for none is nobody's business"


def test_it_names_the_drafters_that_may() -> None:
    rig, paired = rig_of("lookup, tree", RHYME, length=6)
    rig.engine.limit(SpeculationParams(drafters=("lookup",)))
    rig.run([ask([1, 2] * 4, ignore_eos=True, max_tokens=40)])
    assert paired["lookup"].calls > 5 and paired["oracle"].calls == 0
    assert set(rig.done[0].speculation.by_drafter) <= {"lookup"}
    rig.engine.limit(SpeculationParams(drafters=()))
    rig.run([ask([1, 2] * 4, SpeculationParams("always"), ignore_eos=True, max_tokens=9)])
    assert rig.done[1].speculation.reasons == {"requested_off": 8}


def test_always_is_governed_under_auto() -> None:
    """Costs say that nothing pays: only a request that may always draft does."""
    rig = make({"oracle": Oracle(CHAOS)}, length=4)
    rig.engine.governor = governor = Adaptive(8, drafters=("oracle",))
    for rows in (1, 2, 3, 4, 6, 8, 12, 16):
        governor.costs.learn(rows, 10.0 * rows)
    governor.observe = lambda step: [adaptive.Share()] * len(step.outcomes)  # type: ignore[method-assign]
    request = ask([1, 2], SpeculationParams("always"), ignore_eos=True, max_tokens=60)
    rig.add(request)
    seq = rig.engine._live[0]
    for _ in range(3):
        rig.step()
    assert seq.tally.verified == 8
    rig.engine.limit(SpeculationParams("auto"))
    for _ in range(5):
        rig.step()
    assert seq.tally.verified == 8
    assert seq.tally.reasons["batch_compute_bound"] > 0
    rig.engine.limit(SpeculationParams("always"))
    rig.step()
    assert seq.tally.verified == 12
    assert seq.tally.report(request.speculation).mode == "always", "a report names what was asked for"


@pytest.mark.parametrize("rule", RULES[1:])
def test_a_ceiling_has_no_rule(rule: Any) -> None:
    rig = make(crew()["lookup"]())
    with pytest.raises(OptionError) as error:
        rig.engine.limit(SpeculationParams(rule=rule))
    assert str(error.value) == f"a ceiling has rule {rule!r}; the rule is each request's own, leave it out"
    assert rig.engine.ceiling == SpeculationParams("always")


def test_a_ceiling_names_drafters_that_there_are() -> None:
    rig = make({"lookup": Lookup(), "oracle": Oracle(CHAOS)})
    with pytest.raises(OptionError) as error:
        rig.engine.limit(SpeculationParams(drafters=("lookup", "model")))
    assert str(error.value) == "a ceiling has drafter 'model'; this engine's drafters: lookup, oracle"
    with pytest.raises(OptionError, match="this engine's drafters: none"):
        make({}).engine.limit(SpeculationParams(drafters=("lookup",)))
    assert VOCAB > 0
