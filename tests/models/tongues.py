"""Tokenizers that say the same text in different tokens: trained on a page of text, with ids of their own."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from paceline.models.bridge import Bridge, connect
from paceline.models.gguf_tokenizer import Parts
from paceline.models.sample import SAMPLE
from paceline.models.tokenizer import Tokenizer
from tests.models.test_gguf_tokenizer import piece_tables

LETTERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GGUF = "tokenizer.ggml"
PIECES = [
    "▁",
    "▁t",
    "he",
    "▁the",
    "▁a",
    "in",
    "ing",
    "▁w",
    "or",
    "▁wor",
    "er",
    "▁▁",
    "▁▁▁▁",
    "on",
    "re",
    "▁b",
    "at",
    "▁an",
    *"abcdefghijklmnopqrstuvwxyzTW.",
]


def trained(size: int, pattern: str | None, special: tuple[str, ...], bos: bool = False) -> Tokenizer:
    """A byte-level tokenizer; without a pattern it cuts as GPT-2 does."""
    backend = tokenizers.Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")] if pattern else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(token, special=True) for token in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([SAMPLE], trainer)
    roles = {"eos_token": special[0]} | ({"bos_token": special[-1]} if bos else {})
    return Tokenizer(Parts(backend, roles, (backend.token_to_id(special[0]),)))


@functools.cache
def tongue(name: str) -> Tokenizer:
    """broad and narrow share most of what they say, broad and plain little; pieces is SentencePiece, with BOS; mute has
    neither the bytes nor the letters of common text."""
    if name == "pieces":
        more = {f"{GGUF}.add_bos_token": True}
        return Tokenizer.from_gguf(piece_tables(PIECES) | more)
    if name == "mute":
        tables = piece_tables(PIECES)
        tokens = [f"word{i}" if token.startswith("<0x") else token for i, token in enumerate(tables[f"{GGUF}.tokens"])]
        return Tokenizer.from_gguf(
            tables | {f"{GGUF}.tokens": tokens, f"{GGUF}.token_type": [2, 3, 3] + [1] * (len(tokens) - 3)}
        )
    made = {
        "broad": lambda: trained(420, None, ("<eos>", "<user>")),
        "narrow": lambda: trained(415, LETTERS, ("<end>", "<user>")),
        "plain": lambda: trained(262, None, ("<stop>", "<user>", "<only>")),
    }
    return made[name]()


def save(name: str, directory: Path) -> Path:
    """Write a model directory that has this tokenizer, and an architecture that nobody knows."""
    directory.mkdir()
    backend, roles = tongue(name)._backend, tongue(name).special_tokens
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(dict(roles)))
    (directory / "config.json").write_text(json.dumps({"architectures": ["PigeonForCausalLM"]}))
    return directory


@functools.cache
def bridge(target: str, drafter: str) -> Bridge:
    return connect(tongue(target), tongue(drafter))
