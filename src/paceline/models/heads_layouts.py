"""Reads draft heads from a directory, in the layouts in which they are published.

SafeAILab       EAGLE-3 as its authors and SpecForge save it: `midlayer.*`, and d2t, how far a draft id is from the
                target's.
speculators     EAGLE-3 of vLLM's speculators: the same as `layers.0.*`, with a config of its own.
FasterDecoding  Medusa: `j.k.linear` are the residual blocks of head j, `j.depth` its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel, ModelNotFound
from paceline.models import heads_config
from paceline.models.heads import Heads, HeadsConfig, TargetShape
from paceline.models.heads_files import Pickled, Stored, open_stored
from paceline.models.shards import read_json

_EAGLE3 = {
    "fc": "fc.weight",
    "input_norm": "input_norm.weight",
    "norm": "norm.weight",
    "head": "lm_head.weight",
    "embed": "embed_tokens.weight",
}
_LAYER = {
    "embed_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_MAPS = ("d2t", "t2d")
_LEFT_OVER = re.compile(r"rotary_emb\.inv_freq$|^verifier_(norm|lm_head)\.weight$")
"""Constants, and copies of the target's own tensors that training needed."""
_MEDUSA = re.compile(r"(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")


def read_heads(directory: Path, target: TargetShape, pickled: Pickled | None = None) -> Heads:
    """Read heads for a target; their tensors are checked for presence and shape, and read when they are looked up.

    Args:
        pickled: reads .bin and .pt files, where that can be done.

    Raises:
        ModelNotFound: the directory, its config.json or its weights do not exist.
        CorruptModel: a file is damaged, or tensors are missing, not expected, or of another shape.
        UnsupportedModel: they are heads of a kind that we do not have, or for a target of another shape.
        VocabularyError: they are for a target of another vocabulary.
    """
    if not directory.is_dir():
        raise ModelNotFound(
            f"heads is {str(directory)!r}, which is no directory; give one with config.json and weights"
        )
    path = directory / "config.json"
    keys = read_json(path)
    layout = heads_config.layout(path, keys)
    if layout == "FasterDecoding":
        stored = open_stored(directory, ("medusa_lm_head", "model"), "medusa_lm_head.pt", pickled)
        config = _medusa_config(path, keys, target, stored)
        names = _medusa_names(config)
    else:
        stored = open_stored(directory, ("model",), "pytorch_model.bin", pickled)
        config = heads_config.eagle3(path, keys, target, _EAGLE3["embed"] in stored)
        names = _eagle3_names(config)
    _check(directory, config, stored, names)
    return Heads(config, _Tensors(stored, names), _draft_to_target(directory, config, stored))


def _eagle3_names(config: HeadsConfig) -> dict[str, str]:
    """Return every tensor's name in the file."""
    stem = "layers.0" if config.layout == "speculators" else "midlayer"
    found = dict(_EAGLE3) | {name: f"{stem}.{theirs}.weight" for name, theirs in _LAYER.items()}
    found |= {f"{name}.bias": f"{stem}.{_LAYER[name]}.bias" for name in config.biases}
    found |= {f"tap_norms.{i}": f"fc_norm.{i}.weight" for i in range(len(config.taps))}
    return {name: found[name] for name in config.tensor_shapes()}


def _medusa_names(config: HeadsConfig) -> dict[str, str]:
    found = {}
    for j in range(config.count):
        for k in range(config.depth):
            found[f"heads.{j}.blocks.{k}"] = f"{j}.{k}.linear.weight"
            found[f"heads.{j}.blocks.{k}.bias"] = f"{j}.{k}.linear.bias"
        found[f"heads.{j}.out"] = f"{j}.{config.depth}.weight"
    return found


def _medusa_config(
    path: Path, keys: Mapping[str, Any], target: TargetShape, stored: Mapping[str, Stored]
) -> HeadsConfig:
    """Settle what the config does not say by the tensors.

    Where more heads are stored than medusa_num_heads says, all are taken: the authors' own configs say 2 of 5.
    """
    said, depth = (_count(path, keys, key) for key in ("medusa_num_heads", "medusa_num_layers"))
    stored_heads = {int(match[1]) for name in stored if (match := _MEDUSA.fullmatch(name))}
    first = stored.get(f"0.{depth}.weight")
    if first is None or len(first.shape) != 2:
        raise CorruptModel(
            f"{path.parent} lacks 0.{depth}.weight, the output of the first of its heads; fetch it again"
        )
    vocab_size, width = first.shape
    heads_config.check_target(path, target, width, vocab_size)
    return HeadsConfig(
        kind="medusa",
        layout="FasterDecoding",
        width=width,
        target_width=width,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        taps=(target.layers,),
        count=max(said, *(j + 1 for j in stored_heads)),
        depth=depth,
    )


def _count(path: Path, keys: Mapping[str, Any], key: str) -> int:
    value = keys.get(key, 1)
    if type(value) is not int or not 0 <= value <= 64:
        raise CorruptModel(f"{path}: {key} is {value!r}; an integer from 0 to 64 is needed")
    return value


def _check(directory: Path, config: HeadsConfig, stored: Mapping[str, Stored], names: Mapping[str, str]) -> None:
    needed = set(names.values()) | ({"d2t"} if config.draft_vocab_size != config.vocab_size else set())
    other = {name for name in stored.keys() - needed if not _LEFT_OVER.search(name)}
    if config.kind == "eagle3":
        other -= set(_MAPS)
    problems = {"lacks": sorted(needed - stored.keys()), "also holds": sorted(other)}
    said = [f"{verb} {', '.join(names)}" for verb, names in problems.items() if names]
    if said:
        raise CorruptModel(
            f"{directory} {' and '.join(said)}: not what {config.kind} heads of its config.json are made of; "
            "fetch the heads again"
        )
    for name, shape in config.tensor_shapes().items():
        if stored[names[name]].shape != shape:
            given = list(stored[names[name]].shape)
            raise CorruptModel(f"{directory}: {names[name]} is {given}; {list(shape)} is needed; fetch the heads again")


def _draft_to_target(directory: Path, config: HeadsConfig, stored: Mapping[str, Stored]) -> NDArray[np.int64] | None:
    """Return the target's ids: d2t is what is to be added to a draft id. t2d marks the same ids, and must agree."""
    if config.kind == "medusa" or "d2t" not in stored:
        return None
    offsets = stored["d2t"].whole()
    if offsets.shape != (config.draft_vocab_size,):
        raise CorruptModel(
            f"{directory}: d2t is {list(offsets.shape)}; [{config.draft_vocab_size}] is needed; fetch the heads again"
        )
    found = np.arange(len(offsets), dtype=np.int64) + offsets
    if found.min() < 0 or found.max() >= config.vocab_size or len(np.unique(found)) != len(found):
        raise CorruptModel(
            f"{directory}: d2t gives a token twice, or one that is not of 0 to {config.vocab_size - 1}; fetch it again"
        )
    if "t2d" in stored:
        marked = np.flatnonzero(stored["t2d"].whole())
        if stored["t2d"].shape != (config.vocab_size,) or not np.array_equal(marked, np.sort(found)):
            raise CorruptModel(f"{directory}: t2d does not mark the tokens that d2t gives; fetch the heads again")
    return found


class _Tensors(Mapping[str, NDArray[np.float32]]):
    """Stored tensors under our names."""

    def __init__(self, stored: Mapping[str, Stored], names: Mapping[str, str]) -> None:
        self._stored, self._names = stored, names

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._stored[self._names[name]].floats()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
