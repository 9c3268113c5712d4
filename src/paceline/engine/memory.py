"""How much memory an engine will take, before any of it is allocated."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import psutil

from paceline.drafters.features import MOST
from paceline.drafters.history import TENANT_TOKENS
from paceline.drafters.reading import CATCH_UP_ROWS
from paceline.drafters.recycle import TOKENS as RECYCLED
from paceline.errors import OutOfMemory
from paceline.governor.profile import PROFILED_ROWS
from paceline.models.config import ModelConfig
from paceline.models.heads import HeadsConfig
from paceline.runners.openvino.attention import BLOCK_SIZE
from paceline.runners.openvino.quantise import (
    HeadForm,
    KVForm,
    Precision,
    kind_of,
    packed_shapes,
    slot_shape,
    stored_shapes,
    tensor_bytes,
    usual_head,
)
from paceline.runners.openvino.runner import COARSE, FINE

PROGRAM = 110 << 20
"""Python, its libraries, and the plugin's code: 41 MiB of data, 68 MiB of pages of their files."""
LAYER = 3 << 18
"""Of a compiled graph, a layer of a model: its operations and their kernels, but no weights."""
SIZE = 1 << 20
"""Of a compiled graph, the kernels for one number of rows; the plugin keeps them."""
VOCABULARY_ENTRY = 288
"""Of a tokenizer, a token."""
SCALES = 3
"""Copies of a matrix's scales beside those that are counted with it: the graph's own, and fp32 ones of the plugin."""
PAIRS, WIDTHS = 5, 37
"""What a row of a pass takes, in numbers of fp32: the plugin lends each tensor a block that grows to the largest that
ever passes through it. Measured in int8, int4 and fp32: five times the inner rows of the feed-forward, gate and up, and
37 times the model's width; within a fifth from 135 million weights to 1.5 billion."""
HISTORY_TOKEN, RECYCLE_TOKEN = 400, 1300
"""What `suffix` keeps of a token that was said, index included, and `recycle` of a token's successors."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, by use."""

    weights: int
    kv: int
    draft_weights: int
    """Of a draft model and of draft heads."""
    draft_kv: int
    """With the target's states that heads have not read yet."""
    logits: int
    """Logits and activations of the largest pass, and of the draft model's."""
    remembered: int
    """What drafters keep of what one tenant's requests have said, at most."""
    program: int
    """With tokenizers and compiled graphs."""
    free: int
    """What the system can give now."""

    @property
    def total(self) -> int:
        held = self.weights + self.kv + self.draft_weights + self.draft_kv
        return held + self.logits + self.remembered + self.program

    @property
    def fits(self) -> bool:
        return self.total <= self.free

    def require(self) -> None:
        """Raise OutOfMemory when it does not fit."""
        if not self.fits:
            raise OutOfMemory(
                f"about {mib(self.total)} of memory are needed (weights {mib(self.weights)}, KV {mib(self.kv)}, "
                f"draft {mib(self.draft_weights + self.draft_kv)}) and {mib(self.free)} are free; "
                "lower the context (--context), take int4 weights, or go without a draft model or heads"
            )


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def free_bytes() -> int:
    return int(psutil.virtual_memory().available)


def trim() -> None:
    """Give freed memory back to the system, where the allocator keeps it: what is left between the pieces that are in
    use is not used again by larger ones."""
    if sys.platform == "linux":
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if give_back is not None:
            give_back(0)


