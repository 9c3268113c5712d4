"""How much memory an engine will take, before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from paceline.drafters.features import MOST
from paceline.errors import OutOfMemory
from paceline.models.config import ModelConfig
from paceline.models.heads import HeadsConfig
from paceline.runners.openvino.attention import BLOCK_SIZE
from paceline.runners.openvino.quantise import Precision, packed_bytes

PROGRAM = 300 << 20
"""Python, its libraries and the compiled graph's own tables."""


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
    """Logits and activations of the largest pass."""
    program: int
    free: int
    """What the system can give now."""

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.draft_weights + self.draft_kv + self.logits + self.program

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


def kv_bytes(config: ModelConfig | HeadsConfig, weights: Precision, tokens: int) -> int:
    """Return the size of the KV blocks for so many tokens."""
    blocks = -(-tokens // BLOCK_SIZE)
    width = 4 if weights == "fp32" else 2
    layers = config.layers if isinstance(config, ModelConfig) else 1
    return blocks * BLOCK_SIZE * 2 * layers * config.kv_heads * config.head_dim * width


def weight_bytes(config: ModelConfig | HeadsConfig, weights: Precision) -> int:
    """Return what the weights take: once as stored and mapped, once as the CPU plugin lays its matrices out."""
    packed = packed_bytes(config, weights)
    only_looked_up = not config.tied_head if isinstance(config, ModelConfig) else config.own_embed
    return 2 * packed - (config.vocab_size * config.width if only_looked_up else 0)


def plan(
    config: ModelConfig,
    weights: Precision,
    tokens: int,
    rows: int,
    draft: tuple[ModelConfig, Precision] | None = None,
    heads: tuple[HeadsConfig, Precision] | None = None,
    sequences: int = 1,
) -> MemoryPlan:
    """Plan for KV blocks of `tokens` tokens, passes of up to `rows` rows, and so many sequences at a time."""
    beside: list[tuple[ModelConfig | HeadsConfig, Precision]] = [d for d in (draft, heads) if d is not None]
    return MemoryPlan(
        weights=weight_bytes(config, weights),
        kv=kv_bytes(config, weights, tokens),
        draft_weights=sum(weight_bytes(*drafter) for drafter in beside),
        draft_kv=sum(kv_bytes(*drafter, tokens) for drafter in beside)
        + (_unread_bytes(heads[0], tokens, sequences) if heads else 0),
        logits=_pass_bytes(config, rows) + (_heads_pass_bytes(heads[0], rows) if heads else 0),
        program=PROGRAM,
        free=free_bytes(),
    )


def _pass_bytes(config: ModelConfig, rows: int) -> int:
    width = config.width + config.ffn_width + config.heads * config.head_dim
    return 4 * rows * width * 4 + 4 * min(rows, 128) * config.vocab_size


def _unread_bytes(config: HeadsConfig, tokens: int, sequences: int) -> int:
    """Medusa heads need the newest position alone."""
    if config.kind == "medusa":
        return 0
    return 4 * min(tokens, sequences * MOST) * len(config.taps) * config.target_width


def _heads_pass_bytes(config: HeadsConfig, rows: int) -> int:
    """Taps, features and activations are of every row; few rows are answered, by each of the heads."""
    width = 2 * len(config.taps) * config.target_width + 4 * config.width + config.ffn_width
    return 4 * rows * width + 4 * min(rows, 128) * max(config.count, 1) * config.draft_vocab_size
