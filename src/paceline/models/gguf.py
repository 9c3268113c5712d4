"""Reading a GGUF file: its configuration and its weights, unpacked a piece at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound, UnsupportedModel
from paceline.models.config import ModelConfig, RopeScaling
from paceline.models.gguf_blocks import unpack
from paceline.models.gguf_header import Header, StoredTensor, read_header
from paceline.models.weights import Checkpoint

ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
}

_TOP = {"embed": "token_embd.weight", "positions": "position_embd.weight", "head": "output.weight"}
_TOP |= {"norm": "output_norm.weight", "norm.bias": "output_norm.bias"}
_LAYERS_OF_27B = 62
_ROTATION = "attn_rot_embd"
"""Constants that older converters wrote."""
_LAYER = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attention_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "attention_post_norm": "post_attention_norm",
    "ffn_post_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


def open_gguf(path: Path) -> Header:
    """Read a file's header and tables; the tensors stay on disk.

    Raises:
        ModelNotFound: there is no such file.
        CorruptModel: it is not a GGUF file, or ends before its tables or its tensors do.
        UnsupportedModel: it is of a version that is not read.
    """
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file; give a .gguf file, a model directory or a hub id")
    header, size = read_header(path), path.stat().st_size
    end = max((tensor.end for tensor in header.tensors.values()), default=0)
    if end > size:
        raise CorruptModel(f"{path.name} is truncated: {size} bytes, tensors need {end}; download it again")
    return header


class Fields:
    """The metadata of a GGUF file, by key."""

    def __init__(self, header: Header, name: str) -> None:
        self._header, self._name = header, name

    def get(self, key: str, default: Any = None) -> Any:
        try:
            value = self._header.value(key)
        except UnicodeDecodeError as error:
            raise CorruptModel(f"{self._name}: metadata {key} cannot be read ({error}); download it again") from None
        return default if value is None else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CorruptModel(f"{self._name} has no metadata {key}; convert it again with a current converter")
        return value


def fingerprint(path: Path) -> str:
    """Return the digest of a file's content.

    Raises:
        ModelNotFound: there is no such file.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelNotFound(
            f"{path} cannot be read ({error.strerror}); give a .gguf file, a directory or a hub id"
        ) from None


