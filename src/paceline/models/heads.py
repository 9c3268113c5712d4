"""Draft heads that were trained for one target: what they are, whatever layout they were published in.

eagle3  a decoder layer on the target's tapped hidden states and the next token's embedding, that then goes on from
        its own output (EAGLE-3, 2503.01840 §3).
medusa  several small residual networks on the target's last hidden state, one for each token ahead (2401.10774 §3.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CorruptModel
from paceline.models.config import RopeScaling

Kind = Literal["eagle3", "medusa"]
Layout = Literal["SafeAILab", "speculators", "FasterDecoding"]
Shapes = dict[str, tuple[int, ...]]

_LARGEST = 2**31 - 1
_MOST_MAPS = 64
"""A damaged count of taps, heads or blocks must not become a list of a billion."""


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What heads must fit of their target."""

    width: int
    vocab_size: int
    layers: int
    name: str = "the target"


@dataclass(frozen=True, slots=True)
class HeadsConfig:
    """Heads of one target."""

    kind: Kind
    layout: Layout
    """Of the checkpoint that they came from."""
    width: int
    """Of the heads' own hidden states; for medusa the target's."""
    target_width: int
    vocab_size: int
    """The target's."""
    draft_vocab_size: int
    taps: tuple[int, ...]
    """Layers after which the target's hidden state is read, ascending: 0 is after the first, the target's number of
    layers is what its head reads, the state after the final norm (see `runners.base.Want`)."""
    heads: int = 0
    """Attention heads; this and what follows to `own_embed` are eagle3's, and 0 for medusa."""
    kv_heads: int = 0
    head_dim: int = 0
    ffn_width: int = 0
    norm_epsilon: float = 1e-5
    """Of every RMS norm here."""
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    biases: frozenset[str] = frozenset()
    """Of q, k, v, o, gate, up, down: the linear maps that have a bias."""
    tap_norms: bool = False
    """EAGLE-3.1: an RMS norm of each tap before `fc`."""
    input_norm: bool = False
    """One RMS norm over all taps together before `fc`."""
    norm_before_residual: bool = False
    """Whether the residual of attention is the feature after `hidden_norm`, rather than before."""
    norm_output: bool = False
    """Whether the head feeds itself its output after `norm`, rather than before."""
    own_embed: bool = False
    """Whether token embeddings come with the heads; otherwise they are the target's."""
    count: int = 0
    """Number of heads, each a token further ahead; this and `depth` are medusa's, and 0 for eagle3."""
    depth: int = 0
    """Residual blocks a head."""

    def __post_init__(self) -> None:
        for name, value in self._sizes().items():
            if type(value) is not int or not 0 < value <= _LARGEST:
                raise CorruptModel(f"the heads' {name} is {value!r}; allowed: 1 to 2^31; fetch the heads again")
        for name, value in {"taps": len(self.taps), "count": self.count, "depth": self.depth}.items():
            if not 0 <= value <= _MOST_MAPS:
                raise CorruptModel(f"the heads' {name} is {value!r}; allowed: 0 to {_MOST_MAPS}; fetch the heads again")
        if self.kind == "eagle3" and (self.heads % self.kv_heads or self.head_dim % 2):
            raise CorruptModel(
                f"the heads have {self.heads} attention heads of {self.head_dim} over {self.kv_heads} key-value heads; "
                "the second number must be even, the third divide the first"
            )

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def tensor_shapes(self) -> Shapes:
        """Return every tensor's name and shape; matrices are [out, in]."""
        return self._eagle3() if self.kind == "eagle3" else self._medusa()

    def _sizes(self) -> dict[str, int]:
        names = ["width", "target_width", "vocab_size", "draft_vocab_size"]
        names += ["heads", "kv_heads", "head_dim", "ffn_width"] if self.kind == "eagle3" else ["count"]
        return {name: getattr(self, name) for name in names}

    def _eagle3(self) -> Shapes:
        d, f, taps = self.width, self.ffn_width, len(self.taps)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linear: Shapes = {"q": (q, 2 * d), "k": (kv, 2 * d), "v": (kv, 2 * d), "o": (d, q)}
        linear |= {"gate": (f, d), "up": (f, d), "down": (d, f)}
        found: Shapes = {"fc": (d, taps * self.target_width), "head": (self.draft_vocab_size, d)}
        found |= dict.fromkeys(("embed_norm", "hidden_norm", "ffn_norm", "norm"), (d,))
        found |= linear | {f"{name}.bias": linear[name][:1] for name in sorted(self.biases)}
        if self.tap_norms:
            found |= {f"tap_norms.{i}": (self.target_width,) for i in range(taps)}
        if self.input_norm:
            found["input_norm"] = (taps * self.target_width,)
        if self.own_embed:
            found["embed"] = (self.vocab_size, d)
        return found

    def _medusa(self) -> Shapes:
        found: Shapes = {}
        for j in range(self.count):
            for k in range(self.depth):
                found |= {f"heads.{j}.blocks.{k}": (self.width,) * 2, f"heads.{j}.blocks.{k}.bias": (self.width,)}
            found[f"heads.{j}.out"] = (self.draft_vocab_size, self.width)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Heads as read from disk, before any runner."""

    config: HeadsConfig
    tensors: Mapping[str, NDArray[np.float32]]
    """By the names of `HeadsConfig.tensor_shapes`, unpacked anew at each look."""
    draft_to_target: NDArray[np.int64] | None = None
    """[draft vocabulary], the target's id of each of the heads' token ids; None when they are the same."""