def kv_bytes(config: ModelConfig | HeadsConfig, weights: Precision, tokens: int, kv: KVForm = "f16") -> int:
    """Return the size of the KV blocks for so many tokens.

    Raises:
        OptionError: keys and values cannot be kept in this form beside these weights.
    """
    blocks = -(-tokens // BLOCK_SIZE)
    numbers, kind = slot_shape(weights, kv, config.head_dim)
    layers = config.layers if isinstance(config, ModelConfig) else 1
    return blocks * BLOCK_SIZE * 2 * layers * config.kv_heads * numbers * np.dtype(kind).itemsize


def weight_bytes(
    config: ModelConfig | HeadsConfig, weights: Precision, head: HeadForm | None = None, cut: int | None = None
) -> int:
    """Return what the weights take: as the CPU plugin lays its matrices out, and as they were read.

    A model's int4 and int8 ones are read from a mapped file, whose memory is given back: they count once, and tables
    that are only looked up not at all.

    Args:
        cut: rows that are left of the matrix that answers; they are copied out of the file, so they count as read.
    """
    shapes = stored_shapes(config, head)
    is_mapped = isinstance(config, ModelConfig) and weights in ("int4", "int8")
    answers = "head" if "head" in shapes else "embed"
    tables = {"positions", *({"embed"} if _only_looked_up(config, answers) else ())}
    total = 0
    for name, shape in shapes.items():
        if name == answers and cut is not None and cut < shape[0]:
            rows = (cut, shape[1])
            total += tensor_bytes(name, rows, weights, head) + _laid_out(name, rows, weights, head)
            continue
        total += 0 if is_mapped else tensor_bytes(name, shape, weights, head)
        total += 0 if name in tables else _laid_out(name, shape, weights, head)
    return total


def _only_looked_up(config: ModelConfig | HeadsConfig, answers: str) -> bool:
    """Whether the embeddings are no matrix of a graph."""
    return answers != "embed" if isinstance(config, ModelConfig) else True


def _laid_out(name: str, shape: tuple[int, ...], weights: Precision, head: HeadForm | None) -> int:
    """Return what a matrix takes in the plugin, which multiplies bf16 in fp32, and keeps it twice for that."""
    kind = kind_of(name, shape, weights, head)
    if kind == "bf16":
        return 2 * tensor_bytes(name, shape, "fp32")
    _, *beside = packed_shapes(kind, shape)
    scales = sum(math.prod(sizes) * dtype.itemsize for sizes, dtype in beside)
    return tensor_bytes(name, shape, weights, head) + SCALES * scales


def plan(
    config: ModelConfig,
    weights: Precision,
    tokens: int,
    rows: int,
    draft: tuple[ModelConfig, Precision] | None = None,
    heads: tuple[HeadsConfig, Precision] | None = None,
    sequences: int = 1,
    head: HeadForm | None = None,
    kv: KVForm = "f16",
    cut: int | None = None,
    drafters: Collection[str] = (),
) -> MemoryPlan:
    """Plan for KV blocks of `tokens` tokens, passes of up to `rows` rows, and so many sequences at a time.

    Args:
        cut: tokens that the draft model's head is cut to.
        drafters: names of those that are used; some remember.
    """
    models = [(config, rows), *([(draft[0], CATCH_UP_ROWS)] if draft else [])]
    answered = max(*PROFILED_ROWS, 2 * sequences)
    draft_weights = weight_bytes(*draft, usual_head(*draft), cut) if draft else 0
    draft_kv = kv_bytes(*draft, tokens) if draft else 0
    logits = _pass_bytes(config, min(rows, tokens), answered, config.vocab_size)
    if draft:
        few = min(draft[0].vocab_size, cut or draft[0].vocab_size)
        logits += _pass_bytes(draft[0], min(CATCH_UP_ROWS, tokens), sequences, few)
    if heads:
        draft_weights += weight_bytes(*heads)
        draft_kv += kv_bytes(*heads, tokens) + _unread_bytes(heads[0], tokens, sequences)
        logits += _heads_pass_bytes(heads[0], rows)
    return MemoryPlan(
        weights=weight_bytes(config, weights, head),
        kv=kv_bytes(config, weights, tokens, kv),
        draft_weights=draft_weights,
        draft_kv=draft_kv,
        logits=logits,
        remembered=_remembered_bytes(drafters, config.vocab_size),
        program=PROGRAM + sum(_graph_bytes(model, min(most, tokens)) for model, most in models),
        free=free_bytes(),
    )


def _pass_bytes(config: ModelConfig, rows: int, answered: int, vocabulary: int) -> int:
    """Return what the largest pass takes; logits twice, in the plugin and as its answer."""
    inner = config.ffn_width * (2 if config.gated_ffn else 1)
    return 4 * rows * (PAIRS * inner + WIDTHS * config.width) + 2 * 4 * answered * vocabulary


def _graph_bytes(config: ModelConfig, rows: int) -> int:
    """Return what a compiled graph takes, and its model's tokenizer."""
    sizes = min(rows, FINE) + max(0, rows - FINE) // COARSE
    return LAYER * config.layers + SIZE * sizes + VOCABULARY_ENTRY * config.vocab_size


def _remembered_bytes(drafters: Collection[str], vocab_size: int) -> int:
    history = TENANT_TOKENS * HISTORY_TOKEN if "suffix" in drafters else 0
    return history + (min(RECYCLED, vocab_size) * RECYCLE_TOKEN if "recycle" in drafters else 0)


def _unread_bytes(config: HeadsConfig, tokens: int, sequences: int) -> int:
    """Medusa heads need the newest position alone."""
    if config.kind == "medusa":
        return 0
    return 4 * min(tokens, sequences * MOST) * len(config.taps) * config.target_width


def _heads_pass_bytes(config: HeadsConfig, rows: int) -> int:
    """Taps, features and activations are of every row; few rows are answered, by each of the heads."""
    width = 2 * len(config.taps) * config.target_width + 4 * config.width + config.ffn_width
    return 4 * rows * width + 4 * min(rows, 128) * max(config.count, 1) * config.draft_vocab_size
