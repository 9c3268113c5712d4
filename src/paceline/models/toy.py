"""Tiny built-in models for tests and first steps: `toy:NAME`. Nothing is downloaded, and results are exact.

table, ngram, chaos   logits are a fixed function of the last token, of the last three, or of all there is; chaos
                      changes with any mistake in the cache
llama, qwen, gemma    tiny random transformers (gemma with a sliding window)
NAME-draft            the same with some noise: a drafter for NAME that is often right
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from paceline.core.noise import Stream, gumbel, stream_key
from paceline.errors import ModelNotFound
from paceline.models.config import ModelConfig
from paceline.models.gguf_tokenizer import Parts
from paceline.models.tokenizer import Tokenizer
from paceline.models.weights import Checkpoint

SPECIAL = ("<eos>", "<user>", "<bot>")
VOCAB_SIZE = 256 + len(SPECIAL)
EOS_ID = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<bot>{% else %}<user>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ToyLaw:
    """Logits as a fixed function of the text so far."""

    vocab_size: int = VOCAB_SIZE
    order: int | None = 1
    """How many last tokens matter; None is all of them."""
    spread: float = 2.0
    """Standard deviation of the logits, roughly: the greater, the more certain the next token."""
    seed: int = 0
    noise: float = 0.0
    """Spread of what a drafter's logits add."""

    def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        """Return [vocabulary], after a text of these tokens."""
        seen = context if self.order is None else context[-self.order :]
        key = int.from_bytes(blake2b(np.array(seen, np.int64).tobytes(), digest_size=7).digest(), "little")
        ids = np.arange(self.vocab_size, dtype=np.int64)
        found = self.spread * gumbel(stream_key(self.seed, key, Stream.TARGET), ids)
        if self.noise:
            found = found + self.noise * gumbel(stream_key(self.seed, key, Stream.DRAFT), ids)
        return found.astype(np.float32)


LAWS = {
    "table": ToyLaw(),
    "ngram": ToyLaw(order=3, seed=1),
    "chaos": ToyLaw(order=None, seed=2),
}

_LLAMA = ModelConfig(
    family="llama",
    vocab_size=VOCAB_SIZE,
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_width=96,
    context=512,
    eos_ids=(EOS_ID,),
)
CONFIGS = {
    "llama": _LLAMA,
    "qwen": replace(_LLAMA, family="qwen2", biases=frozenset("qkv"), tied_head=False),
    "gemma": replace(
        _LLAMA,
        family="gemma3",
        layers=3,
        window=16,
        window_layers=(0, 1),
        query_key_norm=True,
        post_norms=True,
        activation="gelu_tanh",
        embedding_scale=8.0,
    ),
}
NAMES = tuple(name + end for name in (*LAWS, *CONFIGS) for end in ("", "-draft"))


def law(name: str) -> ToyLaw | None:
    """Return the law of a toy that is one, None for a tiny transformer.

    Raises:
        ModelNotFound: there is no toy of this name.
    """
    if name not in NAMES:
        raise ModelNotFound(f"there is no model toy:{name}; there are: {', '.join(NAMES)}")
    found = LAWS.get(name.removesuffix("-draft"))
    return replace(found, noise=1.0) if found and name.endswith("-draft") else found


def checkpoint(name: str) -> Checkpoint:
    """Return a tiny random transformer by its toy name."""
    config = CONFIGS[name.removesuffix("-draft")]
    return Checkpoint(config, RandomWeights(config, noise=0.3 if name.endswith("-draft") else 0.0))


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """Weights drawn once and for all; `noise` is how far a drafter's are from the target's."""

    config: ModelConfig
    noise: float = 0.0

    @property
    def fingerprint(self) -> str:
        # A set prints in another order in every process.
        stable = f"{replace(self.config, biases=frozenset())}{sorted(self.config.biases)}{self.noise}"
        return blake2b(stable.encode(), digest_size=16).hexdigest()

    def read(self, name: str) -> NDArray[np.float32]:
        shape = self.config.tensor_shapes()[name]
        values = self._normal(name, shape)
        if self.noise:
            values = values + self.noise * self._normal(f"{name}+", shape)
        if len(shape) == 1:
            centre = 0.0 if name.endswith("bias") else 1.0
            return (centre + 0.1 * values).astype(np.float32)
        # The table is wide, so that logits spread enough for the next token to be worth guessing.
        return (values * (0.5 if name in ("embed", "head") else shape[1] ** -0.5)).astype(np.float32)

    def rows(self, name: str, at_most: int) -> Iterator[NDArray[np.float32]]:
        yield self.read(name)

    def _normal(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape)


def tokenizer() -> Tokenizer:
    """Bytes as tokens, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL])
    return Tokenizer(Parts(backend, {"eos_token": SPECIAL[0]}, (EOS_ID,), TEMPLATE))
