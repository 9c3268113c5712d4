"""The demo model in fp32: every drafter, every pair and all, chain and tree, the same text as plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from paceline import LLM, Completion, SamplingParams, SpeculationParams
from tests import heads

QUESTION = "Write the numbers from one to six in words, then again: one, two, three"
NAMES = ("prediction", "suffix", "lookup", "recycle", "heads", "model")
CREWS = [*((name,) for name in NAMES), *combinations(NAMES, 2), NAMES]
TIE = 1e-3
"""fp32 sums in another order differ by about 1e-5 in a logit; below this gap of the best two either is right."""


@pytest.fixture(scope="module", params=["tree", "chain"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The demo model drafts for itself, in int8, and has heads that were never trained."""
    target = {"target_width": 576, "vocab_size": 49152}
    shape = replace(heads.EAGLE3, width=576, draft_vocab_size=1000, taps=(1, 14, 26), **target)
    directory = tmp_path_factory.mktemp("heads")
    heads.write(directory, *heads.published(heads.make(shape)))
    return LLM(
        "demo",
        draft="demo",
        heads=str(directory),
        drafters=NAMES,
        weights="fp32",
        draft_weights="int8",
        numerics="fast" if request.param == "tree" else "invariant",
        context=512,
        max_draft=6,
    )


def answers(llm: LLM, sampling: SamplingParams, speculation: SpeculationParams, size: int) -> list[Completion]:
    prompts = [llm.chat_prompt([{"role": "user", "content": f"{QUESTION} ({i})"}]) for i in range(size)]
    expected = "One, two, three, four, five, six. One, three, four, five, seven." * (not _is_plain(speculation))
    return llm.generate(prompts, sampling, speculation, prediction=expected or None)


def _is_plain(speculation: SpeculationParams) -> bool:
    return speculation.mode == "off" or "prediction" not in (speculation.drafters or NAMES)


def same(plain: Completion, other: Completion) -> bool:
    """Whether two answers are equal up to a near-tie of the target's."""
    for i, (a, b) in enumerate(zip(plain.token_ids, other.token_ids, strict=False)):
        if a != b:
            (_, best), (_, second) = plain.logprobs[i].top[:2]
            return best - second < TIE
    return len(plain.token_ids) == len(other.token_ids)


def check(llm: LLM, names: Sequence[str], temperature: float, size: int) -> int:
    sampling = SamplingParams(max_tokens=24, temperature=temperature, seed=11, logprobs=2)
    plain = answers(llm, sampling, SpeculationParams(mode="off"), size)
    drafted = answers(llm, sampling, SpeculationParams(mode="always", drafters=tuple(names), max_draft=6), size)
    assert all(same(a, b) for a, b in zip(plain, drafted, strict=True))
    if temperature > 0:  # a near-tie of the scores with their noise is not seen in the logits
        assert [a.token_ids for a in plain] == [b.token_ids for b in drafted]
    return sum(done.speculation.drafted for done in drafted)


def test_all_drafters(llm: LLM) -> None:
    for temperature, size in ((0.0, 1), (0.7, 3), (1.2, 2)):
        assert check(llm, NAMES, temperature, size) > 0


@pytest.mark.long
@pytest.mark.parametrize("names", CREWS, ids="+".join)
def test_every_pair(llm: LLM, names: tuple[str, ...]) -> None:
    turn = CREWS.index(names)
    sizes = [1 + (turn + i) % 8 for i in range(3)]
    drafted = [check(llm, names, t, size) for t, size in zip((0.0, 0.7, 1.2), sizes, strict=True)]
    assert sum(drafted) > 0
