"""One description of a decoder for every family that the graph builder knows.

Readers (`hf`, `gguf`) translate a checkpoint's own keys into this; runners read nothing else. Weights come under the
names of `tensor_shapes`, with rotary rows in half-split order and norm weights with any offset already added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import CorruptModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "gpt2")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context."""

    kind: Literal["linear", "llama3", "divisors"]
    factor: float
    """Divides every frequency, or (llama3) those of long waves."""
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()
    """Of each frequency, [rope_dim / 2], beside the factor: what a GGUF file holds of Llama 3's scaling."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer."""

    family: str
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    context: int
    norm: Literal["rms", "layer"] = "rms"
    norm_epsilon: float = 1e-5
    activation: Literal["silu", "gelu_tanh"] = "silu"
    gated_ffn: bool = True
    rope_theta: float | None = 10000.0
    """None: no rotary embedding; positions are a learned table (GPT-2)."""
    rope_dim: int | None = None
    """Dimensions of a head that rotate, from the first; None is all."""
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    """Of sliding-window layers, where it differs (Gemma-3); scaling does not apply to them."""
    attention_scale: float | None = None
    """None is head_dim ** -0.5."""
    window: int | None = None
    """Tokens that a sliding-window layer sees, the token itself included."""
    window_layers: tuple[int, ...] = ()
    """Layers with the window; others see everything."""
    query_key_norm: bool = False
    """RMS norm of every head's query and key before rotation (Qwen3, Gemma-3)."""
    post_norms: bool = False
    """A second norm after attention and after the feed-forward, before the residual (Gemma)."""
    embedding_scale: float = 1.0
    tied_head: bool = True
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    biases: frozenset[str] = frozenset()
    """Of q, k, v, o, gate, up, down: the linear maps that have a bias."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "ffn_width", "context"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 < value < 2**31:
                raise CorruptModel(f"the model's {name} is {value!r}; allowed: 1 to 2^31; download it again")
        if self.heads % self.kv_heads:
            raise CorruptModel(
                f"the model has {self.heads} heads over {self.kv_heads} key-value heads, which do not divide"
            )

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(_product(shape) for shape in self.tensor_shapes().values())

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor's name and shape; matrices are [out, in]."""
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, self.width)}
        if self.rope_theta is None:
            shapes["positions"] = (self.context, self.width)
        for i in range(self.layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes |= self._norm_shapes("norm")
        if not self.tied_head:
            shapes["head"] = (self.vocab_size, self.width)
        return shapes

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {name: (self.width,)}
        if self.norm == "layer":
            found[f"{name}.bias"] = (self.width,)
        return found

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        q, kv, d, f = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.width, self.ffn_width
        shapes = self._norm_shapes("attention_norm") | self._norm_shapes("ffn_norm")
        if self.post_norms:
            shapes |= self._norm_shapes("attention_post_norm") | self._norm_shapes("ffn_post_norm")
        if self.query_key_norm:
            shapes |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        linear = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q), "up": (f, d), "down": (d, f)}
        if self.gated_ffn:
            linear["gate"] = (f, d)
        shapes |= linear
        return shapes | {f"{name}.bias": (linear[name][0],) for name in sorted(self.biases)}


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