def read_checkpoint(path: Path, header: Header | None = None) -> Checkpoint:
    """Read a GGUF file, given also its header where it has been read already.

    Raises:
        ModelNotFound, CorruptModel: as `open_gguf`; or tensors are missing or have another shape.
        UnsupportedModel: the architecture, or something it needs, is not known here.
    """
    header = header or open_gguf(path)
    try:
        config = _config(_Keys.of(Fields(header, path.name), path.name), header.tensors)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CorruptModel(f"{path.name}: metadata makes no sense ({error}); download it again") from None
    return Checkpoint(config, GGUFWeights(path, header, config))


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of an architecture, with checks."""

    fields: Fields
    arch: str
    name: str

    @classmethod
    def of(cls, fields: Fields, name: str) -> _Keys:
        arch = str(fields.need("general.architecture"))
        if arch not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{name}: architecture {arch!r} is not supported from GGUF (known: {', '.join(ARCHITECTURES)}); "
                "give its Hugging Face directory with --runner torch"
            )
        return cls(fields, arch, name)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.arch}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        value = self.fields.need(f"{self.arch}.{key}") if default is None else self.get(key, default)
        if isinstance(value, list):
            raise UnsupportedModel(f"{self.name}: {key} differs by layer, which is not supported")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise CorruptModel(f"{self.name}: {key} is {value!r}; allowed: 0 to 2^31; download it again")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise CorruptModel(f"{self.name}: {key} is {value!r}; a positive number is needed: download it again")
        return float(value)

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.get(key):
                raise UnsupportedModel(f"{self.name}: {key} {self.get(key)!r} is not supported; use another model")


def _config(keys: _Keys, tensors: Mapping[str, StoredTensor]) -> ModelConfig:
    family, fields = ARCHITECTURES[keys.arch], keys.fields
    keys.refuse("attn_logit_softcapping", "final_logit_softcapping", "attention.scale", "attention.clamp_kqv")
    keys.refuse("logit_scale", "residual_scale", "embedding_scale", "attention.max_alibi_bias")
    width, heads, layers = keys.size("embedding_length"), keys.size("attention.head_count"), keys.size("block_count")
    head_dim = keys.size("attention.key_length", width // heads)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{keys.name}: keys and values of different lengths are not supported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or layers > len(tensors):
        raise CorruptModel(f"{keys.name} lacks tensors, or token_embd.weight is no matrix; download it again")
    vocab_size, bos = int(embedding.shape[1]), fields.get("tokenizer.ggml.bos_token_id")
    extra: dict[str, Any] = {}
    if family == "gemma3":
        extra = _gemma(keys, layers, width / heads, head_dim)
    elif family == "gpt2":
        extra = {"norm": "layer", "gated_ffn": False, "activation": "gelu_tanh", "rope_theta": None}
    elif keys.size("attention.sliding_window", 0):
        extra = {"window": keys.size("attention.sliding_window"), "window_layers": tuple(range(layers))}
    epsilon = keys.number("attention.layer_norm_rms_epsilon", keys.number("attention.layer_norm_epsilon", 1e-5))
    shared: dict[str, Any] = {
        "family": family,
        "vocab_size": vocab_size,
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "ffn_width": keys.size("feed_forward_length"),
        "context": keys.size("context_length"),
        "norm_epsilon": epsilon,
        "query_key_norm": "blk.0.attn_q_norm.weight" in tensors,
        "tied_head": "output.weight" not in tensors,
        "eos_ids": _ids(fields, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"),
        "bos_id": None if bos is None else int(bos),
        "biases": _biases(tensors),
    }
    if family != "gpt2":
        dims = keys.size("rope.dimension_count", head_dim)
        shared |= {"rope_theta": keys.number("rope.freq_base", 10000.0), "rope_dim": _partial(keys, dims, head_dim)}
        shared |= {"rope_scaling": _scaling(keys, tensors, dims // 2)}
    return ModelConfig(**(shared | extra))


def _gemma(keys: _Keys, layers: int, share: float, head_dim: int) -> dict[str, Any]:
    """What the file does not say of Gemma 3 (2503.19786 §2.1): five layers in six have the window, and turn with a
    base of their own; 27B, the one with 62 layers, scales by its `share` of the width rather than by head_dim."""
    window, every = keys.size("attention.sliding_window", 0), keys.get("attention.sliding_window_pattern", 6)
    narrow = every if isinstance(every, list) else [every == 0 or (i + 1) % every for i in range(layers)]
    return {
        "window": window or None,
        "window_layers": tuple(i for i in range(layers) if narrow[i]) if window else (),
        "local_rope_theta": keys.number("rope.freq_base_swa", 10000.0),
        "rope_theta": keys.number("rope.freq_base", 1e6),
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": float(np.float32(keys.size("embedding_length") ** 0.5)),
        "attention_scale": (share if layers == _LAYERS_OF_27B else head_dim) ** -0.5,
    }


def _scaling(keys: _Keys, tensors: Mapping[str, StoredTensor], frequencies: int) -> RopeScaling | None:
    if any(t.startswith("rope_factors") for t in tensors):
        raise UnsupportedModel(
            f"{keys.name} stretches its context with long-rope factors, which is not supported; "
            "use a short-context variant"
        )
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{keys.name}: rope scaling {kind!r} is not supported (known: none, linear, divisors)")
    old = keys.number("rope.scale_linear", 1.0)
    factor = 1.0 if kind == "none" else keys.number("rope.scaling.factor", old)
    given = tensors.get("rope_freqs.weight")
    if given is not None:
        divisors = tuple(unpack(given.read(0, given.rows), given.tensor_type).reshape(-1).tolist())
        good = len(divisors) == frequencies and all(0 < d < float("inf") for d in divisors)
        if given.tensor_type != GGMLQuantizationType.F32 or not good:
            raise CorruptModel(f"{keys.name}: rope_freqs.weight is not {frequencies} positive numbers")
        return RopeScaling("divisors", factor, divisors=divisors)
    return None if factor == 1 else RopeScaling("linear", factor)


def _partial(keys: _Keys, dims: int, head_dim: int) -> int | None:
    if dims % 2 or not 0 < dims <= head_dim:
        raise CorruptModel(f"{keys.name}: {dims} of {head_dim} dimensions of a head cannot rotate; download it again")
    if dims < head_dim and keys.arch == "llama":
        raise UnsupportedModel(f"{keys.name}: rotating only {dims} of {head_dim} dimensions of a head is not supported")
    return None if dims == head_dim else dims


def _ids(fields: Fields, *keys: str) -> tuple[int, ...]:
    found = [fields.get(key) for key in keys]
    return tuple(dict.fromkeys(int(i) for i in found if i is not None))


def _biases(tensors: Mapping[str, StoredTensor]) -> frozenset[str]:
    found = {name for name in ("q", "k", "v", "o", "gate", "up", "down") if f"blk.0.{_LAYER[name]}.bias" in tensors}
    if "blk.0.attn_qkv.bias" in tensors:
        found |= {"q", "k", "v"}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies: rows of a tensor of the file."""

    tensor: str
    start: int
    of: int
    """Rows of the whole tensor."""
    interleaved: bool = False
    """Llama's converter interleaves the two halves of every head's rotary rows, and of their biases."""


