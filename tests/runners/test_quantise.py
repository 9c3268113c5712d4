"""Packed weights: how far from the original they may be, whatever the original is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.errors import CorruptModel
from paceline.models import toy
from paceline.runners.openvino.quantise import GROUP, PRECISIONS, Packed, kind_of, pack, packed_bytes, packed_shapes

Floats = NDArray[np.float32]
SUBNORMAL = float(np.finfo(np.float16).smallest_subnormal)


def unpack(packed: Packed) -> NDArray[np.float64]:
    """The stored numbers, the slow way."""
    data: NDArray[Any] = packed.data
    if packed.kind == "fp32":
        return data.astype(np.float64)
    if packed.kind == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert packed.scale is not None
    if packed.kind == "int8":
        return data.astype(np.float64) * packed.scale.astype(np.float64)
    whole = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1).astype(np.int64)
    whole = np.where(whole > 7, whole - 16, whole)
    return whole * np.repeat(packed.scale.astype(np.float64), GROUP, axis=1)


def peaks(rows: Floats, group: int) -> NDArray[np.float64]:
    grouped = np.abs(rows.astype(np.float64)).reshape(len(rows), -1, group)
    return np.repeat(grouped.max(-1), group, axis=1)


def made(name: str) -> Floats:
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((6, 2 * GROUP)).astype(np.float32)
    return {
        "normal": normal,
        "zeros": np.zeros_like(normal),
        "constant": np.full_like(normal, -0.37),
        "one spike": np.where(np.arange(2 * GROUP) == 5, np.float32(80), normal * np.float32(1e-3)),
        "some rows zero": normal * (np.arange(6) % 2)[:, None].astype(np.float32),
        "large": normal * np.float32(1e4),
        "largest": np.clip(normal * np.float32(1e9), -65504, 65504),
        "small": normal * np.float32(1e-3),
        "coarse scales": normal * np.float32(1e-5),
        "scales near nothing": normal * np.float32(4e-6),
        "below any scale": normal * np.float32(1e-8),
        "denormal": normal * np.float32(1e-40),
        "each row of another size": normal * np.logspace(-9, 3, 6, dtype=np.float32)[:, None],
    }[name]


NAMES = [
    "normal",
    "zeros",
    "constant",
    "one spike",
    "some rows zero",
    "large",
    "largest",
    "small",
    "coarse scales",
    "scales near nothing",
    "below any scale",
    "denormal",
    "each row of another size",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "top"), [("int8", 127), ("int4", 7)])
def test_whole_numbers_are_within_half_a_step(kind: Any, top: int, name: str) -> None:
    rows = made(name)
    packed = pack(kind, rows)
    shape, dtype, scales = packed_shapes(kind, rows.shape)
    assert packed.scale is not None
    assert (packed.data.shape, packed.data.dtype, packed.scale.shape) == (shape, dtype, scales)
    assert packed.scale.dtype == np.float16
    assert (packed.scale > 0).all() and np.isfinite(packed.scale).all()
    found = unpack(packed)
    # Half a step; the scale itself is rounded to fp16 (2^-11 of the largest number), or to fp16's smallest steps.
    bound = peaks(rows, rows.shape[1] if kind == "int8" else GROUP) / top * (0.5 + top * 2**-11) + SUBNORMAL
    assert (np.abs(found - rows) <= bound).all()


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_within_half_of_its_last_place(name: str) -> None:
    rows = made(name)
    found = unpack(pack("bf16", rows))
    assert (np.abs(found - rows) <= np.abs(rows) * 2.0**-8 + 1e-40).all()


def test_bf16_rounds_to_even_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F00_0000, 4096, np.uint32) | rng.integers(0, 2, 4096, np.uint32) << 31
    halves = (bits & 0xFFFF_0000) | 0x8000
    rows = np.concatenate([bits, halves]).view(np.float32).reshape(64, -1)
    expected = torch.tensor(rows).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(pack("bf16", rows).data, expected)


def test_fp32_is_not_touched() -> None:
    rows = made("each row of another size")
    np.testing.assert_array_equal(pack("fp32", rows).data, rows)
    assert pack("fp32", np.asfortranarray(rows)).data.flags.c_contiguous
    np.testing.assert_array_equal(pack("fp32", rows[0]).data, rows[0])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 65505.0, 3e38])
def test_what_fits_no_scale_is_refused(kind: Any, bad: float) -> None:
    rows = made("normal").copy()
    rows[3, 7] = bad
    with pytest.raises(CorruptModel, match=r"int8 and int4 hold numbers up to 65504.*bf16 or fp32") as raised:
        pack(kind, rows)
    assert "\n" not in str(raised.value)


def test_nibbles_lie_low_first() -> None:
    rows = np.tile(np.arange(-7, 9, dtype=np.float32).clip(-7, 7), GROUP // 16)[None]
    packed = pack("int4", rows)
    assert packed.scale is not None and packed.scale.tolist() == [[1.0]]
    assert packed.data[0, :2].tolist() == [0xA9, 0xCB]  # -7 = 9, -6 = 10, -5 = 11, -4 = 12
    np.testing.assert_array_equal(unpack(packed), rows)


@pytest.mark.parametrize("kind", PRECISIONS)
def test_a_piece_is_packed_as_the_whole_is(kind: Any) -> None:
    rows = made("each row of another size")
    whole, pieces = pack(kind, rows), [pack(kind, rows[i : i + 2]) for i in (0, 2, 4)]
    np.testing.assert_array_equal(np.concatenate([p.data for p in pieces]), whole.data)
    if whole.scale is not None:
        np.testing.assert_array_equal(np.concatenate([p.scale for p in pieces if p.scale is not None]), whole.scale)


@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
def test_rows_of_a_table(kind: Any) -> None:
    packed, ids = pack(kind, made("normal")), np.array([4, 0, 4, 5])
    found = packed.rows(ids)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, unpack(packed)[ids].astype(np.float32))


def test_which_form_a_tensor_takes() -> None:
    for wanted in PRECISIONS:
        assert kind_of("layers.0.q", (64, 2 * GROUP), wanted) == wanted
        assert kind_of("layers.0.q.bias", (64,), wanted) == "fp32"
        assert kind_of("norm", (2 * GROUP,), wanted) == "fp32"
        other = "int8" if wanted == "int4" else wanted
        assert kind_of("layers.0.q", (64, GROUP + 64), wanted) == other
        assert {kind_of(name, (64, GROUP), wanted) for name in ("embed", "head", "positions", "heads.3.out")} == {other}


def test_sizes() -> None:
    config = replace(toy.CONFIGS["qwen"], width=128, ffn_width=192)
    vectors = sum(4 * shape[0] for shape in config.tensor_shapes().values() if len(shape) == 1)
    matrices = [(name, *shape) for name, shape in config.tensor_shapes().items() if len(shape) == 2]
    cells = sum(rows * columns for _, rows, columns in matrices)
    assert packed_bytes(config, "fp32") == vectors + 4 * cells == 4 * config.parameters
    assert packed_bytes(config, "bf16") == vectors + 2 * cells
    assert packed_bytes(config, "int8") == vectors + cells + sum(2 * rows for _, rows, _ in matrices)
    expected = vectors
    for name, rows, columns in matrices:
        byte = name in ("embed", "head") or name.endswith("down") or columns % GROUP
        expected += rows * columns + 2 * rows if byte else rows * columns // 2 + 2 * rows * columns // GROUP
    assert packed_bytes(config, "int4") == expected
