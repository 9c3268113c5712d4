"""Costs at start: measured on the runners, or taken from an earlier start; kept while serving, never in its way."""

from __future__ import annotations

import errno
import gc
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import Options, SamplingParams
from paceline.core.types import Request
from paceline.engine import keeper as keeper_module
from paceline.engine import measure as measure_module
from paceline.engine.build import build, choose
from paceline.engine.engine import Engine
from paceline.engine.keeper import PERIOD_S, Keeper, keep
from paceline.engine.measure import LONG, MODEL, SHORT, measure
from paceline.governor import saved
from paceline.governor.costs import Costs
from paceline.governor.profile import PROFILE_SECONDS
from paceline.governor.saved import Saved
from paceline.models import toy
from paceline.models.toy import ToyLaw
from paceline.runners.base import Output, Span, Want
from paceline.runners.toy import ToyRunner
from tests import tiny

LAW = ToyLaw(vocab_size=8)
POOL = 4096


class Timed(ToyRunner):
    """A toy whose passes take time on a clock of the test's, and whose cache must have been written where it is read.

    Args:
        base, row, look: seconds of a pass, of each row, and of each token that a row looks back at.
    """

    def __init__(
        self, clock: list[float], base: float = 0.04, row: float = 0.002, look: float = 2e-7, context: int = POOL
    ) -> None:
        super().__init__(LAW, context=context)
        self.info = replace(self.info, fills_up=True)
        self.clock, self.base, self.row, self.look = clock, base, row, look
        self.passes: list[tuple[int, int]] = []
        self.first_s, self.ran = 0.0, 0
        self.change = 0.005
        self.allocate(POOL // 8)

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        rows = sum(len(span.tokens) for span in spans)
        self.passes.append((rows, spans[0].cached))
        seconds = self.base + sum(
            self.row + self.look * (span.cached + 1 + i) for span in spans for i in range(len(span.tokens))
        )
        if len(self.passes) == 1:
            seconds += self.first_s
        if rows != self.ran:
            seconds += self.change
        self.ran, self.clock[0] = rows, self.clock[0] + seconds
        return super().forward(spans, want)


def timed(**given: Any) -> tuple[list[float], Timed, Timed]:
    clock = [0.0]
    return clock, Timed(clock, **given), Timed(clock, base=0.01, row=0.0005)


def measured(clock: list[float], target: Timed, draft: Timed | None, before: Costs | None = None) -> Costs:
    return measure(target, draft, POOL, 8, before, clock=lambda: clock[0])


def test_the_costs_are_those_of_the_runners() -> None:
    clock, target, draft = timed()
    costs = measured(clock, target, draft)
    for rows in (1, 2, 4, 8, 16):
        for context in (65, 2049, 4000):
            assert costs.forward(rows, context) == pytest.approx(0.04 + rows * (0.002 + 2e-7 * context), rel=0.03)
    for count in (1, 2, 4, 8):
        assert costs.draft(MODEL, count, 65) == pytest.approx(0.01 + 0.0005 * count, rel=0.05)
    assert costs.draft(MODEL, 1, 2049) == pytest.approx(0.0105 + 2e-7 * 2049, rel=0.05)
    assert costs.switch_s == pytest.approx(0.005)
    assert costs.catch_up(MODEL, 64) == pytest.approx(0.01 + 64 * (0.0005 + 2e-7 * 32), rel=0.3)
    assert costs.slowdown(MODEL) == pytest.approx(1)
    assert {context for _, context in target.passes} == {0, SHORT, LONG}


def test_rows_of_company_are_no_rows_of_their_own() -> None:
    clock, target, _ = timed()
    target.info = replace(target.info, least_rows=2)
    costs = measured(clock, target, None)
    assert costs.forward(2, 65) == pytest.approx(costs.forward(1, 130))
    assert costs.forward(2, 2049) == pytest.approx(0.044 + 2 * 2e-7 * 2049, rel=0.1)
    assert costs.drafts == {}


def test_loading_is_not_measured_and_measuring_ends_in_time() -> None:
    clock, target, draft = timed()
    target.first_s, draft.first_s = 20.0, 7.0
    costs = measured(clock, target, draft)
    assert clock[0] - 27.0 < PROFILE_SECONDS + 0.3
    assert costs.forward(1, 65) == pytest.approx(0.042, rel=0.02)


def test_a_slow_target_is_measured_at_two_numbers_of_rows_at_least() -> None:
    clock, target, draft = timed(base=3.0, row=0.5)
    costs = measured(clock, target, draft)
    assert costs.target.measured_rows == [1, 8]
    assert costs.forward(8, 65) > 1.8 * costs.forward(1, 65), "its rows are not taken to be free"
    assert costs.draft(MODEL, 1, 65) == pytest.approx(0.0105, rel=0.05)


def test_short_contexts_and_small_pools() -> None:
    for context, known in ((127, False), (128, True), (600, True)):
        clock = [0.0]
        target = Timed(clock, context=context)
        costs = measured(clock, target, Timed(clock, context=context))
        assert costs.known is known
        assert bool(costs.drafts) is known
        assert all(rows + cached <= context for rows, cached in target.passes)
    clock, target, _ = timed()
    costs = measure(target, None, 200, 8, clock=lambda: clock[0])
    assert costs.known
    assert max(rows + cached for rows, cached in target.passes) <= 200


def test_what_cannot_rewind_is_not_measured_and_what_does_not_fill_up_changes_for_free() -> None:
    clock, target, draft = timed()
    target.info = replace(target.info, can_rewind=False)
    assert not measured(clock, target, draft).known
    clock, target, draft = timed()
    target.info = replace(target.info, fills_up=False)
    assert measured(clock, target, draft).switch_s == 0


def test_saved_costs_that_still_hold_are_taken_and_brought_up_to_date() -> None:
    clock, target, draft = timed()
    before = measured(clock, target, draft)
    clock, target, draft = timed(base=0.04 * 1.2, row=0.002 * 1.2)
    costs = measured(clock, target, draft, Costs.restore(before.state()))
    assert len(target.passes) + len(draft.passes) <= 4 + 9, "a few passes"
    assert costs.forward(4, 65) == pytest.approx(1.2 * before.forward(4, 65), rel=0.02)
    assert costs.draft(MODEL, 1, 65) == pytest.approx(before.draft(MODEL, 1, 65), rel=0.02)
    assert costs.switch_s == before.switch_s


@pytest.mark.parametrize(
    "other", [{"base": 0.08}, {"base": 0.02}, {"row": 0.02}, {"row": 0.0}], ids=lambda given: str(given)
)
def test_saved_costs_that_do_not_hold_are_measured_anew(
    other: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    clock, target, draft = timed()
    before = measured(clock, target, draft)
    clock, target, draft = timed(**other)
    with caplog.at_level(logging.INFO):
        costs = measured(clock, target, draft, before)
    assert costs is not before
    base, row = other.get("base", 0.04), other.get("row", 0.002)
    assert costs.forward(16, 65) == pytest.approx(base + 16 * row, rel=0.05)
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "measured anew" in record.getMessage()
    assert clock[0] < PROFILE_SECONDS + 1 + 66 * row, "the look at a few passes is part of the time"


def test_a_draft_model_that_became_slower_is_seen_as_well() -> None:
    clock, target, draft = timed()
    before = measured(clock, target, draft)
    clock, target, draft = timed()
    draft.base = 0.03
    costs = measured(clock, target, draft, before)
    assert costs.draft(MODEL, 1, 65) == pytest.approx(0.0305, rel=0.05)


def test_costs_without_the_drafter_are_none_for_it() -> None:
    clock, target, draft = timed()
    before = measured(clock, target, None)
    costs = measured(clock, target, draft, before)
    assert costs.draft(MODEL, 1, 65) == pytest.approx(0.0105, rel=0.05)


# Whole engines, on tiny checkpoints.


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = []
    for seed in (0, 1):
        path = tmp_path_factory.mktemp(f"tiny{seed}")
        tiny.make("llama", path, seed)
        toy.tokenizer()._backend.save(str(path / "tokenizer.json"))
        made.append(str(path))
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def engine() -> Engine:
    """Of a formula, for which nothing is kept unless a test says so."""
    return build(choose(Options("toy:chaos", sequences=2)))


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "costs").iterdir()) if (cache / "costs").is_dir() else []


