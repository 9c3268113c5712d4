"""Alarms go on for what is out of order, say why, go off again, and stay off for what is ordinary."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.governor.account import Account
from paceline.governor.alarms import COPIES, LOOP_QUIET, NAMES, OVERDRAWN_STEPS, REPAID_STEPS, REQUESTS, Alarms
from paceline.governor.base import Outcome, StepReport
from paceline.governor.costs import Costs
from paceline.governor.signs import KEPT, KNOWN, LOOP_TOKENS, Form, Level, Said, came_true

FRESH = itertools.count(1000)
"""Tokens that no text has had before."""
WRONG = 7


def outcome(right: int = 0, of: int = 1, request: int = 0, name: str = "model", tokens: Sequence[int] = ()) -> Outcome:
    """A chain of which the first so many nodes came true."""
    said = tuple(tokens) or tuple(next(FRESH) for _ in range(right + 1))
    draft = Draft.chain([*said[:right], *[WRONG] * (of - right)], name) if of else EMPTY
    return Outcome(SimpleNamespace(id=request), draft, draft, said)  # type: ignore[arg-type]


class Watch:
    """Alarms, and what they are fed with."""

    def __init__(self, **history: float) -> None:
        self.alarms, self.costs, self.account, self.steps = Alarms(history), Costs(), Account(), 0

    def step(self, *outcomes: Outcome, drafted: str | None = None) -> set[str]:
        spent = {} if drafted is None else {drafted: 0.01}
        self.alarms.observe(StepReport(outcomes, 0, 0.0, 0.05, 0.0, spent), self.costs, self.account)
        self.steps += 1
        return set(self.alarms.active)

    def until(self, name: str, outcomes: Iterable[Outcome], is_on: bool = True) -> int:
        """Return after how many steps the alarm was on, or off."""
        for count, each in enumerate(outcomes, 1):
            if (name in self.step(each)) == is_on:
                return count
        raise AssertionError(f"{name} did not go {'on' if is_on else 'off'}")

    def text(self, name: str) -> str:
        text = self.alarms.active[name].text
        assert "\n" not in text
        return text


def luck(chance: float, dice: random.Random, of: int = 4) -> int:
    """How many of a chain's guesses come true."""
    return next((i for i in range(of) if dice.random() >= chance), of)


def run(watch: Watch, chance: float, steps: int, dice: random.Random, requests: int = 1, **given: Any) -> None:
    for i in range(steps):
        watch.step(outcome(luck(chance, dice), 4, i % requests, **given))


