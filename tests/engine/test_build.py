"""From options to an engine: what "auto" comes to, what does not go together, and what it takes of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, Options, SamplingParams, SpeculationParams
from paceline.engine import memory
from paceline.engine.build import build, choose
from paceline.engine.memory import MemoryPlan, kv_bytes, mib, plan, weight_bytes
from paceline.engine.options import CONTEXT, SMALL, settle_weights
from paceline.errors import OptionError, OutOfMemory, UnsupportedModel
from paceline.models import toy
from paceline.models.config import ModelConfig
from paceline.runners.openvino.quantise import packed_bytes
from paceline.runners.toy import ToyRunner
from tests import tiny

SMALL_CONFIG = toy.CONFIGS["llama"]

FREE = ("grammar", "prediction", "suffix", "lookup", "recycle")
"""Drafters that need nothing."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with the toys' tokenizer beside it."""
    path = tmp_path_factory.mktemp("tiny")
    tiny.make("llama", path)
    toy.tokenizer()._backend.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("runner", "cuda", "auto, openvino, torch"),
        ("numerics", "exact", "fast, invariant"),
        ("weights", "int2", "int4, int8, bf16, fp32"),
        ("draft_weights", "int2", "int4, int8, bf16, fp32"),
        ("head_weights", "bf16", "int4, int8"),
        ("kv", "u4", "f16, u8"),
        ("max_draft", -1, "0 to 64"),
        ("max_draft", 65, "0 to 64"),
        ("sequences", 0, "1 to 1024"),
        ("prefill_rows", 3, "4 to 65536"),
        ("context", 1, "2 to 16777216"),
        ("draft_vocabulary", 255, "256 to 16777216"),
        ("epsilon", -0.001, "0 to 0.1"),
        ("epsilon", 0.11, "0 to 0.1"),
        ("epsilon", float("nan"), "0 to 0.1"),
    ],
)
def test_options_say_what_is_allowed(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(OptionError) as error:
        Options("demo", **{option: value})
    assert str(error.value) == f"{option} is {value!r}; allowed: {allowed}"


def test_weights_that_are_not_named_follow_the_size() -> None:
    big = replace(SMALL_CONFIG, width=4096, ffn_width=16384, layers=32)
    assert big.parameters > SMALL > SMALL_CONFIG.parameters
    assert settle_weights(None, SMALL_CONFIG, is_toy=False) == "int8"
    assert settle_weights(None, big, is_toy=False) == "int4"
    assert settle_weights(None, SMALL_CONFIG, is_toy=True) == "fp32"
    assert settle_weights("bf16", big, is_toy=True) == "bf16"


def test_a_toy_that_is_a_formula() -> None:
    chosen = choose(Options("toy:chaos", sequences=3))
    assert (chosen.runner, chosen.weights, chosen.context) == ("toy", "fp32", 512)
    assert chosen.drafters == FREE
    assert chosen.memory is None
    assert chosen.kv_tokens == 3 * 512
    engine = build(chosen)
    assert isinstance(engine.target, ToyRunner)
    assert engine.pool.num_blocks == 3 * 512 // 8
    for given in ({"runner": "openvino"}, {"weights": "int8"}):
        with pytest.raises(OptionError, match="toy:chaos is a formula"):
            choose(Options("toy:chaos", **given))


def test_a_toy_that_is_a_transformer() -> None:
    chosen = choose(Options("toy:llama", draft="toy:llama-draft", context=128))
    assert (chosen.runner, chosen.weights, chosen.draft_weights, chosen.context) == ("openvino", "fp32", "fp32", 128)
    assert chosen.drafters == ("grammar", "prediction", "suffix", "lookup", "model"), "recycle is for trees"
    fast = choose(Options("toy:llama", draft="toy:llama-draft", numerics="fast"))
    assert fast.drafters == (*FREE, "model")
    plan = chosen.memory
    assert plan is not None
    assert plan.kv == plan.draft_kv == kv_bytes(SMALL_CONFIG, "fp32", 8 * 128) == chosen.kv_tokens * 2 * 2 * 2 * 16 * 4
    assert choose(Options("toy:llama", speculate=False)).drafters == ()


def test_a_formula_may_draft_for_a_transformer_and_the_other_way_round() -> None:
    sampling = SamplingParams(max_tokens=10, temperature=1.0, seed=1)
    always = SpeculationParams(mode="always")
    for target, draft in (("toy:llama", "toy:table"), ("toy:table", "toy:llama")):
        llm = LLM(target, draft=draft, drafters=("model",), draft_vocabulary=None)
        [done] = llm.generate("ab", sampling, always)
        assert done.speculation.drafted > 0
        assert done.token_ids == llm.generate("ab", sampling, SpeculationParams(mode="off"))[0].token_ids


def test_what_does_not_go_together(directory: Path) -> None:
    with pytest.raises(OptionError, match="context is 513; allowed: 2 to 512, which this model was trained for"):
        choose(Options("toy:chaos", context=513))
    with pytest.raises(OptionError, match="'model', which needs a draft model"):
        build(choose(Options("toy:chaos", drafters=("model",))))
    with pytest.raises(OptionError, match="drafters has 'oracle'"):
        choose(Options("toy:chaos", drafters=("oracle",), speculate=False))
    with pytest.raises(OptionError, match="runner is 'torch' and the model is a toy"):
        choose(Options("toy:llama", runner="torch"))
    with pytest.raises(OptionError, match="kv is 'u8', which the torch runner does not have"):
        choose(Options(str(directory), runner="torch", kv="u8"))
    with pytest.raises(OptionError, match="head_weights is 'int4', which the toy runner does not have"):
        choose(Options("toy:chaos", head_weights="int4"))
    with pytest.raises(OptionError, match="head_weights is 'int8' and weights is 'fp32'"):
        choose(Options("toy:llama", head_weights="int8"))
    with pytest.raises(OptionError, match="the torch runner allows: fp32, bf16"):
        build(choose(Options(str(directory), runner="torch", weights="int8")))


def test_directories_run_on_either_runner(directory: Path) -> None:
    sampling, always = SamplingParams(max_tokens=12), SpeculationParams(mode="always", max_draft=4)
    exact = LLM(str(directory), weights="fp32", context=64)
    assert (exact.chosen.runner, exact.engine.context) == ("openvino", 64)
    torch = LLM(str(directory), runner="torch", context=64)
    assert (torch.chosen.runner, torch.chosen.weights, torch.chosen.memory) == ("torch", "fp32", None)
    texts = {llm.generate("aabaab", sampling, wish)[0].token_ids for llm in (exact, torch) for wish in (always,)}
    assert len(texts) == 1


def test_architectures_that_only_transformers_knows(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    (other / "config.json").write_text('{"architectures": ["OddForCausalLM"], "model_type": "odd"}')
    assert choose(Options(str(other))).runner == "torch"
    with pytest.raises(UnsupportedModel):
        choose(Options(str(other), runner="openvino"))


def test_memory_is_planned_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    config, draft = replace(SMALL_CONFIG, context=100_000), SMALL_CONFIG
    planned = plan(config, "int8", 4096, 256, (draft, "int4"))
    assert planned.weights == weight_bytes(config, "int8")
    assert planned.kv == kv_bytes(config, "int8", 4096) == 4096 * 2 * 2 * 2 * 16 * 2
    assert planned.draft_kv == kv_bytes(draft, "int4", 4096)
    assert planned.total == sum(
        (planned.weights, planned.kv, planned.draft_weights, planned.draft_kv, planned.logits, planned.program)
    )
    assert planned.remembered == 0
    assert plan(config, "int8", 4096, 256).draft_weights == 0
    replace(planned, free=planned.total).require()
    with pytest.raises(OutOfMemory, match=r"about [0-9]+ MiB of memory are needed \(weights 0 MiB, KV 1 MiB"):
        replace(planned, free=planned.total - 1).require()
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 20)
    with pytest.raises(OutOfMemory, match="1 MiB are free"):
        build(choose(Options("toy:llama")))


def test_tables_that_are_looked_up_are_not_laid_out() -> None:
    tied = replace(SMALL_CONFIG, width=128, tied_head=True)
    untied = replace(tied, tied_head=False)
    table, scales = tied.vocab_size * 128, 2 * tied.vocab_size
    assert weight_bytes(untied, "int8") == weight_bytes(tied, "int8") > packed_bytes(tied, "int8")
    for config in (tied, untied):
        saved = weight_bytes(config, "int8") - weight_bytes(config, "int8", "int4")
        assert saved == table + 4 * scales - table // 2 - 4 * 3 * table // 128
    looked_up = weight_bytes(untied, "fp32") - weight_bytes(tied, "fp32")
    assert looked_up == 4 * table, "as read, and not as laid out"


def test_what_is_chosen_is_planned_and_built(directory: Path) -> None:
    usual, small = (choose(Options(str(directory), context=64, weights="int8", kv=kv)) for kv in ("f16", "u8"))
    assert usual.memory is not None and small.memory is not None
    assert small.memory.kv < usual.memory.kv
    runner = build(small).target
    assert small.memory.kv == small.kv_tokens // runner.info.block_size * runner.info.block_bytes


def test_plans_that_fit() -> None:
    assert MemoryPlan(1, 2, 3, 4, 5, 6, 7, 28).fits
    assert mib(3 << 20) == "3 MiB"


def test_little_memory_makes_a_smaller_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    config: ModelConfig = SMALL_CONFIG
    monkeypatch.setattr(memory, "free_bytes", lambda: 4 * kv_bytes(config, "fp32", 2048))
    assert choose(Options("toy:llama", sequences=8)).kv_tokens == 2048
    assert choose(Options("toy:llama", sequences=2)).kv_tokens == 1024
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    assert choose(Options("toy:llama", sequences=8)).kv_tokens == 512, "one sequence has to fit"


def test_the_context_of_long_models_is_not_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy.CONFIGS, "llama", replace(SMALL_CONFIG, context=100_000))
    assert choose(Options("toy:llama")).context == CONTEXT
    assert choose(Options("toy:llama", context=50_000)).context == 50_000


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_what_speculation_may_lose_is_the_accounts_to_keep(epsilon: float) -> None:
    governor: Any = build(choose(Options("toy:chaos", epsilon=epsilon))).governor
    before = governor.account.balance
    governor.account.book(won=-1.0, took=10.0)
    assert governor.account.balance == pytest.approx(before - 1.0 + 10 * epsilon)


def test_a_context_too_short_to_measure_runs_unmeasured() -> None:
    llm = LLM("toy:llama", context=40, sequences=1)
    assert not llm.engine.governor.costs.known
    assert len(llm.generate("ab", SamplingParams(max_tokens=5))[0].token_ids) <= 5
