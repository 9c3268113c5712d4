"""Reading a GGUF file: its configuration and its weights, unpacked a piece at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound, UnsupportedModel
from paceline.models.config import ModelConfig, RopeScaling
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


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Parse a file's header and tables; the tensors stay on disk.

    Raises:
        ModelNotFound: there is no such file.
        CorruptModel: it is not a GGUF file, or ends before its tables do.
    """
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file; give a .gguf file, a model directory or a hub id")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CorruptModel(
                f"{path.name} is not a GGUF file (its first four bytes are not 'GGUF'); download it again"
            )
    try:
        reader = gguf.GGUFReader(path)
        size = path.stat().st_size
        ends = [int(t.data_offset + t.n_bytes) for t in reader.tensors]
    except MemoryError:
        raise
    except Exception as error:  # the library raises whatever its parsing runs into
        raise CorruptModel(f"{path.name} is truncated or damaged ({error}); download it again") from None
    if any(end > size for end in ends):
        raise CorruptModel(f"{path.name} is truncated: {size} bytes, tensors need {max(ends)}; download it again")
    return reader


class Fields:
    """The metadata of a GGUF file, by key."""

    def __init__(self, reader: gguf.GGUFReader, name: str) -> None:
        self._reader, self._name = reader, name

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.fields.get(key)
        if field is None:
            return default
        try:
            return field.contents()
        except Exception as error:  # as above
            raise CorruptModel(f"{self._name}: metadata {key} cannot be read ({error}); download it again") from None

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


def read_checkpoint(path: Path, reader: gguf.GGUFReader | None = None) -> Checkpoint:
    """Read a GGUF file, given also its reader where it is open already.

    Raises:
        ModelNotFound, CorruptModel: as `open_gguf`.
        UnsupportedModel: the architecture, or something it needs, is not known here.
    """
    reader = reader or open_gguf(path)
    try:
        config = _config(Fields(reader, path.name), {t.name: t for t in reader.tensors}, path.name)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CorruptModel(f"{path.name}: metadata makes no sense ({error}); download it again") from None
    return Checkpoint(config, GGUFWeights(path, reader, config))


