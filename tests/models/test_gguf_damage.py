"""GGUF files that are damaged, hostile or not for us: refused by type and in one line, never believed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Type
from gguf.quants import quantize

from paceline.errors import CorruptModel, ModelNotFound, PacelineError, UnsupportedModel
from paceline.models.gguf import open_gguf, read_checkpoint
from tests.models.converter import DIM, HEADS, KV, SEPARATE, SHAPES, WIDTH, Typed, small, small_keys, write

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
    for round in range(300):
        spoilt = bytearray(data)
        for at in rng.integers(0, begin if round % 5 else len(data), 1 + round % 3):
            spoilt[at] = rng.integers(256)
        path.write_bytes(spoilt)
        reason = refusal(path)
        refused += reason is not None
        assert reason is None or "\n" not in reason
    assert refused > 60


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
