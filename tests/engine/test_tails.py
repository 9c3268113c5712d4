"""The same text where most tokens are unlikely and share their noise: near tokens are few here, and tails are heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow
from paceline.core.sampling import Shaping, law, shape
from paceline.core.types import Request, SpeculationParams
from tests.core import reference
from tests.core.strategies import narrowed

from .rig import CHAOS, PLAIN, RHYME, ask, crew, make
from .test_equality import PARAMS, prompts

REACH, MOST = 1.0, 4
KINDS = ("plain", "penalties", "bias", "top-p", "min-p")
LAWS = {"chaos": CHAOS, "rhyme": RHYME}


@pytest.fixture(autouse=True)
def few_near_tokens() -> Iterator[None]:
    with narrowed(REACH, MOST):
        yield


def plain_token(row: Any, shaping: Shaping, output: Sequence[int], noise: TargetNoise) -> int:
    p = shaping.params
    if p.temperature == 0 or p.top_k or p.top_p < 1 or p.min_p:
        return law(row, shaping, output).draw(noise)
    return reference.two_level_draw(shape(row, shaping, output).tolist(), p.temperature, noise, REACH, MOST)


def plain_text(target: Any, request: Request, length: int) -> list[int]:
    """What plain decoding says, however the text may end."""
    output: list[int] = []
    shaping = Shaping(request.sampling, request.prompt, (), request.bad_token_ids)
    while len(output) < length:
        text = [*request.prompt, *output]
        noise = TargetNoise(request.sampling.seed or 0, len(text))
        output.append(plain_token(target.logits(text), shaping, output, noise))
    return output


@pytest.mark.parametrize("temperature", [0.7, 1.2])
@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("drafters", ["none", "eager lookup", "model", "often right", "right", "tree", "wrong tree"])
def test_the_text_is_that_of_plain_decoding(drafters: str, length: int, temperature: float) -> None:
    for name, target in LAWS.items():
        rig = make(crew(target)[drafters](), target, length=length)
        asked = [
            ask(p, temperature=temperature, seed=7 * i + len(name), ignore_eos=True, **PARAMS[KINDS[i]])
            for i, p in enumerate(prompts(len(KINDS), length))
        ]
        for request, done in zip(asked, rig.run(asked), strict=True):
            assert list(done.token_ids) == plain_text(target, request, len(done.token_ids))
            assert done.finish_reason == "length"


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_sample_draw_plainly_where_nothing_was_sampled(rule: Any) -> None:
    rig, plain = (make(crew()["often right"](), length=4) for _ in range(2))
    asked = [ask(p, SpeculationParams(rule=rule), temperature=1.2, seed=i) for i, p in enumerate(prompts(4, 3))]
    alone = [ask(p, PLAIN, temperature=1.2, seed=i) for i, p in enumerate(prompts(4, 3))]
    assert [d.token_ids for d in rig.run(asked)] == [d.token_ids for d in plain.run(alone)]


def test_tails_are_drawn_from_and_guessed_by_who_knows_the_noise() -> None:
    """The suites above would pass without any token of a tail."""
    rig = make(crew()["right"](), length=4)
    asked = [ask(p, temperature=1.2, seed=i, ignore_eos=True, max_tokens=40) for i, p in enumerate(prompts(4, 8))]
    done = rig.run(asked)
    far = 0
    for request, found in zip(asked, done, strict=True):
        text = [*request.prompt, *found.token_ids]
        for end in range(len(request.prompt), len(text)):
            far += text[end] not in HostRow(CHAOS.logits(text[:end])).near(1.2).ids
    assert far > 20
    assert min(d.speculation.acceptance_length for d in done) > 3


def test_log_probabilities_are_those_of_the_whole_row() -> None:
    rig = make(crew()["often right"](), length=4)
    [request] = asked = [ask([1, 2, 3], temperature=1.2, seed=4, logprobs=6, ignore_eos=True)]
    [done] = rig.run(asked)
    text = list(request.prompt)
    for found in done.logprobs:
        row = CHAOS.logits(text).astype(np.float64)
        log_p = row - np.log(np.exp(row).sum())
        best = np.argsort(-log_p, kind="stable")[:6]
        assert found.logprob == pytest.approx(log_p[found.token_id], abs=1e-6)
        assert [token for token, _ in found.top] == best.tolist()
        assert [value for _, value in found.top] == pytest.approx(log_p[best].tolist(), abs=1e-6)
        text.append(found.token_id)
    assert text[3:] == list(done.token_ids)
