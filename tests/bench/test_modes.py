"""Modes learn nothing from each other, and no run replays the answer of an earlier one."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.bench import modes
from paceline.errors import OptionError

SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("plain", SpeculationParams(mode="off")),
        ("off", SpeculationParams(mode="off")),
        ("auto", SpeculationParams()),
        ("always", SpeculationParams(mode="always")),
        ("fixed:0", SpeculationParams(mode="always", max_draft=0)),
        ("fixed:8", SpeculationParams(mode="always", max_draft=8)),
        ("suffix", SpeculationParams(drafters=("suffix",))),
        ("suffix:auto", SpeculationParams(drafters=("suffix",))),
        ("suffix:4", SpeculationParams(mode="always", max_draft=4, drafters=("suffix",))),
        ("suffix+lookup:4", SpeculationParams(mode="always", max_draft=4, drafters=("suffix", "lookup"))),
    ],
)
def test_a_mode_is_what_its_requests_ask(text, params):
    assert modes.Mode.parse(text) == modes.Mode(text, params)


@pytest.mark.parametrize("text", ["", "fixed", "fixed:", "fixed:x", "fixed:-1", "fixed:65", "auto:4", "+:4"])
def test_what_is_no_mode_is_named(text):
    with pytest.raises(OptionError, match="is no mode"):
        modes.Mode.parse(text)


def asked(runs, llm, mode, prompt, again=False):
    """Return how many tokens were accepted; `again` is how a user would ask who has asked before."""
    if again:
        return llm.generate(prompt, SAMPLING, mode.params, tenant="same")[0].speculation.accepted
    return runs.run(mode, prompt).speculation.accepted


def test_a_prompt_that_comes_again_is_not_replayed():
    llm = LLM("toy:chaos", drafters=("suffix",), keep_costs=False)
    runs, always = modes.Modes(llm, SAMPLING), modes.Mode.parse("fixed:8")
    prompt = llm.chat_prompt([{"role": "user", "content": "abc"}])
    first, second = (asked(runs, llm, always, prompt) for _ in range(2))
    assert first == second < 5, "chaos says nothing twice"
    replayed = [asked(runs, llm, always, prompt, again=True) for _ in range(2)]
    assert replayed[1] > 20 > replayed[0], "the same tenant would be served its own answer"


def test_governors_are_apart_and_keep_what_they_learn():
    llm = LLM("toy:ngram", drafters=("suffix", "lookup"), keep_costs=False)
    runs = modes.Modes(llm, SAMPLING)
    left, right = modes.listed("suffix:4,suffix+lookup:4")

    def seen(mode):
        with runs.turn(mode):
            return sum(bin.seen for bin in llm.engine.governor.acceptance.calibration)

    runs.run(left, "abc")
    learnt = seen(left)
    assert learnt > 0 == seen(right)
    runs.run(right, "abc")
    assert seen(left) == learnt
    runs.run(left, "abd")
    assert seen(left) > learnt
    runs.unlearn(left)
    assert seen(left) == 0 < seen(right)


def test_a_mode_of_a_drafter_that_is_not_there_is_refused():
    runs = modes.Modes(LLM("toy:ngram", drafters=("suffix",), keep_costs=False), SAMPLING)
    with pytest.raises(OptionError, match="mode model:4 names the drafter 'model'; there are: suffix"):
        runs.run(modes.Mode.parse("model:4"), "abc")


def test_what_the_draft_model_has_read_is_forgotten():
    llm = LLM("toy:ngram", draft="toy:ngram-draft", drafters=("model",), keep_costs=False)
    runs, always = modes.Modes(llm, SAMPLING), modes.Mode.parse("fixed:4")
    prompt = list(range(97, 97 + 20))
    runs.run(always, prompt)
    [pool] = modes.draft_pools(llm)
    slot = pool.open(prompt)
    assert slot.length > 0, "it is cached until the next turn"
    pool.close(slot)
    with runs.turn(always):
        pool.check()
        slot = pool.open(prompt)
        assert slot.length == 0
        pool.close(slot)
