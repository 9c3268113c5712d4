"""Chosen acceptance is met, at the cost of real drafts, and the text stays what it is."""

from __future__ import annotations

import math

import pytest

from paceline import LLM, SamplingParams
from paceline.bench.modes import PLAIN, Modes, listed
from paceline.bench.synthetic import install
from paceline.bench.trials import Ask, Turn, take
from paceline.errors import OptionError

FIXED = listed("fixed:3")[0]


def drafted(rates: list[float], temperature: float = 0.0, **options: object) -> tuple[Turn, Turn]:
    """Return what plain decoding says, and what is said with drafts of this acceptance."""
    llm = LLM("toy:ngram", **{"draft": "toy:ngram-draft", "drafters": ("model",), "keep_costs": False} | options)
    sampling = SamplingParams(240, temperature, seed=1, ignore_eos=True)
    asks = [Ask("a", (97 + i, 98, 99), sampling) for i in range(6)]
    modes = Modes(llm, sampling)
    plain = take(modes, PLAIN, asks, 1)
    install(llm, rates, {ask.prompt: done.token_ids for ask, done in zip(asks, plain.done, strict=True)})
    return plain, take(modes, FIXED, asks, 1)


@pytest.mark.parametrize("rates", [[0.8, 0.5, 0.25], [0.6]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_what_was_asked_for_by_depth(rates: list[float], temperature: float) -> None:
    plain, found = drafted(rates, temperature)
    assert [done.token_ids for done in found.done] == [done.token_ids for done in plain.done]
    reports = [done.speculation for done in found.done]
    reached = sum(report.steps - report.plain_steps for report in reports)
    for depth in range(3):
        accepted = sum(report.accepted_at[depth] for report in reports)
        rate = rates[min(depth, len(rates) - 1)]
        # Four deviations of a binomial, and the last drafts of a text, which are shorter.
        slack = 4 * math.sqrt(rate * (1 - rate) / reached) + 2 * len(reports) / reached
        assert abs(accepted / reached - rate) < slack, (depth, accepted, reached)
        reached = accepted


def test_always_right_and_never_right() -> None:
    _, right = drafted([1.0])
    _, wrong = drafted([0.0])
    for done in right.done:
        assert done.speculation.accepted == done.speculation.verified > 100
    for done in wrong.done:
        assert done.speculation.accepted == 0 < done.speculation.verified


def test_other_rates_are_not_met() -> None:
    _, found = drafted([0.5])
    reports = [done.speculation for done in found.done]
    share = sum(r.accepted_at[0] for r in reports) / sum(r.steps for r in reports)
    assert not 0.6 < share < 1, "the bounds above can be missed"


def test_the_drafter_is_asked_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.drafters.model import ModelDrafter

    asked = 0
    inside = ModelDrafter.propose

    def propose(self, seqs, limits):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return inside(self, seqs, limits)

    monkeypatch.setattr(ModelDrafter, "propose", propose)
    _, found = drafted([0.5])
    assert asked >= sum(done.speculation.steps - done.speculation.plain_steps for done in found.done)


@pytest.mark.parametrize("rates", [[], [1.1], [-0.1], [0.5, 2.0], [float("nan")]])
def test_rates_that_are_none_are_refused(rates: list[float]) -> None:
    llm = LLM("toy:ngram", draft="toy:ngram-draft", drafters=("model",), keep_costs=False)
    with pytest.raises(OptionError, match="allowed: numbers from 0 to 1"):
        install(llm, rates, {})


def test_without_a_drafter_there_is_no_cost() -> None:
    with pytest.raises(OptionError, match="acceptance needs a drafter"):
        install(LLM("toy:ngram", drafters=(), keep_costs=False), [0.5], {})