def _config(fields: Fields, tensors: dict[str, Any], name: str) -> ModelConfig:
    arch = str(fields.need("general.architecture"))
    family = ARCHITECTURES.get(arch)
    if family is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(
            f"{name}: architecture {arch!r} is not supported from GGUF (known: {known}); "
            "give its Hugging Face directory with --runner torch"
        )

    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{arch}.{key}", default)

    def need(key: str) -> Any:
        return fields.need(f"{arch}.{key}")

    width, heads, layers = need("embedding_length"), need("attention.head_count"), need("block_count")
    head_dim = get("attention.key_length", width // heads)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise CorruptModel(f"{name} has no tensor token_embd.weight; download it again")
    extra: dict[str, Any] = {}
    if family == "gemma3":
        extra = _gemma(get, layers, width, head_dim)
    elif family == "gpt2":
        extra = {"norm": "layer", "gated_ffn": False, "activation": "gelu_tanh", "rope_theta": None}
    elif get("attention.sliding_window"):
        extra = {"window": int(get("attention.sliding_window")), "window_layers": tuple(range(layers))}
    epsilon = get("attention.layer_norm_rms_epsilon", get("attention.layer_norm_epsilon", 1e-5))
    theta = get("rope.freq_base", 10000.0)
    return ModelConfig(
        family=family,
        vocab_size=int(embedding.shape[1]),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_width=need("feed_forward_length"),
        context=need("context_length"),
        norm_epsilon=float(np.float32(epsilon)),
        rope_dim=_partial(get("rope.dimension_count", head_dim), head_dim),
        rope_scaling=_scaling(get, tensors, name),
        query_key_norm="blk.0.attn_q_norm.weight" in tensors,
        tied_head="output.weight" not in tensors,
        eos_ids=_ids(fields, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"),
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
        biases=_biases(tensors),
        **({"rope_theta": float(theta)} | extra),
    )


def _gemma(get: Any, layers: int, width: int, head_dim: int) -> dict[str, Any]:
    """Five sliding-window layers, then one that sees everything (Gemma 3 report, 2503.19786 §2.1)."""
    return {
        "window": get("attention.sliding_window", 512),
        "window_layers": tuple(i for i in range(layers) if (i + 1) % 6),
        "local_rope_theta": 10000.0,
        "rope_theta": float(get("rope.freq_base", 1e6)),
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": float(np.float32(width**0.5)),
        "attention_scale": float(get("attention.query_pre_attn_scalar", head_dim)) ** -0.5,
    }


def _scaling(get: Any, tensors: dict[str, Any], name: str) -> RopeScaling | None:
    if any(t.startswith("rope_factors") for t in tensors):
        raise UnsupportedModel(
            f"{name} stretches its context with long-rope factors, which is not supported; use a short-context variant"
        )
    kind = get("rope.scaling.type", "none")
    if kind == "none" and "rope_freqs.weight" not in tensors:
        return None
    if kind == "linear":
        return RopeScaling("linear", float(get("rope.scaling.factor", 1.0)))
    if "rope_freqs.weight" in tensors:  # Llama 3: the file holds the divisors that its scaling gives
        return RopeScaling(
            "llama3",
            float(dequantize(tensors["rope_freqs.weight"].data, tensors["rope_freqs.weight"].tensor_type).max()),
        )
    raise UnsupportedModel(f"{name}: rope scaling {kind!r} is not supported (known: none, linear, llama3)")


def _partial(dims: int, head_dim: int) -> int | None:
    return None if dims == head_dim else dims


def _ids(fields: Fields, *keys: str) -> tuple[int, ...]:
    found = [fields.get(key) for key in keys]
    return tuple(dict.fromkeys(int(i) for i in found if i is not None))


def _biases(tensors: dict[str, Any]) -> frozenset[str]:
    found = {name for name in ("q", "k", "v", "o", "gate", "up", "down") if f"blk.0.{_LAYER[name]}.bias" in tensors}
    if "blk.0.attn_qkv.bias" in tensors:
        found |= {"q", "k", "v"}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies: rows of a tensor of the file."""

    tensor: str
    start: int
    rows: int
    interleaved: bool = False
    """Llama's converter interleaves the two halves of every head's rotary rows, and of their biases."""


class GGUFWeights:
    """The tensors of a GGUF file under paceline's names."""

    def __init__(self, path: Path, reader: gguf.GGUFReader, config: ModelConfig) -> None:
        self._path, self._config = path, config
        self._tensors = {t.name: t for t in reader.tensors}
        self._interleaved = str(Fields(reader, path.name).need("general.architecture")) == "llama"
        self._shapes = config.tensor_shapes()
        missing = [name for name in self._shapes if self._locate(name).tensor not in self._tensors]
        if missing:
            shown = ", ".join(self._locate(name).tensor for name in missing[:5])
            raise CorruptModel(f"{path.name} lacks {len(missing)} tensors ({shown} …); download it again")

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
        step = max(1, at_most // (4 * shape[1]) // dim) * dim
        for start in range(0, shape[0], step):
            piece = data(start, min(start + step, shape[0]))
            yield _halves(piece, dim) if place.interleaved else piece

    def _data(self, name: str, place: _Place, shape: tuple[int, ...]) -> Any:
        tensor = self._tensors[place.tensor]
        held = tuple(int(n) for n in reversed(tensor.shape))
        vector = len(shape) == 1
        good = (
            sum(held[1:]) == 0 and place.start + shape[0] <= held[0]
            if vector
            else held[1:] == shape[1:] and place.start + shape[0] <= held[0]
        )
        if not good:
            raise CorruptModel(f"{self._path.name}: tensor {place.tensor} has shape {held}, {name} needs {shape}")

        def piece(start: int, stop: int) -> NDArray[np.float32]:
            raw = tensor.data.reshape(1, -1) if vector else tensor.data[place.start + start : place.start + stop]
            values: NDArray[np.float32] = dequantize(raw, tensor.tensor_type).astype(np.float32, copy=False)
            return values.reshape(-1)[place.start : place.start + shape[0]] if vector else values.reshape(-1, shape[1])

        return piece

    def _locate(self, name: str) -> _Place:
        if name in _TOP:
            return _Place(_TOP[name], 0, self._shapes[name][0])
        _, index, rest = name.split(".", 2)
        part, _, bias = rest.partition(".")
        rows = self._shapes[name][0]
        end = f"{'bias' if bias else 'weight'}"
        layer = f"blk.{index}."
        fused = self._fused(layer, part, end)
        if fused is not None:
            return _Place(fused[0], fused[1], rows)
        return _Place(f"{layer}{_LAYER[part]}.{end}", 0, rows, self._interleaved and part in ("q", "k"))

    def _fused(self, layer: str, part: str, end: str) -> tuple[str, int] | None:
        c = self._config
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        starts = {"q": 0, "k": q, "v": q + kv}
        if part in starts and f"{layer}attn_qkv.{end}" in self._tensors:
            return f"{layer}attn_qkv.{end}", starts[part]
        if c.family == "phi3" and part in ("gate", "up"):
            return f"{layer}ffn_up.{end}", 0 if part == "gate" else c.ffn_width
        return None


def _halves(rows: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Undo the interleaving of a head's two rotary halves."""
    return rows.reshape(-1, dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