def answer(engine: Engine, *prompt: int) -> tuple[int, ...]:
    number = engine.add(Request(prompt, SamplingParams(max_tokens=24, ignore_eos=True)))
    while not engine.idle:
        engine.step()
    return engine.completion(number).token_ids


def test_what_measurements_depend_on(models: list[str]) -> None:
    target, other = models
    options = Options(target, context=256, weights="int8")
    identity = choose(options).identity
    assert identity is not None
    assert choose(options).identity == identity
    different = [
        replace(options, model=other),
        replace(options, weights="int4"),
        replace(options, weights="fp32"),
        replace(options, numerics="fast"),
        replace(options, kv="u8"),
        replace(options, draft=other),
        replace(options, draft=other, draft_weights="int8"),
        replace(options, draft=other, draft_vocabulary=256),
        replace(options, draft=target),
        replace(options, runner="torch", weights="fp32"),
    ]
    places = [saved.place(identity), *(saved.place(_identity(given)) for given in different)]
    assert len(set(places)) == len(places)
    same = [
        replace(options, max_draft=3),
        replace(options, draft=other, drafters=("lookup",)),
        replace(options, epsilon=0.1),
    ]
    assert {saved.place(_identity(given)) for given in same} == {places[0]}


def _identity(options: Options) -> Any:
    identity = choose(options).identity
    assert identity is not None
    return identity


