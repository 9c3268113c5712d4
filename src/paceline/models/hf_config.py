"""A Hugging Face config.json, old keys or new, as a ModelConfig.

Absent keys mean what they mean to transformers' config classes. A key that changes the mathematics in a way that
ModelConfig cannot say is an error: a model is read exactly or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.errors import CorruptModel, UnsupportedModel
from paceline.models.config import ModelConfig, RopeScaling

ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "GPT2LMHeadModel": "gpt2",
}
_MODEL_TYPES = {"gemma3_text": "gemma3"} | {family: family for family in ARCHITECTURES.values() if family != "gemma3"}
_ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_QKVO = frozenset("qkvo")
_MOST_LAYERS = 10_000
"""A damaged count must not become a list of a billion layers."""
_BASE: dict[str, Any] = {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
# What an absent key means to transformers' class for the family.
_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "gemma3": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "phi3": {"rms_norm_eps": 1e-5},
    "gpt2": {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
}
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def translate(path: Path, keys: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Return the model that `keys` (of config.json at `path`) and generation_config.json describe.

    Raises:
        UnsupportedModel: the architecture, or something it asks for, is not one that the graph builder knows.
        CorruptModel: a key is missing or has an impossible value.
    """
    found = _Keys(path, _family(path, keys), keys)
    found.refuse("quantization_config", "attn_logit_softcapping", "final_logit_softcapping")
    found.refuse("use_bidirectional_attention", "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    tokens = _Tokens(found, generation)
    return _gpt2(found, tokens) if found.family == "gpt2" else _rotary(found, tokens)


def _family(path: Path, keys: Mapping[str, Any]) -> str:
    named = keys.get("architectures")
    if isinstance(named, list) and named:
        family, name = ARCHITECTURES.get(str(named[0])), str(named[0])
    else:
        name = str(keys.get("model_type"))
        family = _MODEL_TYPES.get(name)
    if family is None:
        raise UnsupportedModel(
            f"{path}: the architecture {name} is not one of {', '.join(ARCHITECTURES)}; "
            "the torch runner can run it: pip install 'paceline[torch]'"
        )
    return family


@dataclass(frozen=True, slots=True)
class _Keys:
    """A config's values, with the family's defaults and checks."""

    path: Path
    family: str
    given: Mapping[str, Any]

    def get(self, key: str) -> Any:
        if self.family == "gpt2" and _GPT2_NAMES.get(key) in self.given:
            return self.given[_GPT2_NAMES[key]]
        return self.given.get(key, _DEFAULTS[self.family].get(key, _BASE.get(key)))

    def section(self, key: str) -> dict[str, Any]:
        return self.check_section(key, self.get(key))

    def check_section(self, key: str, value: Any) -> dict[str, Any]:
        if value is not None and not isinstance(value, dict):
            raise self.corrupt(f"{key} is {value!r}; an object is needed")
        return value or {}

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        most = _MOST_LAYERS if key == "num_hidden_layers" else 2**31 - 1
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise self.corrupt(f"{key} is {value!r}; an integer from 1 to {most} is needed")
        return value

    def number(self, key: str) -> float:
        return self.check_number(key, self.get(key))

    def check_number(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.corrupt(f"{key} is {value!r}; a positive number is needed")
        return float(value)

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.get(key):
                raise self.unsupported(f"{key} {_short(self.get(key))}")

    def corrupt(self, what: str) -> CorruptModel:
        return CorruptModel(f"{self.path}: {what}")

    def unsupported(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.path}: this {self.family} model asks for {what}, which the built-in runner does not know; "
            "the torch runner may: pip install 'paceline[torch]'"
        )


def _short(value: Any) -> str:
    return str(value.get("quant_method", "")) if isinstance(value, dict) else str(value)


class _Tokens:
    """End and begin tokens; chat models often name more of them in generation_config.json."""

    def __init__(self, keys: _Keys, generation: Mapping[str, Any]) -> None:
        eos = (*_ids(keys, generation.get("eos_token_id")), *_ids(keys, keys.get("eos_token_id")))
        bos = (*_ids(keys, keys.get("bos_token_id")), *_ids(keys, generation.get("bos_token_id")))
        self.eos: tuple[int, ...] = tuple(dict.fromkeys(eos))
        self.bos = bos[0] if bos else None


def _ids(keys: _Keys, value: Any) -> Iterable[int]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) for i in found):
        raise keys.corrupt(f"{value!r} is not a token id or a list of them")
    return found


