"""Draft heads for tests: published layouts written from scratch, and both protocols in plain numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from paceline.models.heads import Heads, HeadsConfig, TargetShape
from paceline.runners.base import Span
from paceline.runners.heads import StepOutput

from .runners import heads_reference as reference

TARGET = TargetShape(width=20, vocab_size=61, layers=9, name="tiny")
TAPS = (1, 3, 5)
"""What the authors' rule makes of nine layers: the inputs of 2, 4 and 6."""
EAGLE3 = HeadsConfig(
    kind="eagle3",
    layout="SafeAILab",
    width=20,
    target_width=20,
    vocab_size=61,
    draft_vocab_size=61,
    taps=TAPS,
    heads=4,
    kv_heads=2,
    head_dim=6,
    ffn_width=28,
    norm_epsilon=1e-5,
)
MEDUSA = HeadsConfig(
    kind="medusa",
    layout="FasterDecoding",
    width=20,
    target_width=20,
    vocab_size=61,
    draft_vocab_size=61,
    taps=(9,),
    count=3,
    depth=2,
)


def make(config: HeadsConfig, seed: int = 0) -> Heads:
    """Random heads; where their vocabulary is a part of the target's, its tokens are drawn too."""
    heads = reference.random_heads(config, seed)
    if config.draft_vocab_size == config.vocab_size:
        return heads
    some = np.random.default_rng(seed).choice(config.vocab_size, config.draft_vocab_size, replace=False)
    return replace(heads, draft_to_target=np.sort(some).astype(np.int64))


def published(heads: Heads) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return config.json and the tensors of heads as their layout has them."""
    return {"SafeAILab": _safeailab, "speculators": _speculators, "FasterDecoding": _medusa}[heads.config.layout](heads)


def write(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], form: str = "model.safetensors"
) -> Path:
    """Write a directory.

    Args:
        form: the file's name; "sharded" for two files and an index.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    arrays = {name: torch.from_numpy(np.array(values)) for name, values in tensors.items()}
    if form == "sharded":
        _sharded(directory, arrays)
    elif form.endswith(".safetensors"):
        save_file(arrays, directory / form)
    else:
        torch.save(arrays, directory / form)
    return directory


def _sharded(directory: Path, arrays: Mapping[str, torch.Tensor]) -> None:
    names, places = sorted(arrays), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i}.safetensors"
        save_file({name: arrays[name] for name in part}, directory / file)
        places |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _decoder(config: HeadsConfig) -> dict[str, Any]:
    """The keys of one Llama layer."""
    rope: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope["rope_scaling"] = {"rope_type": config.rope_scaling.kind, "factor": config.rope_scaling.factor}
    return rope | {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "max_position_embeddings": 2048,
        "rms_norm_eps": config.norm_epsilon,
        "vocab_size": config.vocab_size,
        "attention_bias": "q" in config.biases,
        "mlp_bias": "up" in config.biases,
        "tie_word_embeddings": False,
    }


def _safeailab(heads: Heads) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    config = heads.config
    keys = _decoder(config) | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": config.draft_vocab_size}
    if config.target_width != config.width:
        keys["target_hidden_size"] = config.target_width
    inner: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(config.taps)} if config.taps != TAPS else {}
    if config.input_norm:
        inner["norm_before_fc"] = True
    return keys | ({"eagle_config": inner} if inner else {}), _eagle3(heads, "midlayer")


def _speculators(heads: Heads) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    config = heads.config
    keys = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": None if config.taps == TAPS else [i + 1 for i in config.taps],
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.input_norm,
        "fc_norm": config.tap_norms,
        "norm_output": config.norm_output,
        "target_hidden_size": config.target_width if config.target_width != config.width else None,
        "transformer_layer_config": _decoder(config),
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
    }
    return keys, _eagle3(heads, "layers.0")


