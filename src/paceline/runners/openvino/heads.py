"""Draft heads on the CPU: graphs of their own, of the parts and with the paged attention of the decoder's.

Heads change no text, so their rows take whichever kernel is fastest. Weights are packed at every start: they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from paceline.models.config import ModelConfig
from paceline.models.heads import Heads, HeadsConfig
from paceline.runners.base import Span
from paceline.runners.heads import Floats, StepOutput
from paceline.runners.openvino import attention, batching
from paceline.runners.openvino.attention import BLOCK_SIZE, parameter
from paceline.runners.openvino.layers import Fetch, Layers, i32, matrix
from paceline.runners.openvino.program import Program
from paceline.runners.openvino.quantise import Packed, Precision, joined, kind_of, pack

Embed = Callable[[NDArray[np.int64]], Floats]
"""Tokens -> rows [tokens, width] of the target's table, as `Runner.embed`."""


class OpenVINOStepHead:
    """An EAGLE-3 head (2503.01840 §3): see `StepHead`.

    Args:
        embed: the target's embeddings; not asked where the heads have their own.
        weights: the form of the matrices; with fp32, keys and values are fp32 too (else fp16).
    """

    def __init__(self, heads: Heads, embed: Embed, weights: Precision = "int8") -> None:
        config, fetch = heads.config, _Tensors(heads, weights)
        self._embed = fetch("embed").rows if config.own_embed else embed
        one = attention.Heads(config.heads, config.kv_heads, config.head_dim)
        self._fuse = Program(_fuse(config, fetch), weights)
        self._step = Program(_step(config, fetch), weights, 1, one)
        self._borrowed = fetch  # the graphs borrow its arrays
        self.block_size = BLOCK_SIZE
        self.block_bytes = self._step.block_bytes

    def allocate(self, blocks: int) -> None:
        self._step.allocate(blocks)

    def fuse(self, taps: Floats) -> Floats:
        return self._fuse.run({"taps": taps})[0]

    def forward(self, spans: Sequence[Span], features: Floats) -> StepOutput:
        inputs: dict[str, NDArray[np.generic]] = {
            "embeds": self._embed(np.concatenate([span.tokens for span in spans])),
            "features": features,
            "position_ids": np.concatenate([span.row_positions for span in spans]),
            "rows": batching.wanted(spans),
            **batching.index(batching.parts(spans, stepwise=False)),
        }
        return StepOutput(*self._step.run(inputs))

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self._step.move(source, target)


class OpenVINOParallelHead:
    """Medusa heads (2401.10774 §3.1): see `ParallelHead`."""

    def __init__(self, heads: Heads, weights: Precision = "int8") -> None:
        fetch = _Tensors(heads, weights)
        self._program = Program(_parallel(heads.config, fetch), weights)
        self._borrowed = fetch
        self.count = heads.config.count

    def forward(self, features: Floats) -> Floats:
        return self._program.run({"features": features})[0]


class _Tensors:
    """A `Fetch` of heads, which names their one layer as a decoder's and keeps what it packed."""

    def __init__(self, heads: Heads, wanted: Precision) -> None:
        self._tensors, self._wanted = heads.tensors, wanted
        self._kept: dict[tuple[str, ...], Packed] = {}

    def __call__(self, *names: str) -> Packed:
        if names not in self._kept:
            self._kept[names] = joined([self._read(name.removeprefix(_LAYER)) for name in names])
        return self._kept[names]

    def _read(self, name: str) -> Packed:
        rows = self._tensors[name]
        return pack(kind_of(name, rows.shape, self._wanted), rows)


_LAYER = "layers.0."


def _fuse(config: HeadsConfig, fetch: Fetch) -> ov.Model:
    """Return a graph from `taps` [rows, taps * target width] to features [rows, width]."""
    layers, count = Layers(_decoder(config), fetch), len(config.taps)
    taps = x = parameter("taps", [-1, count * config.target_width], ov.Type.f32)
    if config.tap_norms:
        parts = op.split(x, i32(-1), count).outputs()
        x = op.concat([layers.norm(part, f"tap_norms.{i}") for i, part in enumerate(parts)], -1)
    if config.input_norm:
        x = layers.norm(x, "input_norm")
    return ov.Model([op.matmul(x, matrix(fetch("fc")), False, True).output(0)], [taps], "fuse")


def _step(config: HeadsConfig, fetch: Fetch) -> ov.Model:
    """Return a graph of the layer: logits [wanted, draft vocabulary], and what the head feeds itself [rows, width]."""
    layers = Layers(_decoder(config), fetch)
    embeds, features = (parameter(name, [-1, config.width], ov.Type.f32) for name in ("embeds", "features"))
    feature = layers.norm(features, "hidden_norm")
    attended = layers.attention(op.concat([layers.norm(embeds, "embed_norm"), feature], -1), 0)
    x = op.add(feature if config.norm_before_residual else features, attended)
    x = op.add(x, layers.feed_forward(layers.norm(x, "ffn_norm"), _LAYER))
    if config.norm_output:
        x = layers.norm(x, "norm")
    answered = layers.wanted(x) if config.norm_output else layers.norm(layers.wanted(x), "norm")
    logits = op.matmul(answered, matrix(fetch("head")), False, True)
    return ov.Model([logits.output(0), x.output(0)], [embeds, features, *layers.inputs], "step")


def _parallel(config: HeadsConfig, fetch: Fetch) -> ov.Model:
    """Return a graph from `features` [rows, width] to logits [heads, rows, draft vocabulary]."""
    features, answers = parameter("features", [-1, config.width], ov.Type.f32), []
    for head in range(config.count):
        x = features
        for block in range(config.depth):
            name = f"heads.{head}.blocks.{block}"
            mapped = op.add(op.matmul(x, matrix(fetch(name)), False, True), op.constant(fetch(f"{name}.bias").data))
            x = op.add(x, op.swish(mapped))
        logits = op.matmul(x, matrix(fetch(f"heads.{head}.out")), False, True)
        answers.append(op.unsqueeze(logits, i32(0)))
    return ov.Model([op.concat(answers, 0).output(0)], [features], "parallel")


def _decoder(config: HeadsConfig) -> ModelConfig:
    """Describe the head's layer as that of a Llama, which it is but for the width of what attention reads."""
    return ModelConfig(
        family="llama",
        vocab_size=config.draft_vocab_size,
        width=config.width,
        layers=1,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ffn_width=config.ffn_width,
        context=1,  # no part of a graph
        norm_epsilon=config.norm_epsilon,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
        biases=config.biases,
        tied_head=False,
    )