def _activation(keys: _Keys, key: str) -> Literal["silu", "gelu_tanh"]:
    name = str(keys.get(key))
    if name not in _ACTIVATIONS:
        raise keys.unsupported(f"{key} {name}")
    return _ACTIVATIONS[name]


def _gpt2(keys: _Keys, tokens: _Tokens) -> ModelConfig:
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if width % heads:
        raise keys.corrupt(f"a width of {width} cannot be split over {heads} heads")
    return ModelConfig(
        family="gpt2",
        vocab_size=keys.size("vocab_size"),
        width=width,
        layers=keys.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        ffn_width=keys.size("n_inner", 4 * width),
        context=keys.size("max_position_embeddings"),
        norm="layer",
        norm_epsilon=keys.number("layer_norm_epsilon"),
        activation=_activation(keys, "activation_function"),
        gated_ffn=False,
        rope_theta=None,
        attention_scale=1.0 if keys.get("scale_attn_weights") is False else None,
        tied_head=bool(keys.get("tie_word_embeddings")),
        eos_ids=tokens.eos,
        bos_id=tokens.bos,
        biases=frozenset({"q", "k", "v", "o", "up", "down"}),
    )


def _rotary(keys: _Keys, tokens: _Tokens) -> ModelConfig:
    width, heads, gemma = keys.size("hidden_size"), keys.size("num_attention_heads"), keys.family == "gemma3"
    head_dim = keys.size("head_dim", width // heads)
    window, window_layers = _windows(keys)
    rope = _Rope.of(keys, head_dim)
    return ModelConfig(
        family=keys.family,
        vocab_size=keys.size("vocab_size"),
        width=width,
        layers=keys.size("num_hidden_layers"),
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn_width=keys.size("intermediate_size"),
        context=keys.size("max_position_embeddings"),
        norm_epsilon=keys.number("rms_norm_eps"),
        activation=_activation(keys, "hidden_activation" if gemma else "hidden_act"),
        rope_theta=rope.theta,
        rope_dim=rope.dim,
        rope_scaling=rope.scaling,
        local_rope_theta=rope.local_theta,
        attention_scale=keys.number("query_pre_attn_scalar") ** -0.5 if gemma else None,
        window=window,
        window_layers=window_layers,
        query_key_norm=keys.family in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=float(np.float32(width**0.5)) if gemma else 1.0,
        tied_head=bool(keys.get("tie_word_embeddings")),
        eos_ids=tokens.eos,
        bos_id=tokens.bos,
        biases=_biases(keys),
    )


def _biases(keys: _Keys) -> frozenset[str]:
    if keys.family == "qwen2":
        return frozenset("qkv")
    attention = bool(keys.get("attention_bias")) and keys.family in ("llama", "qwen3", "gemma3")
    ffn = bool(keys.get("mlp_bias")) and keys.family == "llama"
    return (_QKVO if attention else frozenset()) | (frozenset({"gate", "up", "down"}) if ffn else frozenset())


def _windows(keys: _Keys) -> tuple[int | None, tuple[int, ...]]:
    """Return the window and the layers that have it."""
    layers = keys.size("num_hidden_layers")
    if keys.family == "llama" or keys.get("sliding_window") is None:
        return None, ()
    if keys.family in ("qwen2", "qwen3") and not keys.get("use_sliding_window"):
        return None, ()
    window = keys.size("sliding_window")
    if keys.family in ("mistral", "phi3"):
        return window, tuple(range(layers))
    kinds = _layer_kinds(keys, layers)
    narrow = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return (window, narrow) if narrow else (None, ())


def _layer_kinds(keys: _Keys, layers: int) -> list[str]:
    kinds = keys.get("layer_types")
    if kinds is None:
        if keys.family == "gemma3":
            every = keys.size("sliding_window_pattern", 6)
            wide = [(i + 1) % every == 0 for i in range(layers)]
        else:
            first = keys.get("max_window_layers")
            if not isinstance(first, int):
                raise keys.corrupt(f"max_window_layers is {first!r}; an integer is needed")
            wide = [i < first for i in range(layers)]
        return ["full_attention" if w else "sliding_attention" for w in wide]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise keys.corrupt(f"layer_types must list {layers} kinds")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise keys.unsupported(f"layers of type {kind}")
    return kinds


@dataclass(frozen=True, slots=True)
class _Rope:
    theta: float
    dim: int | None
    scaling: RopeScaling | None
    local_theta: float | None = None

    @classmethod
    def of(cls, keys: _Keys, head_dim: int) -> _Rope:
        if keys.family == "gemma3":
            return cls._by_layer_type(keys, head_dim)
        given = keys.section("rope_scaling") or keys.section("rope_parameters")
        if "full_attention" in given:
            raise keys.unsupported("rotary embeddings by layer type")
        theta = given.get("rope_theta", keys.given.get("rope_theta", 10000.0))
        return cls(keys.check_number("rope_theta", theta), _rope_dim(keys, given, head_dim), _scaling(keys, given))

    @classmethod
    def _by_layer_type(cls, keys: _Keys, head_dim: int) -> _Rope:
        given = keys.section("rope_parameters")
        if given and not given.keys() & {"full_attention", "sliding_attention"}:
            raise keys.corrupt("rope_parameters of gemma3 are given by layer type: full_attention, sliding_attention")
        wide = keys.check_section("full_attention", given.get("full_attention")) | keys.section("rope_scaling")
        local = keys.check_section("sliding_attention", given.get("sliding_attention"))
        if _scaling(keys, local) is not None:
            raise keys.unsupported("scaled rotary embeddings in sliding-window layers")
        theta = wide.get("rope_theta", keys.given.get("rope_theta", 1e6))
        local_theta = local.get("rope_theta", keys.given.get("rope_local_base_freq", 1e4))
        return cls(
            keys.check_number("rope_theta", theta),
            _rope_dim(keys, wide, head_dim),
            _scaling(keys, wide),
            keys.check_number("rope_local_base_freq", local_theta),
        )


def _rope_dim(keys: _Keys, given: Mapping[str, Any], head_dim: int) -> int | None:
    part = given.get("partial_rotary_factor", keys.given.get("partial_rotary_factor"))
    part = 1.0 if part is None else keys.check_number("partial_rotary_factor", part)
    dim = int(head_dim * part)
    if dim % 2 or not 0 < dim <= head_dim:
        raise keys.corrupt(f"{dim} of {head_dim} dimensions of a head cannot rotate")
    if dim == head_dim:
        return None
    if keys.family != "phi3":
        raise keys.unsupported(f"partial_rotary_factor {part}")
    return dim


def _scaling(keys: _Keys, given: Mapping[str, Any]) -> RopeScaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3") or keys.family == "phi3":
        raise keys.unsupported(f"rotary scaling of the kind {kind}")
    factor = keys.check_number("rope scaling factor", given.get("factor"))
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = keys.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    return RopeScaling(
        "llama3",
        factor,
        keys.check_number("low_freq_factor", given.get("low_freq_factor")),
        keys.check_number("high_freq_factor", given.get("high_freq_factor")),
        int(keys.check_number("original_max_position_embeddings", original or keys.size("max_position_embeddings"))),
    )
