"""A model's description and tokenizer, wherever it is kept. Weights are not touched before a runner reads them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tokenizers
from numpy.typing import NDArray

from paceline.errors import UnsupportedModel
from paceline.models import cache, gguf, gguf_tokenizer, hf, toy
from paceline.models.cache import Progress
from paceline.models.config import ModelConfig, RopeScaling
from paceline.models.gguf import Fields, GGUFWeights, fingerprint, open_gguf
from paceline.models.gguf_tokenizer import Parts
from paceline.models.source import Source
from paceline.models.tokenizer import Tokenizer
from paceline.models.weights import Checkpoint

_VERSION = 2
_DIGEST = 32
"""Characters before the tables: the digest of what follows."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model before any runner."""

    source: Source
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None
    """None for a toy that is a law, and for a directory of an architecture that only transformers knows."""
    unsupported: str = ""
    """Why there is no checkpoint."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        stated = self.checkpoint.config.eos_ids if self.checkpoint else ()
        return tuple(dict.fromkeys((*stated, *self.tokenizer.eos_ids)))


def load(source: Source, progress: Progress = cache.silent) -> Model:
    """Read a model's configuration and tokenizer.

    Raises:
        ModelError: see `gguf` and `hf`.
    """
    if source.kind == "gguf":
        return _from_gguf(source, progress)
    if source.kind == "toy":
        name = str(source.path)
        return Model(source, toy.tokenizer(), None if toy.law(name) else toy.checkpoint(name))
    tokenizer = Tokenizer.from_directory(source.path)
    try:
        return Model(source, tokenizer, hf.read_checkpoint(source.path))
    except UnsupportedModel as error:
        return Model(source, tokenizer, None, str(error))


class LazyWeights:
    """The weights of a GGUF file, whose tables are parsed only when something is read."""

    def __init__(self, path: Path, config: ModelConfig, digest: str) -> None:
        self._path, self._config = path, config
        self.fingerprint = digest

    @cached_property
    def _weights(self) -> GGUFWeights:
        return GGUFWeights(self._path, open_gguf(self._path), self._config)

    def read(self, name: str) -> NDArray[np.float32]:
        return self._weights.read(name)

    def rows(self, name: str, at_most: int) -> Iterator[NDArray[np.float32]]:
        return self._weights.rows(name, at_most)


def _from_gguf(source: Source, progress: Progress) -> Model:
    """Read a GGUF file's tables, or what is cached of them: parsing a vocabulary of 150,000 takes seconds."""
    digest = fingerprint(source.path)
    path = cache.directory() / digest[:32] / f"tables-{_VERSION}.json"
    cache.cached(path, lambda file: _write_tables(source, file, progress), _is_whole)
    tables = json.loads(path.read_bytes()[_DIGEST:])
    config = _config(tables["config"])
    return Model(
        source, Tokenizer(_parts(tables["tokenizer"])), Checkpoint(config, LazyWeights(source.path, config, digest))
    )


def _write_tables(source: Source, file: BinaryIO, progress: Progress) -> None:
    progress("reading tables", 0, 1)
    header = open_gguf(source.path)
    checkpoint = gguf.read_checkpoint(source.path, header)
    parts = gguf_tokenizer.build(Fields(header, source.path.name), source.path.name)
    tables = {"config": dataclasses.asdict(checkpoint.config), "tokenizer": _plain(parts)}
    tables["config"]["biases"] = sorted(checkpoint.config.biases)
    text = json.dumps(tables).encode()
    file.write(_digest(text) + text)
    progress("reading tables", 1, 1)


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    return content[:_DIGEST] == _digest(content[_DIGEST:])


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST // 2).hexdigest().encode()


def _config(given: dict[str, Any]) -> ModelConfig:
    scaling = given["rope_scaling"]
    if scaling is not None:
        scaling = RopeScaling(**(scaling | {"divisors": tuple(scaling["divisors"])}))
    listed = {name: tuple(given[name]) for name in ("window_layers", "eos_ids")}
    return ModelConfig(**(given | listed | {"rope_scaling": scaling, "biases": frozenset(given["biases"])}))


def _plain(parts: Parts) -> dict[str, Any]:
    return {
        "backend": parts.backend.to_str(),
        "special": dict(parts.special),
        "eos_ids": list(parts.eos_ids),
        "chat_template": parts.chat_template,
        "unused": sorted(parts.unused),
    }


def _parts(plain: dict[str, Any]) -> Parts:
    backend = tokenizers.Tokenizer.from_str(plain["backend"])
    eos_ids, unused = tuple(plain["eos_ids"]), frozenset(plain["unused"])
    return Parts(backend, plain["special"], eos_ids, plain["chat_template"], unused)
