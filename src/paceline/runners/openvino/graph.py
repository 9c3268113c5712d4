"""A decoder as an OpenVINO graph, built from its configuration and its packed weights.

One builder for every family: what differs between them is in `ModelConfig`. Rows of all sequences run flat; the head
answers only the wanted rows. Token embeddings are looked up by the caller, so the table exists once, also when it is
the head as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset13 as op

from paceline.models.config import ModelConfig
from paceline.runners.openvino.attention import parameter
from paceline.runners.openvino.layers import Fetch, Layers, matrix
from paceline.runners.openvino.quantise import Packed


def build(config: ModelConfig, fetch: Fetch, taps: Sequence[int] = (), head: Packed | None = None) -> ov.Model:
    """Return a graph with the inputs of `INDEX_INPUTS`, `embeds` [rows, width], `position_ids` [rows] and `rows`
    [wanted], one key and one value cache a layer; its outputs are logits [wanted, vocabulary] and, for each tap in
    the order given, the hidden state of every row [rows, width].

    Args:
        taps: layers after which hidden states are wanted; the number of layers stands for the state after the final
            norm.
        head: the output matrix, where it is not the checkpoint's own (a trimmed vocabulary).
    """
    layers = Layers(config, fetch)
    embeds = parameter("embeds", [-1, config.width], ov.Type.f32)
    x, states = embeds, {}
    for number in range(config.layers):
        x = states[number] = _layer(layers, x, number)
    if config.layers in taps:
        x = states[config.layers] = layers.norm(x, "norm")
        x = layers.wanted(x)
    else:  # fewer rows to normalise
        x = layers.norm(layers.wanted(x), "norm")
    logits = op.matmul(x, matrix(head or fetch("embed" if config.tied_head else "head")), False, True)
    outputs = [node.output(0) for node in (logits, *(states[tap] for tap in taps))]
    return ov.Model(outputs, [embeds, *layers.inputs], "decoder")


def _layer(layers: Layers, x: ov.Node, number: int) -> ov.Node:
    name, post_norms = f"layers.{number}.", layers.config.post_norms
    attended = layers.attention(layers.norm(x, f"{name}attention_norm"), number)
    if post_norms:
        attended = layers.norm(attended, f"{name}attention_post_norm")
    x = op.add(x, attended)
    fed = layers.feed_forward(layers.norm(x, f"{name}ffn_norm"), name)
    if post_norms:
        fed = layers.norm(fed, f"{name}ffn_post_norm")
    return op.add(x, fed)
