"""Draft heads beside a target: found to fit, loaded where the target runs, and measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from paceline.drafters.heads import DraftHeads, ParallelHeads, StepHeads
from paceline.engine.options import Options
from paceline.errors import OptionError
from paceline.governor.profile import seconds_of
from paceline.models.heads import Heads, TargetShape
from paceline.models.heads_files import Stored
from paceline.models.heads_layouts import read_heads
from paceline.models.load import Model
from paceline.models.shards import read_json
from paceline.runners.base import Runner, Span
from paceline.runners.heads import StepHead
from paceline.runners.kv import Pool
from paceline.runners.openvino.quantise import Precision


def read(options: Options, target: Model, runner: str) -> Heads | None:
    """Read the heads that the options name, if any; their tensors are read when they are loaded.

    Raises:
        ModelError, VocabularyError: they cannot be read, or were trained for another target.
        OptionError: the target cannot have heads, or another option cannot be meant for them.
    """
    if options.heads is None:
        return None
    if runner == "toy":
        raise OptionError(
            f"heads read the target's hidden states, and {target.source.id} is a formula; leave --heads out"
        )
    if runner == "torch" and options.draft_weights is not None and options.draft is None:
        raise OptionError(
            f"draft_weights is {options.draft_weights!r}; heads on the torch runner run in the target's type; leave "
            "it out"
        )
    return read_heads(Path(os.path.expanduser(options.heads)), _shape(target), _unpickle)


def precision(options: Options, is_toy: bool) -> Precision:
    """Return the form of the heads' matrices on the openvino runner: they are small, and int4 would cost guesses."""
    return options.draft_weights or ("fp32" if is_toy else "int8")


def load(heads: Heads, runner: Runner, weights: Precision, kv_tokens: int, reuse: bool) -> DraftHeads:
    """Load heads where their target runs.

    Args:
        weights: see `precision`.
        kv_tokens: tokens that their KV pool holds.
        reuse: whether sequences of the same start share what is cached of it.
    """
    step = heads.config.kind == "eagle3"
    made: Any
    if runner.info.name == "torch":
        from paceline.runners.torch.heads import TorchParallelHead, TorchStepHead
        from paceline.runners.torch.runner import TorchRunner

        assert isinstance(runner, TorchRunner)
        made = TorchStepHead(heads, runner) if step else TorchParallelHead(heads, runner)
    else:
        from paceline.runners.openvino.heads import OpenVINOParallelHead, OpenVINOStepHead

        made = OpenVINOStepHead(heads, runner.embed, weights) if step else OpenVINOParallelHead(heads, weights)
    return StepHeads(heads, made, _pool(made, kv_tokens, reuse)) if step else ParallelHeads(heads, made)


def seconds(given: DraftHeads) -> float:
    """Measure one more drafted token: a pass of a head that goes token by token, a share of one of all at once."""
    width = given.heads.config.width
    if isinstance(given, ParallelHeads):
        lone = np.zeros((1, width), np.float32)
        return seconds_of(lambda: _touch(given.runner.forward(lone))) / given.runner.count
    span, feature = Span.causal([0], 0, np.zeros(1, np.int32), [0]), np.zeros((1, width), np.float32)
    return seconds_of(lambda: _touch(given.runner.forward([span], feature).logits))


def _touch(logits: Any) -> None:
    """Read the answer, as a draft would."""
    logits.argmax(-1)


def _pool(head: StepHead, tokens: int, reuse: bool) -> Pool:
    blocks = -(-tokens // head.block_size)
    head.allocate(blocks)
    return Pool(blocks, head.block_size, head.move, reuse)


def _shape(target: Model) -> TargetShape:
    """Return what heads must fit; of an architecture that only transformers knows, as its config.json says it."""
    if target.checkpoint is not None:
        config = target.checkpoint.config
        return TargetShape(config.width, config.vocab_size, config.layers, target.source.id)
    path = target.source.path / "config.json"
    keys = read_json(path)
    inner = keys.get("text_config", keys)
    names = ("hidden_size", "vocab_size", "num_hidden_layers")
    width, vocab_size, layers = (inner.get(name) if isinstance(inner, dict) else None for name in names)
    if not (type(width) is int and type(vocab_size) is int and type(layers) is int):
        raise OptionError(
            f"{path} does not say {', '.join(names)}, by which heads are found to fit the model; leave --heads out"
        )
    return TargetShape(width, vocab_size, layers, target.source.id)


def _unpickle(path: Path) -> dict[str, Stored]:
    from paceline.runners.torch import pickled

    return dict(pickled.read(path))
