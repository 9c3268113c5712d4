"""How much memory an engine will take, before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from paceline.errors import OutOfMemory
from paceline.models.config import ModelConfig
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
    draft_kv: int
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
                "lower the context (--context), take int4 weights, or go without a draft model"
            )


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def free_bytes() -> int:
    return int(psutil.virtual_memory().available)


def kv_bytes(config: ModelConfig, weights: Precision, tokens: int) -> int:
    """Return the size of the KV blocks for so many tokens."""
    blocks = -(-tokens // BLOCK_SIZE)
    width = 4 if weights == "fp32" else 2
    return blocks * BLOCK_SIZE * 2 * config.layers * config.kv_heads * config.head_dim * width


def weight_bytes(config: ModelConfig, weights: Precision) -> int:
    """Return what the weights take: once as stored and mapped, once as the CPU plugin lays its matrices out."""
    packed = packed_bytes(config, weights)
    table = config.vocab_size * config.width
    return 2 * packed - (0 if config.tied_head else table)


def plan(
    config: ModelConfig,
    weights: Precision,
    tokens: int,
    rows: int,
    draft: tuple[ModelConfig, Precision] | None = None,
) -> MemoryPlan:
    """Plan for KV blocks of `tokens` tokens and passes of up to `rows` rows."""
    width = config.width + config.ffn_width + config.heads * config.head_dim
    return MemoryPlan(
        weights=weight_bytes(config, weights),
        kv=kv_bytes(config, weights, tokens),
        draft_weights=weight_bytes(*draft) if draft else 0,
        draft_kv=kv_bytes(*draft, tokens) if draft else 0,
        logits=4 * rows * width * 4 + 4 * min(rows, 128) * config.vocab_size,
        program=PROGRAM,
        free=free_bytes(),
    )
