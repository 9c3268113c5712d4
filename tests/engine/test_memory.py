"""What draft heads add to the memory plan, against heads that are there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.engine.memory import kv_bytes, plan, weight_bytes
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
    held = 0
    for name, values in random_heads(config).tensors.items():
        packed = pack(kind_of(name, values.shape, weights), values)
        held += packed.data.nbytes + (0 if packed.scale is None else packed.scale.nbytes)
    assert packed_bytes(config, weights) == held
    assert held < weight_bytes(config, weights) <= 2 * held, "as stored and as laid out, but for a table"


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
    assert 100 * passes[0] < passes[1] < 256 * passes[0], "rows are answered by the hundred, and run by any number"
    with pytest.raises(OutOfMemory, match="or go without a draft model or heads"):
        replace(both, free=both.total - 1).require()
