"""Draft heads in plain numpy: fp64, no cache, straight from the papers' formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.models.heads import Heads, HeadsConfig

Array = NDArray[Any]


def random_heads(config: HeadsConfig, seed: int = 0) -> Heads:
    """Return heads whose every part matters: norms are not one, biases not zero."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in config.tensor_shapes().items():
        values = rng.standard_normal(shape)
        if name.endswith("bias"):
            values *= 0.3
        elif len(shape) == 1:
            values = 1 + 0.3 * values
        elif name != "embed":
            values *= (2.0 if name in ("q", "k") else 1.0) / math.sqrt(shape[1])
        tensors[name] = values.astype(np.float32)
    return Heads(config, tensors)


def fuse(heads: Heads, taps: Array) -> Array:
    """Return features [rows, width] of tapped states [rows, taps * target width]."""
    config, x = heads.config, taps.astype(np.float64)
    if config.tap_norms:
        parts = np.split(x, len(config.taps), -1)
        x = np.concatenate([_norm(heads, part, f"tap_norms.{i}") for i, part in enumerate(parts)], -1)
    if config.input_norm:
        x = _norm(heads, x, "input_norm")
    return _linear(heads, x, "fc")


def step(heads: Heads, embeds: Array, features: Array, positions: Array, mask: Array) -> tuple[Array, Array]:
    """Return logits and what the head feeds itself, for all rows at once.

    Args:
        embeds: [rows, width], of each row's token.
        mask: [rows, rows], which row sees which.
    """
    config = heads.config
    normed = _norm(heads, features, "hidden_norm")
    read = np.concatenate([_norm(heads, embeds, "embed_norm"), normed], -1)
    attended = _linear(heads, _attend(heads, read, positions, mask), "o")
    x = (normed if config.norm_before_residual else features) + attended
    fed = _norm(heads, x, "ffn_norm")
    x = x + _linear(heads, _silu(_linear(heads, fed, "gate")) * _linear(heads, fed, "up"), "down")
    last = _norm(heads, x, "norm")
    return _linear(heads, last, "head"), last if config.norm_output else x


def parallel(heads: Heads, features: Array) -> Array:
    """Return logits [heads, rows, draft vocabulary]."""
    answers = []
    for j in range(heads.config.count):
        x = features.astype(np.float64)
        for k in range(heads.config.depth):
            x = x + _silu(_linear(heads, x, f"heads.{j}.blocks.{k}"))
        answers.append(_linear(heads, x, f"heads.{j}.out"))
    return np.array(answers)


def _attend(heads: Heads, x: Array, positions: Array, mask: Array) -> Array:
    config = heads.config
    q, k, v = (_linear(heads, x, name).reshape(len(x), -1, config.head_dim).transpose(1, 0, 2) for name in "qkv")
    q, k = _rotate(config, q, positions), _rotate(config, k, positions)
    k, v = (np.repeat(t, config.heads // config.kv_heads, axis=0) for t in (k, v))
    scores = np.where(mask, q @ k.transpose(0, 2, 1) / math.sqrt(config.head_dim), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y: Array = weights / weights.sum(-1, keepdims=True) @ v
    return y.transpose(1, 0, 2).reshape(len(x), -1)


def _rotate(config: HeadsConfig, x: Array, positions: Array) -> Array:
    angle = positions[:, None] * _frequencies(config)
    cos, sin, a, b = np.cos(angle), np.sin(angle), *np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _frequencies(config: HeadsConfig) -> Array:
    found = np.power(config.rope_theta, -np.arange(0, config.head_dim, 2) / config.head_dim)
    s = config.rope_scaling
    if s is None:
        return found
    if s.kind == "linear":
        return found / s.factor
    turns = s.original_context * found / (2 * math.pi)
    smooth = np.clip((turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor), 0, 1)
    stretched: Array = (1 - smooth) * found / s.factor + smooth * found
    return stretched


def _norm(heads: Heads, x: Array, name: str) -> Array:
    size = np.sqrt((x * x).mean(-1, keepdims=True) + heads.config.norm_epsilon)
    found: Array = x / size * heads.tensors[name].astype(np.float64)
    return found


def _linear(heads: Heads, x: Array, name: str) -> Array:
    y: Array = x @ heads.tensors[name].astype(np.float64).T
    bias = heads.tensors.get(f"{name}.bias")
    return y if bias is None else y + bias


def _silu(x: Array) -> Array:
    found: Array = x / (1 + np.exp(-x))
    return found
