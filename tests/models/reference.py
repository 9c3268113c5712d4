"""A decoder in plain numpy, straight from a checkpoint's description: slow, fp64, no cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.models.config import ModelConfig, RopeScaling
from paceline.models.weights import Checkpoint

Array = NDArray[Any]


def decode(model: Checkpoint, ids: list[int]) -> Array:
    """Return logits [n, vocabulary] ."""
    c, at = model.config, np.arange(len(ids))

    def weight(name: str) -> Array:
        return model.weights.read(name).astype(np.float64)

    def linear(layer: int, name: str, x: Array) -> Array:
        y = x @ weight(f"layers.{layer}.{name}").T
        return y + weight(f"layers.{layer}.{name}.bias") if name in c.biases else y

    def norm(name: str, x: Array) -> Array:
        if c.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_epsilon) * weight(name)
        return y + weight(f"{name}.bias") if c.norm == "layer" else y

    x = weight("embed")[ids] * c.embedding_scale
    if c.rope_theta is None:
        x = x + weight("positions")[at]
    for i in range(c.layers):
        h = norm(f"layers.{i}.attention_norm", x)
        q, k, v = (linear(i, name, h).reshape(len(ids), -1, c.head_dim).transpose(1, 0, 2) for name in ("q", "k", "v"))
        if c.query_key_norm:
            q, k = norm(f"layers.{i}.q_norm", q), norm(f"layers.{i}.k_norm", k)
        if c.rope_theta is not None:
            q, k = (rotate(c, i, t, at) for t in (q, k))
        y = linear(i, "o", attend(c, i, q, k, v, at))
        x = x + (norm(f"layers.{i}.attention_post_norm", y) if c.post_norms else y)
        h = norm(f"layers.{i}.ffn_norm", x)
        up = linear(i, "up", h)
        y = linear(i, "down", act(c, linear(i, "gate", h)) * up if c.gated_ffn else act(c, up))
        x = x + (norm(f"layers.{i}.ffn_post_norm", y) if c.post_norms else y)
    logits: Array = norm("norm", x) @ weight("embed" if c.tied_head else "head").T
    return logits


def act(c: ModelConfig, x: Array) -> Array:
    if c.activation == "silu":
        gated: Array = x / (1 + np.exp(-x))
        return gated
    curved: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return curved


def attend(c: ModelConfig, layer: int, q: Array, k: Array, v: Array, at: NDArray[np.int64]) -> Array:
    k, v = (np.repeat(t, c.heads // c.kv_heads, axis=0) for t in (k, v))
    scores = q @ k.transpose(0, 2, 1) * (c.attention_scale or c.head_dim**-0.5)
    distance = at[:, None] - at[None, :]
    window = c.window if c.window and layer in c.window_layers else len(at)
    seen = (distance >= 0) & (distance < window)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y: Array = weights / weights.sum(-1, keepdims=True) @ v
    return y.transpose(1, 0, 2).reshape(len(at), -1)


def rotate(c: ModelConfig, layer: int, x: Array, at: NDArray[np.int64]) -> Array:
    dim = c.rope_dim or c.head_dim
    local = c.local_rope_theta if layer in c.window_layers else None
    frequency = np.power(local or c.rope_theta or 1.0, -(np.arange(0, dim, 2) / dim))
    if c.rope_scaling is not None and local is None:
        frequency = stretch(c.rope_scaling, frequency)
    angle = at[:, None] * frequency
    cos, sin, a, b = np.cos(angle), np.sin(angle), x[..., : dim // 2], x[..., dim // 2 : dim]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., dim:]], -1)


def stretch(s: RopeScaling, frequency: Array) -> Array:
    if s.kind == "linear":
        return frequency / s.factor
    turns = s.original_context * frequency / (2 * math.pi)
    smooth = (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor)
    smooth = np.clip(smooth, 0, 1)
    return (1 - smooth) * frequency / s.factor + smooth * frequency