def _eagle3(heads: Heads, layer: str) -> dict[str, NDArray[Any]]:
    t, found = heads.tensors, {}
    for ours, theirs in {
        "fc": "fc.weight",
        "norm": "norm.weight",
        "head": "lm_head.weight",
        "embed": "embed_tokens.weight",
        "input_norm": "input_norm.weight",
        "tap_norms.0": "fc_norm.0.weight",
        "tap_norms.1": "fc_norm.1.weight",
        "tap_norms.2": "fc_norm.2.weight",
        "embed_norm": f"{layer}.input_layernorm.weight",
        "hidden_norm": f"{layer}.hidden_norm.weight",
        "ffn_norm": f"{layer}.post_attention_layernorm.weight",
    }.items():
        if ours in t:
            found[theirs] = t[ours]
    for room, names in {"self_attn": "qkvo", "mlp": ("gate", "up", "down")}.items():
        for name in names:
            found[f"{layer}.{room}.{name}_proj.weight"] = t[name]
            if f"{name}.bias" in t:
                found[f"{layer}.{room}.{name}_proj.bias"] = t[f"{name}.bias"]
    if heads.draft_to_target is not None:
        found["d2t"] = heads.draft_to_target - np.arange(len(heads.draft_to_target))
        found["t2d"] = np.isin(np.arange(heads.config.vocab_size), heads.draft_to_target)
    return found


def _medusa(heads: Heads) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    config, t, found = heads.config, heads.tensors, {}
    for j in range(config.count):
        for k in range(config.depth):
            found[f"{j}.{k}.linear.weight"] = t[f"heads.{j}.blocks.{k}"]
            found[f"{j}.{k}.linear.bias"] = t[f"heads.{j}.blocks.{k}.bias"]
        found[f"{j}.{config.depth}.weight"] = t[f"heads.{j}.out"]
    keys = {"medusa_num_heads": config.count, "medusa_num_layers": config.depth, "base_model_name_or_path": "tiny"}
    return keys, found


class NumpyStepHead:
    """Keeps what each row was given rather than keys and values, and attends over that: one layer's are a function of
    it. What was never written is NaN, and shows."""

    def __init__(self, heads: Heads, embed: NDArray[Any] | None = None, block_size: int = 4) -> None:
        self._heads, self._embed = heads, heads.tensors["embed"] if embed is None else embed
        self.block_size, self.block_bytes = block_size, 8 * block_size * heads.config.width
        self.rows = 0
        """Rows that have run."""

    def allocate(self, blocks: int) -> None:
        size = blocks * self.block_size
        self._embeds = np.full((size, self._heads.config.width), np.nan)
        self._features, self._positions = self._embeds.copy(), np.zeros(size, np.int64)

    def fuse(self, taps: NDArray[Any]) -> NDArray[np.float32]:
        return reference.fuse(self._heads, taps).astype(np.float32)

    def forward(self, spans: Sequence[Span], features: NDArray[Any]) -> StepOutput:
        assert len(features) == sum(len(span.tokens) for span in spans)
        logits, hidden = [], []
        for span in spans:
            given, features = features[: len(span.tokens)], features[len(span.tokens) :]
            answers, states = self._span(span, given)
            logits.append(answers[span.wanted])
            hidden.append(states)
        return StepOutput(np.concatenate(logits).astype(np.float32), np.concatenate(hidden).astype(np.float32))

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        for cells in (self._embeds, self._features, self._positions):
            cells[target] = cells[source]

    def _span(self, span: Span, features: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, cached = len(span.tokens), span.cached
        self.rows += rows
        index = np.arange(cached + rows)
        places = span.blocks[index // self.block_size].astype(np.int64) * self.block_size + index % self.block_size
        new = places[cached:]
        self._embeds[new], self._features[new] = self._embed[span.tokens], features
        self._positions[new] = span.row_positions
        mask = np.eye(cached + rows, dtype=bool)
        mask[cached:, :cached] = True
        mask[cached:, cached:] = span.row_mask
        read = self._embeds[places], self._features[places], self._positions[places]
        logits, hidden = reference.step(self._heads, *read, mask)
        assert np.isfinite(logits[cached:]).all(), "a row sees a slot that was never written"
        return logits[cached:], hidden[cached:]


class NumpyParallelHead:
    def __init__(self, heads: Heads) -> None:
        self._heads, self.count = heads, heads.config.count

    def forward(self, features: NDArray[Any]) -> NDArray[np.float32]:
        return reference.parallel(self._heads, features).astype(np.float32)