def test_of_toys_and_on_request_nothing_is_kept(models: list[str], cache: Path) -> None:
    for options in (Options("toy:chaos"), Options("toy:llama"), Options(models[0], keep_costs=False)):
        chosen = choose(options)
        assert chosen.identity is None
        keeper = Keeper(chosen.identity, build(choose(Options("toy:chaos"))))
        keeper.close()
    assert kept(cache) == []


@pytest.mark.parametrize("weights", ["int8", "fp32"])
def test_other_content_under_the_same_name_is_another_model(weights: Any, models: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model"
    tiny.make("llama", path, 0)
    (path / "tokenizer.json").write_bytes((Path(models[0]) / "tokenizer.json").read_bytes())
    before = _identity(Options(str(path), weights=weights))
    tiny.make("llama", path, 1)
    assert _identity(Options(str(path), weights=weights)) != before


def test_a_second_start_goes_by_the_first(models: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = choose(Options(models[0], draft=models[1], context=256, sequences=2, weights="fp32", draft_weights="fp32"))
    first = build(chosen)
    text = answer(first, 5, 6, 7, 5, 6, 7)
    keeper = Keeper(chosen.identity, first)
    keeper.close()
    [file] = kept(cache)
    before = saved.read(file, _identity(chosen.options))
    assert isinstance(before, Saved)
    assert before.steps == first.report().steps > 0
    looked: list[Costs] = []
    monkeypatch.setattr(measure_module, "still_true", lambda subjects, clock: 1.0)
    monkeypatch.setattr(measure_module, "_anew", lambda *_: looked.append(Costs()) or Costs())
    second = build(chosen)
    assert looked == [], "nothing was measured"
    governor: Any = second.governor
    assert governor.costs.state() == before.costs.state()
    assert governor.acceptance.state() == before.acceptance.state()
    parts = [vars(part) for part in vars(governor).values() if hasattr(part, "__dict__")]
    shared = [part["_acceptance"] for part in parts if "_acceptance" in part]
    assert shared and all(one is governor.acceptance for one in shared), "its parts learn from the same"
    assert answer(second, 5, 6, 7, 5, 6, 7) == text
    Keeper(chosen.identity, second).close()
    after = saved.read(file, _identity(chosen.options))
    assert isinstance(after, Saved)
    assert after.steps == before.steps + second.report().steps


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04", b"[" * 10_000])
def test_a_damaged_file_costs_a_profile(content: bytes, models: list[str], caplog: pytest.LogCaptureFixture) -> None:
    chosen = choose(Options(models[0], context=256, sequences=2, weights="fp32"))
    path = saved.place(_identity(chosen.options))
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with caplog.at_level(logging.INFO):
        engine = build(chosen)
    assert engine.governor.costs.known
    assert [record.exc_info for record in caplog.records] == [None]
    keeper = Keeper(chosen.identity, engine)
    keeper.close()
    assert isinstance(saved.read(path, _identity(chosen.options)), Saved), "and is replaced"


IDENTITY = {"model": "any"}


def test_a_keeper_writes_now_and_then_when_nothing_runs_and_in_the_end(
    engine: Engine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [100.0], []
    write = saved.write
    monkeypatch.setattr(saved, "write", lambda path, content: (written.append(now[0]), write(path, content)))
    keeper = Keeper(IDENTITY, engine, clock=lambda: now[0])
    for _ in range(200):
        answer(engine, 1, 2, 3)
        keeper.rest()
        now[0] += 1.0
    assert written == [100 + PERIOD_S * n for n in range(1, 7)]
    engine.add(Request((1, 2), SamplingParams(max_tokens=200, ignore_eos=True)))
    engine.step()
    now[0] += 2 * PERIOD_S
    keeper.rest()
    assert len(written) == 6, "a request runs"
    keeper.close()
    keeper.close()
    keeper.rest()
    assert len(written) == 7
    assert len(kept(cache)) == 1


def test_what_is_not_new_is_not_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], []
    monkeypatch.setattr(saved, "write", lambda path, content: written.append(content))
    keeper = Keeper(IDENTITY, engine, clock=lambda: now[0])
    for _ in range(5):
        now[0] += PERIOD_S
        keeper.rest()
    keeper.close()
    assert len(written) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_one_line(
    code: int, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    now = [0.0]
    keeper = Keeper(IDENTITY, engine, clock=lambda: now[0])
    for _ in range(5):
        answer(engine, 1, 2, 3)
        now[0] += PERIOD_S
        keeper.rest()
    keeper.close()
    [record] = [record for record in caplog.records if record.name == keeper_module.__name__]
    assert os.strerror(code) in record.getMessage()
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


def test_a_place_that_is_no_directory(engine: Engine, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_bytes(b"")
    keeper = Keeper(IDENTITY, engine)
    keeper.close()
    assert [(record.name, record.levelno) for record in caplog.records] == [(keeper_module.__name__, logging.WARNING)]


def test_it_is_closed_when_its_owner_goes(engine: Engine, cache: Path) -> None:
    class Owner:
        pass

    owner = Owner()
    keep(IDENTITY, engine, owner)
    assert kept(cache) == []
    del owner
    gc.collect()
    assert len(kept(cache)) == 1


def test_the_acceptance_of_each_drafter_is_kept(engine: Engine) -> None:
    governor: Any = engine.governor
    keeper = Keeper(IDENTITY, engine)
    governor.acceptance.observe(0, keeper_draft(), (1, 2, 9))
    for request in range(1, 20):
        governor.acceptance.observe(request, keeper_draft(), (1, 2, 9))
    keeper.close()
    found = saved.read(saved.place(IDENTITY), IDENTITY)
    assert isinstance(found, Saved)
    assert found.history == {"lookup": pytest.approx(governor.acceptance.rate("lookup"))}


def keeper_draft() -> Any:
    from paceline.core.tree import Draft

    return Draft((1, 2, 3), (-1, 0, 1), (0.9,) * 3, ("lookup",) * 3)


def test_it_takes_next_to_no_room(engine: Engine) -> None:
    for prompt in range(1, 40):
        answer(engine, *range(1, prompt + 1))
    Keeper(IDENTITY, engine).close()
    assert saved.place(IDENTITY).stat().st_size < saved.MOST_BYTES / 10
    assert keeper_module.PERIOD_S >= 30
