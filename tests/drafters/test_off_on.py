"""Off is free, back is safe: while nothing is to be drafted no drafter's model runs; afterwards one pass reads what was
missed, and drafts are those of a drafter that was never off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import Request, SpeculationParams
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.engine.drafting import DraftDesk
from paceline.governor.adaptive import Adaptive
from paceline.governor.base import Drafting, Limit, Reason
from paceline.governor.costs import Costs
from paceline.governor.fixed import Fixed
from paceline.runners.toy import ToyRunner
from tests.engine.rig import CHAOS, Rig, ask, make
from tests.engine.test_mixed import KINDS, TAPS

LENGTH = 5
TOKENS = 40
OFF = range(4, 14)
"""Steps without drafts."""


class Watch:
    """Runs a drafter's model and notes the rows of each sequence in each pass."""

    def __init__(self, runner: Any, spend: Callable[[], None] = lambda: None) -> None:
        self.passes: list[list[int]] = []
        inner = runner.forward

        def forward(spans: Any, *rest: Any) -> Any:
            self.passes.append([len(getattr(span, "tokens", "1")) for span in spans])  # Medusa's have one row each
            spend()
            return inner(spans, *rest)

        runner.forward = forward

    def take(self) -> list[list[int]]:
        """Return the passes since the last time."""
        passes, self.passes = self.passes, []
        return passes


@dataclass
class Logged:
    """A drafter, and what it proposed: by sequence and length of the text."""

    drafter: Any
    drafts: dict[tuple[int, int], Draft] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    def begin(self, seq: SequenceView) -> None:
        self.begun.add(seq.id)
        self.drafter.begin(seq)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        found = self.drafter.propose([self.view(seq) for seq in seqs], limits)
        for seq, draft in zip(seqs, found, strict=True):
            self.drafts[seq.id, len(seq.tokens)] = draft
        return list(found)

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        self.drafter.observe(seq, seen)

    def end(self, seq: SequenceView) -> None:
        self.drafter.end(seq)

    def view(self, seq: SequenceView) -> SequenceView:
        return seq


@dataclass
class Stale(Logged):
    """Does not see what was written while it was off, as if its cache were taken for the text."""

    seen: dict[int, int] = field(default_factory=dict)
    gone: dict[int, tuple[int, int]] = field(default_factory=dict)

    def view(self, seq: SequenceView) -> SequenceView:
        end, before = len(seq.tokens), self.seen.get(seq.id, 0)
        if before and end - before > LENGTH + 1:
            self.gone[seq.id] = (before, end - 1)
        self.seen[seq.id] = end
        begin, stop = self.gone.get(seq.id, (0, 0))
        tokens = [*seq.tokens[:begin], *seq.tokens[stop:]]
        kept = ("id", "prompt_len", "shaping", "noise", "rule", "prediction", "tenant")
        view: Any = SimpleNamespace(tokens=tokens, **{name: getattr(seq, name) for name in kept})
        return view


class Shadow(Fixed):
    """Has everything drafted in every step, and verifies nothing: the drafter is never off."""

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        return [EMPTY] * len(seqs)


