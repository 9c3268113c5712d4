"""Keys and values in bytes: the same promises as in fp16, in about half the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from paceline import LLM, SamplingParams
from paceline.engine.memory import kv_bytes
from paceline.errors import OptionError
from paceline.models.toy import RandomWeights
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span
from paceline.runners.openvino.quantise import KVForm, Precision
from paceline.runners.openvino.runner import OpenVINORunner
from tests.runners.test_numerics import ALWAYS, BLOCKS, LISTS, OFF, PREFIX, ROWS, STORY, TINY, Bench, run, step, table


@pytest.fixture(scope="module", autouse=True)
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("packed")))
        yield


def made(weights: Precision, kv: KVForm = "u8", dim: int = 64) -> OpenVINORunner:
    config = replace(TINY, head_dim=dim)
    return OpenVINORunner(Checkpoint(config, RandomWeights(config)), weights, kv=kv)


@pytest.fixture(scope="module", params=["int4", "int8", "bf16"])
def bench(request: pytest.FixtureRequest, packed_once: None) -> Bench:
    return Bench.of(made(request.param))


def test_rows_of_a_pass_are_as_rows_alone(bench: Bench) -> None:
    for rows in ROWS:
        found = run(bench.runner, step(bench.text, PREFIX, rows, table(1)), fill=bench.text)
        assert bench.same(found), f"{rows} rows"


def test_rows_beside_others_are_as_rows_alone(bench: Bench) -> None:
    others = [step(bench.text[::-1], PREFIX, 12, table(2)), Span.causal(bench.text[::-1], 0, table(3), [3])]
    for rows in (1, 8):
        found = run(bench.runner, step(bench.text, PREFIX, rows, table(4)), *others, fill=bench.text)
        assert bench.same(found), f"{rows} rows"


def test_single_tokens_may_be_moved(bench: Bench) -> None:
    """Every second one of a draft, into a block of which the other slots hold something else."""
    runner, text, blocks = bench.runner, bench.text, table(5)
    drafted = np.repeat(text[PREFIX : PREFIX + 4], 2)
    runner.forward([Span.causal(text[:PREFIX], 0, blocks, [])])
    for row in range(4):  # the right token at its position, then a wrong one beside it in the same block
        place = blocks[0] * 32 + PREFIX + row
        run(runner, step(text, PREFIX + row, 1, blocks))
        runner.move(np.array([place]), np.array([11 * 32 + 2 * row]))
        runner.forward([Span.causal([int(drafted[row]) ^ 1], PREFIX + row, blocks, [0], stepwise=True)])
        runner.move(np.array([11 * 32 + 2 * row]), np.array([place]))
    assert bench.same(run(runner, step(text, PREFIX + 4, 13, blocks)), 4)


@pytest.mark.parametrize(("dim", "slot"), [(32, 40), (64, 80), (80, 88), (128, 160)])
@pytest.mark.parametrize("kv", ["f16", "u8"])
def test_what_is_planned_is_what_the_plugin_takes(kv: KVForm, dim: int, slot: int) -> None:
    runner = made("int8", kv, dim)
    runner.allocate(3)
    config = replace(TINY, head_dim=dim)
    assert kv_bytes(config, "int8", 33, kv) == 2 * runner.info.block_bytes
    assert runner.info.block_bytes == 32 * 2 * 3 * 2 * (slot if kv == "u8" else 2 * dim)


def test_it_is_near_to_fp16_and_not_the_same(bench: Bench) -> None:
    other = Bench.of(made(bench.runner.info.weights, "f16"))  # type: ignore[arg-type]
    distance = np.abs(other.alone - bench.alone).max() / other.alone.std()
    assert 0 < distance < 1


def test_the_reference_keeps_its_own() -> None:
    with pytest.raises(OptionError, match="kv is 'u8' and weights is 'fp32'"):
        made("fp32")
    with pytest.raises(OptionError, match="kv is 'u8' and weights is 'fp32'"):
        LLM("toy:llama", kv="u8")
    with pytest.raises(OptionError, match="kv is 'u8', which the toy runner does not have"):
        LLM("toy:table", kv="u8")
    with pytest.raises(OptionError, match="kv is 'u4'; allowed: f16, u8"):
        LLM("demo", kv="u4")  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_demo_says_the_same_with_drafts_and_without(temperature: float) -> None:
    llm = LLM("demo", kv="u8", max_draft=8, context=512, keep_costs=False)
    assert llm.chosen.identity is None
    sampling = SamplingParams(max_tokens=32, temperature=temperature, seed=5, logprobs=1)
    plain = [llm.generate(prompt, sampling, OFF)[0] for prompt in (LISTS, STORY)]
    drafted = llm.generate([LISTS, STORY], sampling, ALWAYS)
    for one, expected in zip(drafted, plain, strict=True):
        assert (one.token_ids, one.logprobs) == (expected.token_ids, expected.logprobs)
    assert sum(done.speculation.accepted for done in drafted) > 0
    assert llm.engine.target.info.block_bytes * BLOCKS < kv_bytes_of_demo(llm)


def kv_bytes_of_demo(llm: LLM) -> int:
    assert llm.chosen.target.checkpoint is not None
    return kv_bytes(llm.chosen.target.checkpoint.config, "int8", 32 * BLOCKS) * 7 // 10