class GGUFWeights:
    """The tensors of a GGUF file under paceline's names."""

    def __init__(self, path: Path, header: Header, config: ModelConfig) -> None:
        self._path, self._config = path, config
        self._tensors = header.tensors
        self._interleaved = str(Fields(header, path.name).need("general.architecture")) == "llama"
        self._shapes = config.tensor_shapes()
        self._refuse_others()
        missing = [name for name in self._shapes if self._locate(name).tensor not in self._tensors]
        if missing:
            shown = ", ".join(self._locate(name).tensor for name in missing[:5])
            raise CorruptModel(f"{path.name} lacks {len(missing)} tensors ({shown} …); download it again")
        for name in self._shapes:
            self._check(name)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._path)

    def read(self, name: str) -> NDArray[np.float32]:
        return np.concatenate(list(self.rows(name, 1 << 40)))

    def rows(self, name: str, at_most: int) -> Iterator[NDArray[np.float32]]:
        place, shape = self._locate(name), self._shapes[name]
        data = self._data(name, place, shape)
        dim = self._config.head_dim
        if len(shape) == 1:
            yield _halves(data(0, 1), dim) if place.interleaved else data(0, 1)
            return
        whole = dim if place.interleaved else 1
        step = max(1, at_most // (4 * shape[1]) // whole) * whole
        for start in range(0, shape[0], step):
            piece = data(start, min(start + step, shape[0]))
            yield _halves(piece, dim) if place.interleaved else piece

    def _data(self, name: str, place: _Place, shape: tuple[int, ...]) -> Any:
        tensor = self._tensors[place.tensor]
        vector = len(shape) == 1

        def piece(start: int, stop: int) -> NDArray[np.float32]:
            raw = tensor.read(0, 1) if vector else tensor.read(place.start + start, place.start + stop)
            with np.errstate(all="ignore"):
                values = unpack(raw, tensor.tensor_type)
            if not np.isfinite(values).all():
                raise CorruptModel(
                    f"{self._path.name}: {place.tensor} holds infinities or no numbers; download it again"
                )
            return values.reshape(-1)[place.start : place.start + shape[0]] if vector else values.reshape(-1, shape[1])

        return piece

    def _refuse_others(self) -> None:
        """Whatever else a file holds would change what the model says."""
        used = {self._locate(name).tensor for name in self._shapes}
        other = [n for n in self._tensors if n not in used and not n.startswith("rope_freqs") and _ROTATION not in n]
        if other:
            raise UnsupportedModel(
                f"{self._path.name} holds tensors that a {self._config.family} model does not have here "
                f"({', '.join(map(repr, other[:5]))}); give its Hugging Face directory with --runner torch"
            )

    def _check(self, name: str) -> None:
        place, shape = self._locate(name), self._shapes[name]
        tensor = self._tensors[place.tensor]
        held, needed = tuple(int(n) for n in reversed(tensor.shape)), (place.of, *shape[1:])
        if held != needed:
            raise CorruptModel(f"{self._path.name}: tensor {place.tensor} has shape {held}, {name} needs {needed}")
        try:
            with np.errstate(all="ignore"):
                unpack(tensor.read(0, 1), tensor.tensor_type)
        except NotImplementedError:
            raise UnsupportedModel(
                f"{self._path.name}: {place.tensor} is stored as {tensor.tensor_type.name}, which is not supported; "
                "quantise it another way"
            ) from None

    def _locate(self, name: str) -> _Place:
        if name in _TOP:
            return _Place(_TOP[name], 0, self._shapes[name][0])
        _, index, rest = name.split(".", 2)
        part, _, bias = rest.partition(".")
        rows = self._shapes[name][0]
        end = "bias" if bias else "weight"
        layer = f"blk.{index}."
        fused = self._fused(layer, part, end)
        if fused is not None:
            return fused
        return _Place(f"{layer}{_LAYER[part]}.{end}", 0, rows, self._interleaved and part in ("q", "k"))

    def _fused(self, layer: str, part: str, end: str) -> _Place | None:
        c = self._config
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        starts = {"q": 0, "k": q, "v": q + kv}
        if part in starts and f"{layer}attn_qkv.{end}" in self._tensors:
            return _Place(f"{layer}attn_qkv.{end}", starts[part], q + 2 * kv)
        if c.family == "phi3" and part in ("gate", "up"):
            return _Place(f"{layer}ffn_up.{end}", 0 if part == "gate" else c.ffn_width, 2 * c.ffn_width)
        return None


def _halves(rows: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Undo the interleaving of a head's two rotary halves."""
    return rows.reshape(-1, dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