class TestAcceptanceCollapse:
    NAME = "acceptance_collapse"

    def test_a_drafter_that_was_never_right(self) -> None:
        watch = Watch()
        assert 12 <= watch.until(self.NAME, (outcome(0, 4) for _ in range(30))) <= 20
        text = watch.text(self.NAME)
        assert text.startswith("model: 0 of 15 guesses came true since it began")
        assert "another tokenizer" in text and "wired" in text
        assert watch.alarms.active[self.NAME].since == watch.steps

    def test_right_once_in_twenty_is_as_bad(self) -> None:
        watch = Watch()
        assert watch.until(self.NAME, (outcome(int(i % 20 == 9), 4) for i in range(100))) <= 60

    def test_earlier_runs_without_luck_are_no_excuse(self) -> None:
        watch = Watch(model=0.0)
        watch.until(self.NAME, (outcome(0, 4) for _ in range(20)))
        assert "since it began" in watch.text(self.NAME)

    @pytest.mark.parametrize("requests", [1, 5])
    def test_one_that_falls_from_its_own_level(self, requests: int) -> None:
        watch, dice = Watch(), random.Random(1)
        run(watch, 0.7, 200, dice, requests)
        assert not watch.alarms.active
        fallen = (outcome(luck(0.03, dice), 4, i % requests) for i in range(200))
        assert watch.until(self.NAME, fallen) <= 60
        assert "% before" in watch.text(self.NAME) and "tokenizer" not in watch.text(self.NAME)

    def test_the_cause_is_in_the_target_where_all_requests_fall(self) -> None:
        watch, dice = Watch(), random.Random(2)
        run(watch, 0.7, 300, dice, 4)
        watch.until(self.NAME, (outcome(0, 4, i % 4) for i in range(200)))
        assert "in 4 of the 4 requests" in watch.text(self.NAME)
        assert "quantisation" in watch.text(self.NAME)

    def test_it_is_in_the_text_where_some_do(self) -> None:
        watch, dice = Watch(), random.Random(3)
        run(watch, 0.7, 300, dice, 4)
        watch.until(self.NAME, (outcome(0, 4, 9) for _ in range(200)))
        assert "in 1 of the 5 requests" in watch.text(self.NAME)
        assert "domain shift" in watch.text(self.NAME) and "quantisation" not in watch.text(self.NAME)

    def test_and_in_the_models_where_earlier_runs_did_better(self) -> None:
        watch = Watch(model=0.7)
        watch.until(self.NAME, (outcome(0, 4) for _ in range(60)))
        assert "70% in earlier runs" in watch.text(self.NAME) and "tokenizer" not in watch.text(self.NAME)

    def test_it_goes_off_when_the_drafter_is_back_and_does_not_flicker(self) -> None:
        watch, dice = Watch(), random.Random(4)
        run(watch, 0.7, 200, dice)
        watch.until(self.NAME, (outcome(0, 4) for _ in range(100)))
        run(watch, 0.15, 300, dice)
        assert self.NAME in watch.alarms.active, "a little better is not well"
        assert watch.until(self.NAME, (outcome(luck(0.7, dice), 4) for _ in range(100)), is_on=False) <= 40
        run(watch, 0.7, 2000, dice)
        assert watch.alarms.raised == {self.NAME: 1}

    def test_two_drafters_are_both_named(self) -> None:
        watch = Watch()
        for _ in range(30):
            watch.step(outcome(0, 4), outcome(0, 2, 1, name="heads"))
        assert "model: " in watch.text(self.NAME) and "heads: " in watch.text(self.NAME)
        assert watch.alarms.raised[self.NAME] == 2

    @pytest.mark.parametrize("chance", [0.4, 0.5, 0.7, 0.9, 0.99])
    def test_ordinary_noise_is_no_collapse(self, chance: float) -> None:
        for seed in range(4):
            watch = Watch(model=0.8)
            run(watch, chance, 3000, random.Random(seed), 3)
            assert watch.alarms.raised[self.NAME] == 0, seed

    def test_nor_are_easy_and_hard_stretches_in_turn(self) -> None:
        watch, dice = Watch(), random.Random(5)
        for i in range(200):
            run(watch, 0.9 if i % 2 else 0.45, dice.randrange(10, 40), dice)
        assert not watch.alarms.raised

    def test_nor_short_requests_that_begin_badly(self) -> None:
        watch, dice = Watch(), random.Random(6)
        for request in range(1500):
            for i in range(3):
                watch.step(outcome(luck(0.6, dice) if i else 0, 4, request))
        assert not watch.alarms.raised

    @pytest.mark.parametrize("name", sorted(COPIES))
    def test_nor_the_end_of_what_can_be_copied(self, name: str) -> None:
        watch, dice = Watch(**{name: 0.9}), random.Random(7)
        run(watch, 0.95, 200, dice, name=name)
        run(watch, 0.01, 500, dice, name=name)
        assert not watch.alarms.raised

    def test_nor_a_low_level_that_stays_low(self) -> None:
        """What began well enough to be known, and is seldom right since, has no level to fall from."""
        watch, dice = Watch(), random.Random(8)
        run(watch, 0.5, 40, dice)
        for chance in (0.4, 0.3, 0.2, 0.15):
            run(watch, chance, 1500, dice)
        assert not watch.alarms.raised

    def test_nor_a_drafter_that_is_poor_from_the_start(self) -> None:
        watch = Watch()
        for i in range(1000):
            watch.step(outcome(int(i % 10 == 5), 4, request=i))
        assert not watch.alarms.raised
        assert len(watch.alarms._drafters["model"].suspects) <= KNOWN, "nor is it watched for ever"

    @pytest.mark.parametrize(("level", "collapses"), [(0.15, False), (0.3, True), (0.5, True), (0.9, True)])
    def test_there_has_to_be_something_to_fall_from(self, level: float, collapses: bool) -> None:
        form = Form(Level(1000, 1000 * level))
        for _ in range(400):
            form.add(0, 1, form.level.rate)
        assert form.collapsed == collapses


