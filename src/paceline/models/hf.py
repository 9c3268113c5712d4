"""Reads a Hugging Face model directory: config.json and safetensors, one file or many."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound, UnsupportedModel
from paceline.models.config import ModelConfig
from paceline.models.hf_config import translate
from paceline.models.shards import Shards, open_shards, read_json, unpack
from paceline.models.weights import Checkpoint

_BUFFERS = re.compile(r"\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")
"""Constants that older versions of transformers saved beside the weights."""


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read the description of a model; its weights are checked for presence, shape and type, and read when asked for.

    Raises:
        ModelNotFound: the directory, its config.json or its weights do not exist.
        CorruptModel: a file is damaged, or tensors are missing or have another shape.
        UnsupportedModel: the architecture is not one of ours, or it asks for something that we do not have.
    """
    if not directory.is_dir():
        raise ModelNotFound(f"{directory} is not a directory; a model is one that holds config.json and safetensors")
    path, extra = directory / "config.json", directory / "generation_config.json"
    config = translate(path, read_json(path), read_json(extra) if extra.is_file() else {})
    shards = open_shards(directory)
    config, sources = _locate(config, shards)
    _check(config, shards, sources)
    return Checkpoint(config, HFWeights(config, shards, sources))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor of ours comes from."""

    name: str
    start: int = 0
    """Its first row, where several matrices are stored as one."""
    stop: int | None = None
    of: int | None = None
    """Rows of the whole, where this is a part."""
    transposed: bool = False
    """Stored [in, out]; rows are the stored columns then."""
    offset: float = 0.0
    """Added to every number."""


class HFWeights:
    """The Weights of a directory, under our names."""

    def __init__(self, config: ModelConfig, shards: Shards, sources: Mapping[str, Source]) -> None:
        self._config, self._shards, self._sources = config, shards, sources

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of the description and of every byte of the weights; reads them all, once."""
        text = f"{_stable(self._config)} {self._shards.digest()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, name: str) -> NDArray[np.float32]:
        return self._finish(name, self._bits(name))

    def rows(self, name: str, at_most: int) -> Iterator[NDArray[np.float32]]:
        bits = self._bits(name)
        step = max(1, at_most // (4 * int(np.prod(bits.shape[1:]))))
        for start in range(0, len(bits), step):
            yield self._finish(name, bits[start : start + step])

    def _bits(self, name: str) -> NDArray[Any]:
        if name not in self._sources:
            raise CorruptModel(f"{self._shards.directory} holds no tensor for {name}")
        return _bits(self._shards, self._sources[name])

    def _finish(self, name: str, bits: NDArray[Any]) -> NDArray[np.float32]:
        values = unpack(bits)
        offset = self._sources[name].offset
        return values + np.float32(offset) if offset else values


def _bits(shards: Shards, source: Source) -> NDArray[Any]:
    view = shards.tensors[source.name].view()
    return (view.T if source.transposed else view)[source.start : source.stop]


def _stable(config: ModelConfig) -> str:
    """A set prints in any order; everything else of the record prints the same in every process."""
    return f"{replace(config, biases=frozenset())!r} {sorted(config.biases)}"


def _locate(config: ModelConfig, shards: Shards) -> tuple[ModelConfig, dict[str, Source]]:
    """Name every tensor's source; settle whether the head is the embedding, as transformers would."""
    outer = "transformer." if config.family == "gpt2" else "model."
    stem = outer if any(name.startswith(outer) for name in shards.tensors) else ""
    sources = _gpt2_sources(config, stem) if config.family == "gpt2" else _rotary_sources(config, stem)
    head, embed = Source("lm_head.weight"), sources["embed"]
    if config.tied_head and head.name in shards.tensors:
        if embed.name not in shards.tensors:
            sources["embed"] = head
        elif not np.array_equal(_bits(shards, embed), _bits(shards, head)):
            config = replace(config, tied_head=False)
    if not config.tied_head:
        sources["head"] = head
    return config, sources


def _rotary_sources(config: ModelConfig, stem: str) -> dict[str, Source]:
    offset = 1.0 if config.family == "gemma3" else 0.0
    found = {"embed": Source(f"{stem}embed_tokens.weight"), "norm": Source(f"{stem}norm.weight", offset=offset)}
    for i in range(config.layers):
        place, ours = f"{stem}layers.{i}.", f"layers.{i}."
        norms = _norm_names(config)
        found |= {f"{ours}{name}": Source(f"{place}{theirs}.weight", offset=offset) for name, theirs in norms.items()}
        for name, source in _linear_names(config):
            found[f"{ours}{name}"] = replace(source, name=f"{place}{source.name}.weight")
            if name in config.biases:
                found[f"{ours}{name}.bias"] = replace(source, name=f"{place}{source.name}.bias")
    return found


def _norm_names(config: ModelConfig) -> dict[str, str]:
    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if config.post_norms:
        names["attention_post_norm"] = "post_attention_layernorm"
        names |= {"ffn_norm": "pre_feedforward_layernorm", "ffn_post_norm": "post_feedforward_layernorm"}
    if config.query_key_norm:
        names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
    return names


def _linear_names(config: ModelConfig) -> Iterable[tuple[str, Source]]:
    yield from (("o", Source("self_attn.o_proj")), ("down", Source("mlp.down_proj")))
    if config.family != "phi3":
        yield from ((name, Source(f"self_attn.{name}_proj")) for name in "qkv")
        yield from ((name, Source(f"mlp.{name}_proj")) for name in ("gate", "up"))
        return
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield from _parts("self_attn.qkv_proj", {"q": q, "k": kv, "v": kv})
    yield from _parts("mlp.gate_up_proj", {"gate": config.ffn_width, "up": config.ffn_width})


def _parts(name: str, sizes: Mapping[str, int]) -> Iterable[tuple[str, Source]]:
    start, total = 0, sum(sizes.values())
    for part, size in sizes.items():
        yield part, Source(name, start, start + size, total)
        start += size


def _gpt2_sources(config: ModelConfig, stem: str) -> dict[str, Source]:
    found = {"embed": Source(f"{stem}wte.weight"), "positions": Source(f"{stem}wpe.weight")}
    found |= {"norm": Source(f"{stem}ln_f.weight"), "norm.bias": Source(f"{stem}ln_f.bias")}
    width = config.width
    linear = dict(_parts("attn.c_attn", {"q": width, "k": width, "v": width}))
    linear |= {"o": Source("attn.c_proj"), "up": Source("mlp.c_fc"), "down": Source("mlp.c_proj")}
    for i in range(config.layers):
        place, ours = f"{stem}h.{i}.", f"layers.{i}."
        for name, theirs in {"attention_norm": "ln_1", "ffn_norm": "ln_2"}.items():
            found[f"{ours}{name}"] = Source(f"{place}{theirs}.weight")
            found[f"{ours}{name}.bias"] = Source(f"{place}{theirs}.bias")
        for name, source in linear.items():
            found[f"{ours}{name}"] = replace(source, name=f"{place}{source.name}.weight", transposed=True)
            found[f"{ours}{name}.bias"] = replace(source, name=f"{place}{source.name}.bias")
    return found


def _check(config: ModelConfig, shards: Shards, sources: Mapping[str, Source]) -> None:
    shapes = config.tensor_shapes()
    missing = sorted({sources[name].name for name in shapes} - shards.tensors.keys())
    if missing:
        raise CorruptModel(f"{shards.directory} lacks {_some(missing)}")
    for name, shape in shapes.items():
        _check_shape(shards, sources[name], shape)
    used = {source.name for source in sources.values()}
    in_layers = re.compile(r"(^|\.)(layers|h)\.\d+\.")
    other = [n for n in shards.tensors.keys() - used if in_layers.search(n) and not _BUFFERS.search(n)]
    if other:
        raise UnsupportedModel(
            f"{shards.directory} holds tensors that a {config.family} model of this description does not have: "
            f"{_some(sorted(other))}; the torch runner may run it: pip install 'paceline[torch]'"
        )


def _check_shape(shards: Shards, source: Source, shape: tuple[int, ...]) -> None:
    whole = shape if source.of is None else (source.of, *shape[1:])
    expected = whole[::-1] if source.transposed else whole
    stored = shards.tensors[source.name]
    if stored.shape != expected:
        raise CorruptModel(f"{stored.path}: {source.name} is {list(stored.shape)}; {list(expected)} is needed")
    stored.view()


def _some(names: list[str], at_most: int = 5) -> str:
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
