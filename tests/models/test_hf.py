"""Reading Hugging Face directories: a plain numpy decoder over what was read must say what transformers says."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from paceline.models.hf import read_checkpoint
from tests import tiny
from tests.models.reference import decode


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(case: str) -> Path:
        if case not in made:
            made[case] = tiny.make(case, tmp_path_factory.mktemp(case))
        return made[case]

    return get


@pytest.fixture
def copy(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy that a test may spoil."""
    return lambda case: Path(shutil.copytree(saved(case), tmp_path / case))


def edit(directory: Path, **keys: Any) -> Path:
    """Set keys of config.json; `...` removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    return directory


@pytest.mark.parametrize("case", tiny.CASES)
def test_says_what_transformers_says(case: str, saved: Callable[[str], Path]) -> None:
    ids = tiny.tokens(70)
    expected = tiny.oracle(saved(case))(ids)
    assert expected.std() > 1
    np.testing.assert_allclose(decode(read_checkpoint(saved(case)), ids), expected, atol=2e-4)


@pytest.mark.parametrize("case", tiny.CASES)
def test_every_tensor_has_its_shape_and_comes_in_pieces(case: str, saved: Callable[[str], Path]) -> None:
    model = read_checkpoint(saved(case))
    for name, shape in model.config.tensor_shapes().items():
        whole = model.weights.read(name)
        assert whole.shape == shape
        assert whole.dtype == np.float32
        assert whole.flags.c_contiguous and whole.flags.owndata
        pieces = list(model.weights.rows(name, at_most=7 * 4 * math.prod(shape[1:])))
        assert all(len(piece) == 7 for piece in pieces[:-1])
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_a_piece_has_at_least_a_row(saved: Callable[[str], Path]) -> None:
    assert {len(p) for p in read_checkpoint(saved("llama")).weights.rows("embed", at_most=1)} == {1}


@pytest.mark.parametrize("case", ["llama", "phi3", "gpt2", "gemma3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_and_shards_are_read_exactly(case: str, dtype: str, tmp_path: Path) -> None:
    half = read_checkpoint(tiny.make(case, tmp_path / "half", dtype=dtype, sharded=True))
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 1
    for name, tensor in tiny.model(case).named_parameters():
        if name.endswith(("wte.weight", "embed_tokens.weight")):
            expected = tensor.detach().to(getattr(torch, dtype)).float().numpy()
            np.testing.assert_array_equal(half.weights.read("embed"), expected)
    ids = tiny.tokens(20)
    np.testing.assert_allclose(decode(half, ids), tiny.oracle(tmp_path / "half")(ids), atol=2e-4)


OLD_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": None, "head_dim": ...},
    "llama-linear": {
        "rope_parameters": ...,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "llama-llama3": {
        "rope_parameters": ...,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"rope_parameters": ..., "rope_theta": 1e6, "layer_types": ..., "sliding_window": 16},
    "qwen2-window": {"rope_parameters": ..., "rope_theta": 1e4, "layer_types": ...},
    "gemma3": {"rope_parameters": ..., "layer_types": ..., "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma3-linear": {
        "rope_parameters": ...,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3-partial": {"rope_parameters": ..., "partial_rotary_factor": 0.5, "rope_theta": 1e4, "rope_scaling": None},
    "mistral": {"architectures": ..., "rope_parameters": ..., "rms_norm_eps": ..., "tie_word_embeddings": ...},
}


@pytest.mark.parametrize("case", OLD_KEYS)
def test_older_keys_mean_the_same(case: str, saved: Callable[[str], Path], copy: Callable[[str], Path]) -> None:
    old = edit(copy(case), **OLD_KEYS[case])
    assert read_checkpoint(old).config == read_checkpoint(saved(case)).config
    ids = tiny.tokens(40)
    np.testing.assert_array_equal(tiny.oracle(old)(ids), tiny.oracle(saved(case))(ids))


def test_end_tokens_of_both_files_are_joined(copy: Callable[[str], Path]) -> None:
    directory = edit(copy("llama"), eos_token_id=7)
    (directory / "generation_config.json").write_text('{"eos_token_id": [9, 7, 8], "bos_token_id": 4}')
    config = read_checkpoint(directory).config
    assert config.eos_ids == (9, 7, 8)
    assert config.bos_id == 1
    (directory / "generation_config.json").unlink()
    assert read_checkpoint(directory).config.eos_ids == (7,)


def test_a_model_without_its_stem_is_read(saved: Callable[[str], Path], copy: Callable[[str], Path]) -> None:
    directory = rename(copy("gpt2"), lambda name: name.removeprefix("transformer."))
    np.testing.assert_array_equal(
        read_checkpoint(directory).weights.read("layers.1.k"), read_checkpoint(saved("gpt2")).weights.read("layers.1.k")
    )


@pytest.mark.parametrize("equal", [True, False])
def test_a_stored_head_of_a_tied_model_counts_if_it_differs(equal: bool, copy: Callable[[str], Path]) -> None:
    directory = copy("qwen2")
    tensors = load_file(directory / "model.safetensors")
    embed = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embed if equal else embed[::-1].copy()}, directory / "model.safetensors")
    model, ids = read_checkpoint(directory), tiny.tokens(9)
    assert model.config.tied_head == equal
    np.testing.assert_allclose(decode(model, ids), tiny.oracle(directory)(ids), atol=2e-4)


def test_a_tied_model_may_store_only_its_head(saved: Callable[[str], Path], copy: Callable[[str], Path]) -> None:
    directory = rename(copy("qwen2"), lambda name: name.replace("model.embed_tokens", "lm_head"))
    expected = read_checkpoint(saved("qwen2")).weights.read("embed")
    np.testing.assert_array_equal(read_checkpoint(directory).weights.read("embed"), expected)


def test_saved_buffers_of_older_versions_are_no_matter(copy: Callable[[str], Path]) -> None:
    directory = copy("gpt2")
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {"transformer.h.0.attn.bias": np.ones(4, np.uint8)}, directory / "model.safetensors")
    assert read_checkpoint(directory).config.layers == 3


def test_fingerprint_is_of_the_content(saved: Callable[[str], Path], copy: Callable[[str], Path]) -> None:
    original, directory = read_checkpoint(saved("llama-tied")).weights.fingerprint, copy("llama-tied")
    assert read_checkpoint(directory).weights.fingerprint == original
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    changed = read_checkpoint(directory).weights.fingerprint
    described = read_checkpoint(edit(directory, rms_norm_eps=1e-5)).weights.fingerprint
    assert len({original, changed, described}) == 3


def rename(directory: Path, name: Callable[[str], str]) -> Path:
    path = directory / "model.safetensors"
    save_file({name(key): value for key, value in load_file(path).items()}, path)
    return directory


UNSUPPORTED = [
    ("llama", {"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM.*paceline\\[torch\\]"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ("llama", {"architectures": ..., "model_type": "mamba"}, "mamba"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, "yarn"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [], "long_factor": []}}, "longrope"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by layer type"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act gelu"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "sliding-window"),
    ("gemma3", {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("qwen2", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config gptq"),
    ("llama-tied", {"attention_bias": False}, "q_proj.bias"),
]


@pytest.mark.parametrize(("case", "keys", "named"), UNSUPPORTED)
def test_what_the_description_cannot_say_is_refused_by_name(
    case: str, keys: dict[str, Any], named: str, copy: Callable[[str], Path]
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_checkpoint(edit(copy(case), **keys))


CORRUPT = [
    ("llama", {"hidden_size": ...}, "hidden_size"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_attention_heads": "4"}, "num_attention_heads"),
    ("llama", {"num_attention_heads": True}, "num_attention_heads"),
    ("llama", {"num_key_value_heads": 3}, "divide"),
    ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps"),
    ("llama", {"rope_parameters": {"rope_theta": "big"}}, "rope_theta"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
    ("llama", {"eos_token_id": "2"}, "token id"),
    ("llama", {"head_dim": 15}, "rotate"),
    ("llama", {"vocab_size": 302}, "embed_tokens.weight is \\[301, 64\\]; \\[302, 64\\]"),
    ("llama", {"num_hidden_layers": 5}, "lacks .*layers.3.* and 13 more"),
    ("gemma3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma3", {"rope_parameters": {"rope_theta": 1e6}}, "by layer type"),
    ("gpt2", {"n_head": 5}, "5 heads"),
    ("phi3", {"intermediate_size": 111}, "gate_up_proj"),
    ("qwen2", {"tie_word_embeddings": False}, "lacks lm_head.weight"),
]


@pytest.mark.parametrize(("case", "keys", "named"), CORRUPT)
def test_an_impossible_description_is_corrupt(
    case: str, keys: dict[str, Any], named: str, copy: Callable[[str], Path]
) -> None:
    with pytest.raises(CorruptModel, match=named):
        read_checkpoint(edit(copy(case), **keys))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_config_that_is_no_json_object(text: str, copy: Callable[[str], Path]) -> None:
    directory = copy("llama")
    (directory / "config.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"config\.json"):
        read_checkpoint(directory)


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1, -5000])
def test_a_truncated_file(length: int, copy: Callable[[str], Path]) -> None:
    path = copy("llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptModel, match=r"model\.safetensors"):
        read_checkpoint(path.parent)


def test_offsets_outside_the_file(copy: Callable[[str], Path]) -> None:
    path = copy("llama") / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"]["data_offsets"] = [2**40, 2**40 + 256]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CorruptModel, match=r"model\.safetensors"):
        read_checkpoint(path.parent)


def test_numbers_that_are_no_weights(copy: Callable[[str], Path]) -> None:
    path = copy("llama") / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.weight": np.ones(64, np.int8)}, path)
    with pytest.raises(CorruptModel, match=r"norm\.weight is stored as I8"):
        read_checkpoint(path.parent)


def test_nothing_there(tmp_path: Path, copy: Callable[[str], Path]) -> None:
    with pytest.raises(ModelNotFound, match="absent is not a directory"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        read_checkpoint(tmp_path)
    directory = copy("llama")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"no model\.safetensors"):
        read_checkpoint(directory)


def test_pickles_are_not_opened(copy: Callable[[str], Path]) -> None:
    directory = copy("llama")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="is a pickle"):
        read_checkpoint(directory)


def test_shards_that_are_not_there(tmp_path: Path) -> None:
    directory = tiny.make("llama", tmp_path / "model", sharded=True)
    shard = sorted(directory.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ModelNotFound, match=shard.name):
        read_checkpoint(directory)
    index = directory / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}')
    with pytest.raises(CorruptModel, match="not a file beside it"):
        read_checkpoint(directory)
    index.write_text('{"weight_map": {}}')
    with pytest.raises(CorruptModel, match="weight_map"):
        read_checkpoint(directory)


def test_a_name_that_is_not_there(saved: Callable[[str], Path]) -> None:
    with pytest.raises(CorruptModel, match="no tensor for head"):
        read_checkpoint(saved("qwen2")).weights.read("head")


@pytest.mark.parametrize("case", tiny.FAMILIES)
def test_any_value_of_any_key_is_read_or_refused(case: str, copy: Callable[[str], Path]) -> None:
    directory = copy(case)
    given = json.loads((directory / "config.json").read_text())
    extra = ("rope_scaling", "rope_theta", "head_dim", "sliding_window_pattern", "quantization_config")
    values: list[Any] = [None, [], [None], {}, {"rope_type": []}, {"full_attention": 3}, "x", -1, 2**40, 1e99, True]
    for key, value in itertools.product((*given, *extra), values):
        edit(directory, **(given | {key: value}))
        with contextlib.suppress(ModelError):
            read_checkpoint(directory)