def repeated(period: int, tokens: int, size: int, right: bool = True, request: int = 0) -> list[Outcome]:
    """A text that says the same over and over, in steps of so many tokens."""
    loop = [next(FRESH) for _ in range(period)]
    said = [loop[i % period] for i in range(tokens)]
    steps = [said[i : i + size] for i in range(0, tokens, size)]
    return [outcome(len(s) - 1 if right else 0, max(1, len(s) - 1), request, "suffix", s) for s in steps]


class TestRepetition:
    NAME = "repetition"

    @pytest.mark.parametrize("size", [2, 5, 9, 17])
    @pytest.mark.parametrize("period", [1, 2, 5, 13, 40, 100])
    def test_a_loop_is_no_success(self, period: int, size: int) -> None:
        watch = Watch()
        steps = watch.until(self.NAME, repeated(period, 600, size))
        due = period + max(LOOP_TOKENS, 3 * period)
        assert due - size <= steps * size <= due + 2 * size + 8
        assert f"repeats its last {period} tokens" in watch.text(self.NAME)

    def test_a_period_within_the_period_hides_nothing(self) -> None:
        line = [1] * 12 + [2, 3]
        said = line * 20
        watch = Watch()
        watch.until(self.NAME, [outcome(3, 3, tokens=said[i : i + 4], name="suffix") for i in range(0, 280, 4)])
        assert "repeats its last 14 tokens" in watch.text(self.NAME)

    @pytest.mark.parametrize("token", [0, 0x01010101, 256])
    def test_tokens_are_compared_and_not_their_bytes(self, token: int) -> None:
        """Shifted by one byte, some tokens look like others, or like themselves."""
        watch = Watch()
        watch.until(self.NAME, [outcome(3, 3, name="suffix", tokens=[token] * 4) for _ in range(30)])
        assert "repeats its last 1 tokens" in watch.text(self.NAME)
        said = Said()
        said.extend(tuple([1] * 12 + [9] + [256] * 12))
        said.extend(tuple([256] * 12))
        assert said.period == 1

    def test_it_goes_off_when_the_text_goes_on_and_when_it_has_ended(self) -> None:
        for after in (lambda i: outcome(0, 1), lambda i: outcome(0, 1, request=1 + i)):
            watch = Watch()
            watch.until(self.NAME, repeated(5, 200, 5))
            gone = watch.until(self.NAME, (after(i) for i in range(200)), is_on=False)
            assert gone == LOOP_QUIET

    def test_one_request_of_many_is_enough(self) -> None:
        watch = Watch()
        for each in repeated(6, 200, 5):
            watch.step(outcome(1, 4, 1), each, outcome(0, 4, 2))
        assert self.NAME in watch.alarms.active

    def test_a_long_copy_is_a_success(self) -> None:
        watch = Watch()
        for _ in range(300):
            watch.step(outcome(16, 16, name="prediction"))
        assert not watch.alarms.raised

    def test_lines_that_begin_alike_are_no_loop(self) -> None:
        watch, head = Watch(), [next(FRESH) for _ in range(20)]
        for _ in range(100):
            watch.step(outcome(20, 20, name="suffix", tokens=[*head, next(FRESH)]))
        assert not watch.alarms.raised

    @pytest.mark.parametrize(("period", "tokens"), [(1, 60), (5, 80), (30, 100), (60, 200)])
    def test_nor_what_is_said_a_few_times(self, period: int, tokens: int) -> None:
        watch = Watch()
        for each in repeated(period, tokens, 4) * 1 + [outcome(4, 4) for _ in range(20)]:
            watch.step(each)
        assert not watch.alarms.raised

    def test_a_loop_that_nobody_guesses_is_not_told_by_acceptance(self) -> None:
        watch = Watch()
        for each in repeated(5, 400, 2, right=False):
            watch.step(each)
        assert self.NAME not in watch.alarms.raised

    @given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=120))
    def test_what_it_calls_repeated_is(self, steps: list[list[int]]) -> None:
        said, text = Said(), list[int]()
        for tokens in steps:
            text += tokens
            said.extend(tuple(tokens))
            if said.period:
                begin = len(text) - said.run
                assert text[begin:] == text[begin - said.period : len(text) - said.period]
            assert said.tail == b"".join(t.to_bytes(4, "little") for t in text)[-len(said.tail) :]

    def test_what_is_remembered_is_bounded(self) -> None:
        watch = Watch()
        for request in range(2 * REQUESTS):
            watch.step(outcome(1, 4, request))
        assert len(watch.alarms._requests) == REQUESTS
        said = Said()
        for _ in range(500):
            said.extend(tuple(next(FRESH) for _ in range(17)))
        assert 4 * KEPT <= len(said.tail) <= 8 * KEPT


