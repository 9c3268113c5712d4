"""What draft heads add to the memory plan, against heads that are there."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from paceline.drafters.history import TENANT_TOKENS, History
from paceline.engine.memory import HISTORY_TOKEN, kv_bytes, plan, weight_bytes
from paceline.errors import OutOfMemory
from paceline.models.heads import HeadsConfig
from paceline.models.toy import CONFIGS
from paceline.runners.openvino.heads import OpenVINOStepHead
from paceline.runners.openvino.quantise import PRECISIONS, Precision, kind_of, pack, packed_bytes
from tests.runners.heads_reference import random_heads

EAGLE = HeadsConfig(
    kind="eagle3",
    layout="SafeAILab",
    width=128,
    target_width=96,
    vocab_size=259,
    draft_vocab_size=97,
    taps=(0, 1, 2),
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_width=256,
)
MEDUSA = HeadsConfig("medusa", "FasterDecoding", 128, 128, 259, 259, (2,), count=3, depth=1)
TARGET = CONFIGS["llama"]


@pytest.mark.parametrize("config", [EAGLE, replace(EAGLE, own_embed=True), MEDUSA])
@pytest.mark.parametrize("weights", PRECISIONS)
def test_weights_are_planned_as_they_are_packed(config: HeadsConfig, weights: Precision) -> None:
    held = laid_out = 0
    for name, values in random_heads(config).tensors.items():
        packed = pack(kind_of(name, values.shape, weights), values)
        held += (stored := sum(array.nbytes for array in packed.arrays))
        if name != "embed":
            copies = stored + 3 * (stored - packed.data.nbytes)
            laid_out += 8 * values.size if packed.kind == "bf16" else copies
    assert packed_bytes(config, weights) == held
    assert weight_bytes(config, weights) == held + laid_out


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_keys_and_values_are_planned_as_they_are_allocated(weights: Precision) -> None:
    head = OpenVINOStepHead(random_heads(EAGLE), lambda ids: np.zeros((len(ids), 128), np.float32), weights)
    assert kv_bytes(EAGLE, weights, 33) == 2 * head.block_bytes
    assert kv_bytes(MEDUSA, weights, 33) == 0


def test_heads_count_as_drafts_do() -> None:
    alone = plan(TARGET, "int8", 4096, 256)
    both = plan(TARGET, "int8", 4096, 256, (TARGET, "int4"), (EAGLE, "int8"))
    assert both.draft_weights == weight_bytes(TARGET, "int4") + weight_bytes(EAGLE, "int8")
    unread = 2048 * 3 * 96 * 4
    assert both.draft_kv == kv_bytes(TARGET, "int4", 4096) + kv_bytes(EAGLE, "int8", 4096) + unread
    for sequences, most in ((2, 2), (3, 2), (8, 2)):  # no more than the KV pool holds tokens
        more = plan(TARGET, "int8", 4096, 256, (TARGET, "int4"), (EAGLE, "int8"), sequences)
        assert more.draft_kv == both.draft_kv + (most - 1) * unread
    assert plan(TARGET, "int8", 4096, 256, heads=(MEDUSA, "int8"), sequences=8).draft_kv == 0
    assert (both.weights, both.kv) == (alone.weights, alone.kv)
    passes = [plan(TARGET, "int8", 4096, rows, heads=(MEDUSA, "int8")).logits for rows in (1, 256)]
    assert both.logits > alone.logits
    assert passes[0] < passes[1] < 256 * passes[0], "few rows are answered, and any number run"
    with pytest.raises(OutOfMemory, match="or go without a draft model or heads"):
        replace(both, free=both.total - 1).require()


def test_a_cut_head_is_there_as_it_was_copied_and_as_it_was_laid_out() -> None:
    for tied in (True, False):
        config = replace(TARGET, width=128, tied_head=tied)
        whole, cut = weight_bytes(config, "int4"), weight_bytes(config, "int4", cut=100)
        row = 128 + 2 + 3 * 2
        assert whole - config.vocab_size * row == cut - 100 * (row + 128 + 2)
        assert weight_bytes(config, "int4", cut=config.vocab_size) == whole


def test_rows_answers_and_layers_take_memory() -> None:
    one, many = (plan(TARGET, "int8", 4096, 256, sequences=n) for n in (1, 100))
    assert many.logits - one.logits == 2 * 4 * (200 - 64) * TARGET.vocab_size
    short = plan(TARGET, "int8", 128, 256)
    inner = 2 * TARGET.ffn_width if TARGET.gated_ffn else TARGET.ffn_width
    assert one.logits - short.logits == 4 * 128 * (5 * inner + 37 * TARGET.width)
    deep = replace(TARGET, layers=TARGET.layers + 8)
    assert plan(deep, "int8", 4096, 256).program - one.program == 6 << 20
    assert plan(TARGET, "int8", 4096, 256, (TARGET, "int8")).program > one.program, "two tokenizers, two graphs"


def test_what_drafters_remember_counts_where_they_draft() -> None:
    plans = [plan(TARGET, "int8", 512, 64, drafters=names) for names in ((), ("lookup",), ("suffix",))]
    assert [found.remembered for found in plans] == [0, 0, 65_536 * 400]
    both = plan(TARGET, "int8", 512, 64, drafters=("suffix", "recycle")).remembered
    assert both == 65_536 * 400 + TARGET.vocab_size * 1300, "a token's successors, of few tokens here"


def test_histories_take_no_more_than_is_planned() -> None:
    history, rng = History(), np.random.default_rng(0)
    tracemalloc.start()
    try:
        while len(history) < 0.9 * TENANT_TOKENS:
            history.add("", rng.zipf(1.3, 256).clip(0, 150_000).tolist())
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 * HISTORY_TOKEN < taken / len(history) < HISTORY_TOKEN
