"""GGUF files, laid out as llama.cpp's converter does: of tiny Hugging Face checkpoints, and of keys and tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
_NAMES = {
    "input_layernorm": "attn_norm",
    "ln_1": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "ln_2": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "attn.c_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "attn.c_attn": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {
    "model.embed_tokens": "token_embd",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "model.norm": "output_norm",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
}


class Typed:
    """A value that is not of the type that a converter would give it."""

    def __init__(self, kind: gguf.GGUFValueType, value: Any) -> None:
        self.kind, self.value = kind, value


def write(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Array], kinds: Mapping[str, Kind] = {}) -> Path:
    """Write a file; integers become uint32 and floats float32. `kinds` are those of tensors given in blocks."""
    writer = gguf.GGUFWriter(path, str(keys["general.architecture"]))
    for key, value in keys.items():
        if isinstance(value, Typed):
            writer.add_key_value(key, value.value, value.kind)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif key != "general.architecture":
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add[type(value)](key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor), raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(directory: Path, path: Path, kind: Kind = Kind.F32, tokens: Mapping[str, Any] = {}) -> Path:
    """Write a checkpoint of `tests.tiny` as GGUF; `kind` is that of its matrices, `tokens` are further keys."""
    config = json.loads((directory / "config.json").read_text())
    tensors, kinds = {}, {}
    for name, tensor in mapped(config, load_file(directory / "model.safetensors")).items():
        if tensor.ndim == 2 and kind != Kind.F32:
            tensors[name], kinds[name] = quantize(tensor, kind), kind
        else:
            tensors[name] = tensor
    return write(path, keys(config) | tokens, tensors, kinds)


def keys(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config["model_type"]
    arch = ARCHITECTURES.get(kind, kind)
    found = {
        "context_length": config.get("max_position_embeddings", config.get("n_positions")),
        "embedding_length": config.get("hidden_size", config.get("n_embd")),
        "block_count": config.get("num_hidden_layers", config.get("n_layer")),
        "attention.head_count": config.get("num_attention_heads", config.get("n_head")),
        "feed_forward_length": config.get("intermediate_size", 4 * config.get("n_embd", 0)),
    }
    if arch == "gpt2":
        found["attention.layer_norm_epsilon"] = config["layer_norm_epsilon"]
    else:
        found |= _rotary_keys(config)
    named = {f"{arch}.{key}": value for key, value in found.items()}
    named |= {f"tokenizer.ggml.{role}_token_id": config[f"{role}_token_id"] for role in ("bos", "eos")}
    return {"general.architecture": arch} | named


def _rotary_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": dim,
        "attention.value_length": dim,
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(dim * rope.get("partial_rotary_factor", 1)),
    }
    some_narrow = "sliding_attention" in config.get("layer_types", ["sliding_attention"])
    if config.get("sliding_window") and config.get("use_sliding_window", True) and some_narrow:
        found["attention.sliding_window"] = config["sliding_window"]
    if rope["rope_type"] == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    return found


def mapped(config: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Array]:
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    found = {}
    for name, tensor in tensors.items():
        stem, _, end = name.rpartition(".")
        if stem in _TOP:
            renamed = _TOP[stem]
        else:
            _, _, index, part = stem.split(".", 3)
            renamed = f"blk.{index}.{((_NAMES | _GEMMA) if arch == 'gemma3' else _NAMES)[part]}"
            if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
                tensor = tensor[interleaved(len(tensor), dim)]
            if arch == "gpt2" and tensor.ndim == 2:
                tensor = tensor.T
        if arch == "gemma3" and "norm" in renamed:
            tensor = tensor + np.float32(1)
        found[f"{renamed}.{end}"] = tensor
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = divisors(**rope, dim=config["head_dim"])
    return found


def interleaved(rows: int, dim: int) -> list[int]:
    """The order of rows in which llama.cpp wants rotary heads: pairs that turn together are neighbours."""
    return [head + half * dim // 2 + i for head in range(0, rows, dim) for i in range(dim // 2) for half in (0, 1)]


def divisors(
    *,
    dim: int,
    rope_theta: float,
    factor: float,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_position_embeddings: int = 8192,
    rope_type: str = "llama3",
) -> NDArray[np.float32]:
    """What the converter stores of Llama 3's scaling."""
    found = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope_theta ** (i / dim)
        if wavelength < original_max_position_embeddings / high_freq_factor:
            found.append(1.0)
        elif wavelength > original_max_position_embeddings / low_freq_factor:
            found.append(factor)
        else:
            turns = original_max_position_embeddings / wavelength
            smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


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