class TestBelowHistory:
    NAME = "below_history"

    def test_half_of_what_it_was(self) -> None:
        watch, dice = Watch(model=0.8), random.Random(1)
        run(watch, 0.4, 150, dice)
        assert not watch.alarms.raised, "too few guesses to tell"
        run(watch, 0.4, 300, dice)
        text = watch.text(self.NAME)
        assert "80% in earlier runs" in text and text.startswith("model: 4")

    def test_it_goes_off_when_that_is_made_good(self) -> None:
        watch, dice = Watch(model=0.8), random.Random(2)
        run(watch, 0.4, 400, dice)
        run(watch, 0.55, 3000, dice)
        assert self.NAME in watch.alarms.active, "between the bounds nothing changes"
        run(watch, 0.8, 3000, dice)
        assert not watch.alarms.active
        assert watch.alarms.raised == {self.NAME: 1}

    @pytest.mark.parametrize("chance", [0.6, 0.75, 0.95])
    def test_about_as_good_is_good(self, chance: float) -> None:
        watch = Watch(model=0.75)
        run(watch, chance, 5000, random.Random(3))
        assert not watch.alarms.raised

    def test_without_history_there_is_none(self) -> None:
        watch = Watch(heads=0.9)
        run(watch, 0.45, 2000, random.Random(4))
        assert not watch.alarms.raised


class TestDraftSlower:
    NAME = "draft_slower_than_profiled"

    @staticmethod
    def profiled(target_s: float = 0.05, draft_s: float = 0.01) -> Watch:
        watch = Watch()
        watch.costs.learn(1, target_s)
        watch.costs.learn_draft("model", 1, draft_s)
        watch.costs.profiled_draft["model"] = watch.costs.drafts["model"].seconds(1)
        return watch

    @staticmethod
    def passes(watch: Watch, draft_s: Callable[[int], float], count: int, target_s: float = 0.05) -> None:
        for i in range(count):
            watch.costs.learn(1, target_s)
            watch.costs.learn_draft("model", 1, draft_s(i))
            watch.step(outcome(1, 4), drafted="model")

    def test_twice_as_slow_for_long(self) -> None:
        watch = self.profiled()
        self.passes(watch, lambda i: 0.02, 300)
        assert "model: a pass takes" in watch.text(self.NAME)
        assert "2.0 × what was measured" in watch.text(self.NAME) or "1.9 × what" in watch.text(self.NAME)
        self.passes(watch, lambda i: 0.01, 600)
        assert not watch.alarms.active
        assert watch.alarms.raised == {self.NAME: 1}

    @pytest.mark.parametrize(
        ("draft_s", "target_s"),
        [
            pytest.param(lambda i: 0.01 * (1 + 0.2 * (-1) ** i), 0.05, id="noise"),
            pytest.param(lambda i: 0.1 if i % 50 == 0 else 0.01, 0.05, id="outliers"),
            pytest.param(lambda i: 0.03, 0.15, id="the target is as much slower"),
            pytest.param(lambda i: 0.012, 0.05, id="a little slower"),
        ],
    )
    def test_what_is_no_news_of_the_drafter(self, draft_s: Callable[[int], float], target_s: float) -> None:
        watch = self.profiled()
        self.passes(watch, draft_s, 500, target_s)
        assert not watch.alarms.raised

    def test_fractions_of_a_millisecond_are_none_either(self) -> None:
        watch = self.profiled(draft_s=0.0001)
        self.passes(watch, lambda i: 0.0004, 500)
        assert not watch.alarms.raised

    def test_a_drafter_that_was_not_profiled_has_no_time_to_keep(self) -> None:
        watch = self.profiled()
        watch.costs.profiled_draft.clear()
        self.passes(watch, lambda i: 0.05, 500)
        assert not watch.alarms.raised