class Windows(Fixed):
    """Drafts always the same length, but for some steps."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.step = -1

    def plan(self, seqs: Sequence[Drafting], prefill_rows: int = 0) -> list[Limit]:
        self.step += bool(seqs) and not prefill_rows
        limits = super().plan(seqs, prefill_rows)
        return [Limit(0, Reason.REQUESTED_OFF)] * len(seqs) if self.step in OFF else limits


def model_of(drafter: Any) -> Any:
    """What runs behind a drafter."""
    return drafter._reader._runner if hasattr(drafter, "_reader") else drafter._runner


def requests(size: int, temperature: float, mode: Any = "auto") -> list[Request]:
    wish = SpeculationParams(mode=mode)
    return [
        ask([1 + i, 2, 7 + i, 4 * i], wish, temperature=temperature, seed=i, max_tokens=TOKENS, ignore_eos=True)
        for i in range(size)
    ]


def rig_with(drafter: Drafter, governor: Any) -> Rig:
    rig = make({"kind": drafter}, CHAOS, tree_context=0, taps=TAPS, prefill_rows=64)
    rig.engine.governor = governor
    return rig


def never_off(kind: str, size: int, temperature: float) -> dict[tuple[int, int], Draft]:
    """Return what is drafted at every length of every text."""
    logged = Logged(KINDS[kind](CHAOS, False))
    rig_with(logged, Shadow(LENGTH)).run(requests(size, temperature))
    return logged.drafts


def equal(draft: Draft, whole: Draft) -> bool:
    """Whether a draft is the beginning of another."""
    return draft.tokens == whole.tokens[: len(draft)] and draft.confidence == whole.confidence[: len(draft)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", ["model", "eagle", "medusa"])
def test_off_runs_nothing_and_back_drafts_as_if_it_had_never_been_off(kind: str, size: int, temperature: float) -> None:
    logged, governor = Logged(KINDS[kind](CHAOS, False)), Windows(LENGTH)
    watch, rig = Watch(model_of(logged.drafter)), rig_with(logged, governor)
    asked = requests(size, temperature)
    for request in asked:
        rig.add(request)
    silent, back, lengths = 0, None, {}
    while not rig.engine.idle:
        before = {seq.id: len(seq.tokens) for seq in rig.engine.scheduler.running}
        rig.step()
        passes = watch.take()
        if governor.step == OFF.start - 1 and not lengths:
            lengths = before
        if governor.step in OFF:
            assert not passes, "a drafter's model ran while it was off"
            silent += 1
        elif governor.step == OFF.stop and back is None:
            back = (passes, {i: before[i] - lengths[i] for i in before})
    assert silent == len(OFF)
    assert back is not None
    if kind != "medusa":  # which has no cache
        caught_up(*back)
    assert [list(rig.done[i].token_ids) for i in range(size)] == [rig.expected(request)[0] for request in asked]
    reference, after = never_off(kind, size, temperature), 0
    for key, draft in logged.drafts.items():
        assert equal(draft, reference[key]), key
        after += len(draft) > 0 and key[1] > 4 + len(OFF)
    assert after >= 3 * size


def caught_up(passes: list[list[int]], missed: dict[int, int]) -> None:
    """Assert that the first pass reads what all texts have gained, and the others a row for each draft."""
    first, *others = passes
    assert len(first) == len(missed), "all that were off are read in one pass"
    assert sorted(first) >= sorted(count - LENGTH for count in missed.values())
    assert min(first) >= len(OFF)
    assert all(rows == 1 for rows_of in others for rows in rows_of)


def test_a_drafter_that_does_not_see_what_it_missed_drafts_something_else() -> None:
    """The control: what the comparison is there to find."""
    reference = never_off("model", 2, 0.0)
    stale = Stale(KINDS["model"](CHAOS, False))
    rig_with(stale, Windows(LENGTH)).run(requests(2, 0.0))
    before = [equal(draft, reference[key]) for key, draft in stale.drafts.items() if key[1] < 4 + OFF.start]
    after = [equal(draft, reference[key]) for key, draft in stale.drafts.items() if key[1] > 4 + OFF.stop + 4 * LENGTH]
    assert before and all(before)
    assert after and not any(after)


@pytest.mark.parametrize("kind", ["model", "eagle", "medusa"])
def test_a_request_that_is_off_is_nothing_to_a_drafter(kind: str) -> None:
    logged = Logged(KINDS[kind](CHAOS, False))
    watch, rig = Watch(model_of(logged.drafter)), rig_with(logged, Fixed(LENGTH))
    off = rig.add(requests(1, 0.0, mode="off")[0])
    rig.drain()
    assert not watch.take()
    beside = [rig.add(request) for request in (*requests(1, 0.0, mode="off"), *requests(2, 0.0))]
    rig.drain()
    assert logged.begun == set(beside[1:])
    assert all(len(rows) <= 2 for rows in watch.take())
    assert {i for i, _ in logged.drafts} == set(beside[1:])
    assert rig.done[off].speculation.drafted == rig.done[beside[0]].speculation.drafted == 0


def test_an_engine_that_is_off_has_no_drafter(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    made: list[str] = []
    build = ToyRunner.__init__

    def counting(self: ToyRunner, law: Any, *rest: Any) -> None:
        made.append(law)
        build(self, law, *rest)

    monkeypatch.setattr(ToyRunner, "__init__", counting)
    texts = []
    for speculate in (True, False):
        made.clear()
        llm = LLM("toy:chaos", draft="toy:chaos-draft", speculate=speculate)
        texts.append(llm.generate(["abc"], SamplingParams(max_tokens=12, seed=1))[0].token_ids)
        assert len(made) == 1 + speculate, "a draft model is made for those that draft"
    assert texts[0] == texts[1]


class Ticking:
    """A clock that passes drive on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("each", [0.2, 0.05, 0.01])
def test_an_overdrawn_account_stops_it_and_it_comes_back_as_it_was(each: float) -> None:
    """However little a drafted token costs, down to a hundredth of a target's pass."""
    clock, costs = Ticking(), Costs()
    for rows in (1, 2, 4, 8, 16):
        costs.learn(rows, 1.0)
    costs.learn_draft("kind", 1, each)
    governor = Adaptive(LENGTH, costs, ("kind",))
    logged = Logged(KINDS["model"](CHAOS, False))
    watch = Watch(model_of(logged.drafter), lambda: clock.spend(each))
    rig = make({"kind": logged}, CHAOS, tree_context=0, taps=TAPS, prefill_rows=64, clock=clock)
    rig.engine.governor, rig.engine.desk = governor, DraftDesk({"kind": logged}, rig.runner.info, clock)
    Watch(rig.runner, lambda: clock.spend(1.0))
    rig.add(ask([1, 2, 7, 0], max_tokens=80, ignore_eos=True))
    while len(logged.drafts) < 3:
        rig.step()
    watch.take()
    governor.account.balance, governor.account.overdrawn = -5.0, True
    for _ in range(20):
        rig.step()
        assert governor.account.overdrawn, "or nothing is shown"
        assert not watch.take(), "a drafter's model ran while the account was overdrawn"
    known = len(logged.drafts)
    governor.account.balance, governor.account.overdrawn = 10.0, False
    while not rig.engine.idle:
        rig.step()
    passes = [rows for rows in watch.take() if rows != [1]]
    assert passes[0][0] >= 20, "what was missed is read in one pass"
    assert len(logged.drafts) > known
    shadow = Logged(KINDS["model"](CHAOS, False))
    rig_with(shadow, Shadow(LENGTH)).run([ask([1, 2, 7, 0], max_tokens=80, ignore_eos=True)])
    assert all(equal(draft, shadow.drafts[key]) for key, draft in logged.drafts.items())
