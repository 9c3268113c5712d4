"""Packed weights: how far from the original they may be, whatever the original is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.errors import CorruptModel, OptionError
from paceline.models import toy
from paceline.runners.openvino.quantise import (
    GROUP,
    PRECISIONS,
    Packed,
    kind_of,
    pack,
    packed_bytes,
    packed_shapes,
    settle_head,
    usual_head,
)

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
    assert packed.zero is not None
    whole = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1).astype(np.int64)
    scale, zero = (np.repeat(array.astype(np.float64), GROUP, axis=1) for array in (packed.scale, packed.zero))
    return (whole - zero) * scale


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
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_scales_are_numbers_and_zeros_stay_zero(kind: Any, name: str) -> None:
    rows = made(name)
    packed = pack(kind, rows)
    assert packed.scale is not None
    assert [(array.shape, array.dtype) for array in packed.arrays] == packed_shapes(kind, rows.shape)
    assert packed.scale.dtype == np.float16
    assert (packed.scale > 0).all() and np.isfinite(packed.scale).all()
    assert packed.zero is None or (packed.zero <= 15).all()
    assert (unpack(packed)[rows == 0] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_int8_is_within_half_a_step(name: str) -> None:
    rows = made(name)
    # Half a step; the scale itself is rounded to fp16 (2^-11 of the largest number), or to fp16's smallest steps.
    bound = peaks(rows, rows.shape[1]) / 127 * (0.5 + 127 * 2**-11) + SUBNORMAL
    assert (np.abs(unpack(pack("int8", rows)) - rows) <= bound).all()


def plain(rows: Floats) -> NDArray[np.float64]:
    """What rounding between the lowest and the highest number of each group makes of it, in fp64."""
    groups = rows.reshape(-1, GROUP).astype(np.float64)
    low, high = np.minimum(groups.min(1, keepdims=True), 0), np.maximum(groups.max(1, keepdims=True), 0)
    step = np.maximum((high - low) / 15, 1e-300)
    zero = np.rint(-low / step)
    return ((np.clip(np.rint(groups / step) + zero, 0, 15) - zero) * step).reshape(rows.shape)


def weighted(rows: Floats, found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each group's squared error, that of large numbers counted for more."""
    exact = rows.reshape(-1, GROUP).astype(np.float64)
    error: NDArray[np.float64] = (exact**2 * (found.reshape(-1, GROUP) - exact) ** 2).sum(-1)
    return error


@pytest.mark.parametrize("name", NAMES)
def test_int4_is_within_a_step(name: str) -> None:
    rows = made(name)
    groups = rows.reshape(-1, GROUP).astype(np.float64)
    step = (np.maximum(groups.max(1), 0) - np.minimum(groups.min(1), 0)) / 15
    # Half a step, and what the zero, rounded to a whole step, and the fitted scale take at the ends.
    bound = np.repeat(1.1 * step + 8 * SUBNORMAL, GROUP).reshape(rows.shape)
    assert (np.abs(unpack(pack("int4", rows)) - rows) <= bound).all()


@pytest.mark.parametrize("name", ["normal", "one spike", "some rows zero", "large", "small"])
def test_int4_is_no_worse_than_plain_rounding(name: str) -> None:
    rows = made(name)
    found, known = weighted(rows, unpack(pack("int4", rows))), weighted(rows, plain(rows))
    in_half = 2.0**-21 * (rows.reshape(-1, GROUP).astype(np.float64) ** 4).sum(-1)  # of the scale, rounded to fp16
    assert (found <= known * 1.02 + in_half).all()


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy", "exponential"])
def test_int4_gains_by_its_fitted_scale(draw: str) -> None:
    rng = np.random.default_rng(3)
    rows = np.clip(getattr(rng, draw)(size=(64, 8 * GROUP)), -40, 40).astype(np.float32)
    assert weighted(rows, unpack(pack("int4", rows))).sum() < 0.98 * weighted(rows, plain(rows)).sum()


def test_numbers_of_one_sign_use_all_sixteen_steps() -> None:
    rows = np.tile(np.arange(16, dtype=np.float32), GROUP // 16)[None] * np.float32(0.25)
    for sign in (1, -1):
        packed = pack("int4", sign * rows)
        np.testing.assert_array_equal(unpack(packed), sign * rows)
        assert packed.zero is not None and packed.zero[0, 0] == (0 if sign > 0 else 15)


def test_groups_that_fit_are_kept_as_they_are() -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(-7, 9, (4, 2 * GROUP)).astype(np.float32) * np.float32(2.0**-7)
    rows[:, ::GROUP], rows[:, 1::GROUP] = 8 * np.float32(2.0**-7), -7 * np.float32(2.0**-7)
    np.testing.assert_array_equal(unpack(pack("int4", rows)), rows)


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
    packed = pack("int4", np.tile(np.arange(-7, 9, dtype=np.float32), GROUP // 16)[None])
    assert packed.data[0, :3].tolist() == [0x10, 0x32, 0x54]
    assert packed.scale is not None and packed.scale[0, 0] == 1
    assert packed.zero is not None and packed.zero[0, 0] == 7


@pytest.mark.parametrize("kind", PRECISIONS)
def test_a_piece_is_packed_as_the_whole_is(kind: Any) -> None:
    rows = made("each row of another size")
    whole, pieces = pack(kind, rows), [pack(kind, rows[i : i + 2]) for i in (0, 2, 4)]
    for array, parts in zip(whole.arrays, zip(*(piece.arrays for piece in pieces), strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), array)


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


def test_a_head_may_have_a_form_of_its_own() -> None:
    shape = (64, 2 * GROUP)
    assert [kind_of(name, shape, "int4", "int4") for name in ("embed", "head", "layers.0.q")] == [
        "int8",
        "int4",
        "int4",
    ]
    assert [kind_of(name, shape, "int8", "int4") for name in ("embed", "head", "layers.0.q")] == [
        "int8",
        "int4",
        "int8",
    ]
    wide = replace(toy.CONFIGS["qwen"], width=GROUP, tied_head=True)
    assert settle_head(wide, "int4", None) is settle_head(wide, "int4", "int8") is None
    assert settle_head(wide, "int8", "int4") == "int4"
    with pytest.raises(OptionError, match="in groups of 128, and the model is 64 wide; allowed: int8"):
        settle_head(replace(wide, width=64), "int4", "int4")
    with pytest.raises(OptionError, match="head_weights is 'int8' and weights is 'bf16'"):
        settle_head(wide, "bf16", "int8")
    assert usual_head(wide, "int4") == "int4"
    assert usual_head(replace(wide, width=64), "int4") is usual_head(wide, "int8") is usual_head(wide, "fp32") is None
    table = wide.vocab_size * GROUP
    assert packed_bytes(wide, "int4", "int4") - packed_bytes(wide, "int4") == table // 2 + 3 * table // GROUP
    untied = replace(wide, tied_head=False)
    shrunk = packed_bytes(untied, "int4") - packed_bytes(untied, "int4", "int4")
    assert shrunk == table // 2 + 2 * wide.vocab_size - 3 * table // GROUP


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
        expected += rows * columns + 2 * rows if byte else rows * columns // 2 + 3 * rows * columns // GROUP
    assert packed_bytes(config, "int4") == expected
