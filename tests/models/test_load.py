"""Loading models: what is dear to parse is parsed once, and what is damaged is said by type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from paceline.errors import CorruptModel, ModelNotFound, PacelineError
from paceline.models import gguf, load, toy
from paceline.models.source import Source, resolve
from tests import tiny
from tests.models.converter import convert

ALPHABET = sorted(ByteLevel.alphabet())
TOKENS = [*ALPHABET, "th", "the", "Ġthe", "<|end|>"]
TABLES = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 1) + [3],
    "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"],
    "tokenizer.ggml.eot_token_id": len(TOKENS) - 1,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
CASES = ("llama-llama3", "gemma3", "gpt2", "llama-tied")

Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Made:
    kept: dict[str, Path] = {}

    def get(case: str) -> Path:
        if case not in kept:
            overrides = {"sliding_window_pattern": 6, "query_pre_attn_scalar": 32} if case == "gemma3" else {}
            directory = tiny.make(case, tmp_path_factory.mktemp(case), **overrides)
            kept[case] = convert(directory, directory / "model.gguf", tokens=TABLES)
        return kept[case]

    return get


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def source(path: Path) -> Source:
    return resolve(str(path))


def tables(kept: Path) -> Path:
    (found,) = kept.rglob("tables-*.json")
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_was_cached_is_what_was_read(case: str, files: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = gguf.read_checkpoint(files(case))
    first = load.load(source(files(case)))

    def refuse(path: Path) -> None:
        raise AssertionError("the tables are parsed again")

    with monkeypatch.context() as patch:
        patch.setattr(load, "open_gguf", refuse)
        patch.setattr(gguf, "open_gguf", refuse)
        second = load.load(source(files(case)))
    for model in (first, second):
        assert model.checkpoint is not None
        assert model.checkpoint.config == direct.config
        assert type(model.checkpoint.config.biases) is frozenset
        assert hash(model.checkpoint.config) == hash(direct.config)
        assert model.checkpoint.weights.fingerprint == direct.weights.fingerprint
        assert model.tokenizer.encode("the other") == [TOKENS.index(t) for t in ("the", "Ġ", "o", "the", "r")]
        assert model.tokenizer.chat_template == TABLES["tokenizer.chat_template"]
        assert model.eos_ids == (2, len(TOKENS) - 1)
        np.testing.assert_array_equal(model.checkpoint.weights.read("layers.1.q"), direct.weights.read("layers.1.q"))
        pieces = model.checkpoint.weights.rows("embed", 5000)
        np.testing.assert_array_equal(np.concatenate(list(pieces)), direct.weights.read("embed"))


def test_a_file_is_known_by_its_content(files: Made, tmp_path: Path, kept: Path) -> None:
    load.load(source(files("llama-tied")))
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(files("llama-tied").read_bytes())
    load.load(source(moved))
    assert len(list(kept.rglob("tables-*.json"))) == 1
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    load.load(source(moved))
    assert len(list(kept.rglob("tables-*.json"))) == 2


def damaged(whole: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "cut": whole[:-1],
        "longer": whole + b" ",
        "other digit": whole.replace(b'"width": 64', b'"width": 65'),
        "no digest": whole[32:],
        "not text": b"\xff" * 100,
        "other json": b"{}",
    }


def test_damaged_tables_are_parsed_again(files: Made, kept: Path) -> None:
    expected = load.load(source(files("gpt2")))
    path = tables(kept)
    whole = path.read_bytes()
    for name, content in damaged(whole).items():
        assert content != whole, name
        path.write_bytes(content)
        found = load.load(source(files("gpt2")))
        assert found.checkpoint is not None and expected.checkpoint is not None
        assert found.checkpoint.config == expected.checkpoint.config
        assert path.read_bytes() == whole


def test_progress_is_told_where_there_is_some(files: Made) -> None:
    told: list[tuple[str, int, int]] = []
    for _ in range(2):
        load.load(source(files("gpt2")), lambda *step: told.append(step))
    assert told == [("reading tables", 0, 1), ("reading tables", 1, 1)]


def test_a_file_that_is_not_there(tmp_path: Path, kept: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"absent\.gguf cannot be read \(No such file or directory\)") as raised:
        load.load(source(tmp_path / "absent.gguf"))
    assert "\n" not in str(raised.value)
    assert not kept.exists()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"{}", b"GGUF" + bytes(100)])
def test_a_damaged_file_leaves_nothing_in_the_cache(content: bytes, tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(PacelineError, match=r"bad\.gguf"):
        load.load(source(path))
    assert [p for p in kept.rglob("*") if p.is_file() and p.suffix != ".lock"] == []


def test_a_file_spoilt_in_its_tables_is_loaded_or_refused(files: Made, tmp_path: Path) -> None:
    data = files("llama-tied").read_bytes()
    end, path, rng, refused = data.index(b"blk.0"), tmp_path / "bad.gguf", np.random.default_rng(3), 0
    for round in range(100):
        spoilt = bytearray(data[:20_000])  # what is cut is missed only by files that parse
        for at in rng.integers(8, end, 1 + round % 3):
            spoilt[at] = rng.integers(256)
        path.write_bytes(bytes(spoilt) + data[20_000:])
        reason = refusal(path)
        refused += reason is not None
        assert reason is None or "\n" not in reason
    assert refused > 10


def refusal(path: Path) -> str | None:
    try:
        load.load(source(path))
    except PacelineError as error:
        return str(error)
    return None


def test_a_file_that_changes_under_its_tables(files: Made, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(files("gpt2").read_bytes())
    model = load.load(source(path))
    path.write_bytes(files("llama-tied").read_bytes())
    assert model.checkpoint is not None
    with pytest.raises(PacelineError, match=r"model\.gguf"):
        model.checkpoint.weights.read("embed")


def test_a_directory(tmp_path: Path) -> None:
    directory = tiny.make("qwen2", tmp_path / "model")
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load.load(source(directory))
    toy.tokenizer()._backend.save(str(directory / "tokenizer.json"))
    model = load.load(source(directory))
    assert model.checkpoint is not None and not model.unsupported
    assert model.checkpoint.config.family == "qwen2"
    assert model.eos_ids[0] == 2
    config = json.loads((directory / "config.json").read_text()) | {"architectures": ["FalconForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    model = load.load(source(directory))
    assert model.checkpoint is None
    assert "FalconForCausalLM" in model.unsupported
    (directory / "config.json").write_text("{")
    with pytest.raises(CorruptModel, match=r"config\.json"):
        load.load(source(directory))


def test_a_directory_without_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="empty") as raised:
        load.load(source(tmp_path / "empty"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", toy.NAMES)
def test_toys(name: str, kept: Path) -> None:
    model = load.load(resolve(f"toy:{name}"))
    assert (model.checkpoint is None) == (name.removesuffix("-draft") in toy.LAWS)
    assert model.eos_ids == (toy.EOS_ID,)
    assert not model.unsupported
    assert not kept.exists()