def test_an_overdrawn_account() -> None:
    watch, name = Watch(), "account_overdrawn"
    watch.account.book(-30.0, 1.0)
    assert watch.account.overdrawn
    for _ in range(OVERDRAWN_STEPS - 1):
        assert not watch.step(outcome(0, 0))
    assert watch.step(outcome(0, 0)) == {name}
    assert "-26.0 plain steps" in watch.text(name)
    watch.account.overdrawn = False
    for _ in range(REPAID_STEPS - 1):
        assert watch.step(outcome(0, 0)) == {name}
    assert not watch.step(outcome(0, 0))
    for i in range(400):  # overdrawn for a moment, again and again
        watch.account.overdrawn = i % OVERDRAWN_STEPS != 0
        assert not watch.step(outcome(0, 0))
    assert watch.alarms.raised == {name: 1}


def test_steps_without_drafts_say_nothing() -> None:
    watch = Watch(model=0.9)
    for _ in range(500):
        watch.step(outcome(0, 0))
        watch.step()
    assert not watch.alarms.raised
    assert len(NAMES) == 5


@pytest.mark.parametrize(
    ("draft", "tokens", "found"),
    [
        (Draft.chain([1, 2, 3], "a"), (1, 2, 9), {"a": (2, 1)}),
        (Draft.chain([1, 2, 3], "a"), (1, 2, 3, 4), {"a": (3, 0)}),
        (Draft.chain([1, 2, 3], "a"), (1, 2), {"a": (2, 0)}),
        (Draft.chain([1, 2, 3], "a"), (9,), {"a": (0, 1)}),
        (EMPTY, (9,), {}),
        (Draft((1, 2, 3), (-1, 0, 1), (1.0,) * 3, ("a", "b", "b")), (1, 2, 9), {"a": (1, 0), "b": (1, 1)}),
        (Draft((1, 2, 3), (-1, -1, 1), (1.0,) * 3, ("a",) * 3), (2, 3, 4), {"a": (2, 0)}),
        (Draft((1, 2, 3), (-1, -1, 1), (1.0,) * 3, ("a", "b", "a")), (2, 9), {"a": (0, 2), "b": (1, 0)}),
        (
            Draft((1, 2), (-1, 0), (1.0,) * 2, ("a", "a"), (), ((("b", 0.5),), ())),
            (1, 3),
            {"a": (1, 1), "b": (1, 0)},
        ),
    ],
)
def test_what_came_true(draft: Draft, tokens: tuple[int, ...], found: dict[str, tuple[int, int]]) -> None:
    assert came_true(draft, tokens) == found


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    tokens, seen = [], set[tuple[int, int]]()
    for parent in parents:
        token = draw(st.integers(0, 2))
        while (parent, token) in seen:
            token += 1
        seen.add((parent, token))
        tokens.append(token)
    sources = tuple(draw(st.sampled_from("ab")) for _ in range(size))
    return Draft(tuple(tokens), tuple(parents), (1.0,) * size, sources)


@given(trees(), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_guesses_come_true_along_the_text(draft: Draft, tokens: list[int]) -> None:
    """Against the plain definition: the nodes below each node that the text went through."""
    expected: dict[str, list[int]] = {}
    at = ROOT
    for token in tokens:
        below = [node for node, parent in enumerate(draft.parents) if parent == at]
        for name in {draft.source[node] for node in below}:
            hit = any(draft.tokens[node] == token for node in below if draft.source[node] == name)
            expected.setdefault(name, [0, 0])[0 if hit else 1] += 1
        at = next((node for node in below if draft.tokens[node] == token), None)  # type: ignore[assignment]
        if at is None:
            break
    assert came_true(draft, tuple(tokens)) == {name: tuple(counts) for name, counts in expected.items()}
