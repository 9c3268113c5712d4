"""Records: every value that is not allowed is refused by name, and ratios follow from counts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from paceline import errors
from paceline.core.types import (
    MODES,
    RULES,
    Request,
    SamplingParams,
    SpeculationParams,
    SpeculationReport,
    Verdict,
)
from paceline.errors import OptionError, PacelineError

NAN, INF = math.nan, math.inf

REFUSED = {
    "max_tokens": ("1 or more", [0, -1, NAN]),
    "temperature": ("0 (greedy) or a positive number", [-0.1, NAN, INF, -INF]),
    "top_p": ("above 0, up to 1", [0, -0.1, 1.0001, NAN, INF]),
    "top_k": ("0 (all) or more", [-1, NAN]),
    "min_p": ("0 to 1", [-0.01, 1.01, NAN, INF]),
    "seed": ("0 to 2^64-1", [-1, 2**64]),
    "stop": ("a tuple of non-empty strings", [("",), ("a", ""), "END"]),
    "bad_words": ("a tuple of non-empty strings", [("",), ("a", ""), "darn"]),
    "stop_token_ids": ("0 or more", [(-1,), (3, -1)]),
    "min_tokens": ("0 to max_tokens", [-1, 257]),
    "repetition_penalty": ("above 0 (1e-30 to 1e30)", [0, -1, NAN, INF, 1e31, 1e-31]),
    "presence_penalty": ("a finite number (to ±1e30)", [NAN, INF, -INF, 1e31, -1e31]),
    "frequency_penalty": ("a finite number (to ±1e30)", [NAN, INF, -INF, 1e31, -1e31]),
    "logit_bias": (
        "token ids from 0 with finite numbers (to ±1e30) or -inf",
        [{1: NAN}, {1: INF}, {1: 1e31}, {1: -1e31}, {-1: 1.0}, {0: 0.0, 1: NAN}],
    ),
    "logprobs": ("0 to 20, or none", [-1, 21, NAN]),
}

ACCEPTED = {
    "max_tokens": [1, 10**9],
    "temperature": [0, 5e-324, 2, 1e308],
    "top_p": [1e-9, 0.5, 1],
    "top_k": [0, 1, 10**9],
    "min_p": [0, 0.5, 1],
    "seed": [None, 0, 2**64 - 1],
    "stop": [(), ("a", "b"), ["a"]],
    "bad_words": [(), ("a", "b"), ["a"]],
    "stop_token_ids": [(), (0, 5)],
    "min_tokens": [0, 256],
    "repetition_penalty": [1e-30, 0.5, 1, 1e30],
    "presence_penalty": [0, -2, 2, 1e30, -1e30],
    "frequency_penalty": [0, -2, 2, 1e30, -1e30],
    "logit_bias": [{}, {0: 1.0}, {7: -INF}, {1: 1e30, 2: -1e30}],
    "logprobs": [None, 0, 20],
}


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [(option, value, allowed) for option, (allowed, values) in REFUSED.items() for value in values],
)
def test_sampling_params_refuse(option, value, allowed):
    """One line that names the option, what was given and what is allowed."""
    with pytest.raises(OptionError) as caught:
        SamplingParams(**{option: value})
    assert str(caught.value) == f"{option} is {value!r}; allowed: {allowed}"


@pytest.mark.parametrize(("option", "value"), [(option, v) for option, values in ACCEPTED.items() for v in values])
def test_sampling_params_accept(option, value):
    assert getattr(SamplingParams(**{option: value}), option) == value


def test_every_sampling_option_is_covered():
    options = {field.name for field in dataclasses.fields(SamplingParams)}
    assert options - {"ignore_eos"} == set(REFUSED) == set(ACCEPTED)


def test_min_tokens_may_reach_max_tokens():
    assert SamplingParams(max_tokens=3, min_tokens=3).min_tokens == 3
    with pytest.raises(OptionError, match="min_tokens is 4"):
        SamplingParams(max_tokens=3, min_tokens=4)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("mode", "fast", "speculation mode is 'fast'; allowed: auto, off, always"),
        ("mode", None, "speculation mode is None; allowed: auto, off, always"),
        ("rule", "exact", "rule is 'exact'; allowed: coupled, ratio, block, typical"),
        ("max_draft", -1, "max_draft is -1; allowed: 0 to 64"),
        ("max_draft", 65, "max_draft is 65; allowed: 0 to 64"),
        ("max_draft", NAN, "max_draft is nan; allowed: 0 to 64"),
    ],
)
def test_speculation_params_refuse(option, value, message):
    with pytest.raises(OptionError) as caught:
        SpeculationParams(**{option: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("max_draft", [None, 0, 64])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", RULES)
def test_speculation_params_accept(mode, rule, max_draft):
    params = SpeculationParams(mode=mode, rule=rule, max_draft=max_draft)
    assert params.lossless is (rule != "typical"), "only typical gives another text"


def test_defaults():
    sampling, speculation = SamplingParams(), SpeculationParams()
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (256, 0.0, 1.0, 0)
    assert (speculation.mode, speculation.rule, speculation.lossless) == ("auto", "coupled", True)
    assert Request((1, 2)) == Request((1, 2), SamplingParams(), SpeculationParams(), ())


def test_records_are_frozen():
    for record, field in [(SamplingParams(), "seed"), (SpeculationParams(), "rule"), (Verdict((), 1), "token")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, 0)


def test_report_ratios():
    report = SpeculationReport(steps=4, plain_steps=1, drafted=12, verified=10, accepted=6)
    assert report.acceptance_length == 2.5
    assert report.coverage == 1.2


def test_an_empty_report_has_no_ratios():
    report = SpeculationReport()
    assert (report.acceptance_length, report.coverage) == (0.0, 0.0)
    assert SpeculationReport(drafted=3).coverage == 0.0


def test_one_except_catches_every_mistake():
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(kinds) == 13
    assert all(issubclass(kind, PacelineError) for kind in kinds)
    assert issubclass(OptionError, ValueError)
    assert all(kind.__name__ in errors.__doc__ for kind in kinds)
