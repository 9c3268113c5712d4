"""Builds a tokenizer from the tables of a GGUF file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from paceline.errors import CorruptModel, UnsupportedModel

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACES}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS_AND_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_PATHS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_PATHS_AND_SPACES}"
_GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_PATHS_AND_SPACES}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Pre:
    """How text is cut before merging: each expression isolates its matches in what the one before left."""

    splits: tuple[str, ...]
    whole_words: bool = False
    """A piece that is itself a token is never taken apart, whatever the merges say."""
    add_bos: bool = False
    """What a file means that does not say."""
    nfc: bool = False


_DIGITS_GPT2 = _Pre((r"\p{N}", _GPT2))
_PRE: Mapping[str, _Pre] = {
    "default": _Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"), _Pre((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), _Pre((_LLAMA3,), True, True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _Pre((_LLAMA3,))),
    "qwen2": _Pre((_QWEN2,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _Pre((_QWEN2,))),
    "tekken": _Pre((_TEKKEN,), True, True),
    **dict.fromkeys(("gpt-4o", "llama4"), _Pre((_GPT4O,))),
    "deepseek-coder": _Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "deepseek-v3": _Pre((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}

_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
)
"""Control tokens that end a reply whether or not the file says so; many files name one only."""

_PHI3_TIGHT = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's control tokens swallow the blanks after them, but for these."""

_PADDING = re.compile(r"\[PAD\d+\]|<unused\d+>|<\|reserved_special_token_\d+\|>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Metadata(Protocol):
    """The keys of a GGUF file; a `dict` will do."""

    def get(self, key: str, default: Any = None, /) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a tokenizer is made of, wherever it was read."""

    backend: Tokenizer
    special: Mapping[str, str]
    """Strings by role: bos_token, eos_token, unk_token, pad_token."""
    eos_ids: tuple[int, ...]
    chat_template: str | None = None
    unused: frozenset[int] = frozenset()
    """Ids that stand for nothing: padding of the table."""


@dataclass(frozen=True, slots=True)
class _Tables:
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[tuple[str, str]] | None
    scores: Sequence[float] | None
    roles: Mapping[str, int]
    ids: Mapping[str, int]


def build(metadata: Metadata, name: str = "the file") -> Parts:
    """Build the tokenizer that the `tokenizer.*` keys describe.

    Raises:
        CorruptModel: a table is missing, misshapen or contradicts another.
        UnsupportedModel: the kind of tokenizer, or its way of cutting text, is not known here.
    """
    tables = _tables(metadata, name)
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            backend = _byte_level(metadata, tables, name)
        elif kind == "llama":
            backend = _sentencepiece(metadata, tables)
        else:
            raise UnsupportedModel(
                f"{name}: tokenizer {kind!r} is not supported (known: gpt2, llama); "
                "give a directory that has tokenizer.json"
            )
        _add_tokens(backend, tables, rstrip=kind == "llama" and metadata.get("general.architecture") == "phi3")
    except (CorruptModel, UnsupportedModel):
        raise
    except Exception as error:  # the library raises bare Exception
        raise CorruptModel(f"{name}: the tokenizer's tables contradict each other ({error})") from None
    template = metadata.get("tokenizer.chat_template")
    return Parts(
        backend,
        {role: tables.tokens[i] for role, i in tables.roles.items()},
        _end_ids(metadata, tables),
        template if isinstance(template, str) and template else None,
        frozenset(i for i, t in enumerate(tables.types) if t == TokenType.UNUSED or is_padding(tables.tokens[i])),
    )


def is_padding(token: str) -> bool:
    """Whether a token's name says that it only fills the table."""
    return _PADDING.fullmatch(token) is not None


def frame(backend: Tokenizer, bos: int | None, eos: int | None) -> None:
    """Set what `add_special` puts before and after a text."""
    # A template cannot name a token that has a colon or a blank in it, so the tokens' own names are not used.
    first, last = (() if bos is None else ("BOS",)), (() if eos is None else ("EOS",))
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B", *last],
        special_tokens=[(name, i) for name, i in (("BOS", bos), ("EOS", eos)) if i is not None],
    )


def _tables(metadata: Metadata, name: str) -> _Tables:
    tokens = _column(metadata, "tokens", str, name)
    if not tokens:
        raise CorruptModel(f"{name} has no tokenizer.ggml.tokens; convert it again with a current converter")
    tokens = [token or f"[EMPTY{i}]" for i, token in enumerate(tokens)]
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise CorruptModel(f"{name}: the tokenizer lists {twice!r} more than once")
    types = _column(metadata, "token_type", int, name)
    scores = _column(metadata, "scores", (int, float), name)
    for key, column in (("token_type", types), ("scores", scores)):
        if column is not None and len(column) != len(tokens):
            raise CorruptModel(f"{name}: tokenizer.ggml.{key} has {len(column)} entries for {len(tokens)} tokens")
    merges = _column(metadata, "merges", str, name)
    pairs = None if merges is None else [_pair(merge, name) for merge in merges]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    roles = {role: _id(metadata, f"{key}_token_id", len(tokens), name) for role, key in keys.items()}
    known = {role: i for role, i in roles.items() if i is not None}
    return _Tables(tokens, types or [TokenType.NORMAL] * len(tokens), pairs, scores, known, ids)


def _column(metadata: Metadata, key: str, kind: Any, name: str) -> list[Any] | None:
    column = metadata.get(f"tokenizer.ggml.{key}")
    if column is None:
        return None
    if not isinstance(column, Sequence) or isinstance(column, str):
        raise CorruptModel(f"{name}: tokenizer.ggml.{key} is a {type(column).__name__}; a list is expected")
    wrong = next((i for i, entry in enumerate(column) if not isinstance(entry, kind)), None)
    if wrong is not None:
        raise CorruptModel(f"{name}: entry {wrong} of tokenizer.ggml.{key} is a {type(column[wrong]).__name__}")
    return list(column)


def _pair(merge: str, name: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise CorruptModel(f"{name}: {merge!r} in tokenizer.ggml.merges is not two tokens with a blank between them")
    return left, right


def _id(metadata: Metadata, key: str, size: int, name: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < size:
        raise CorruptModel(f"{name}: tokenizer.ggml.{key} is {value!r}; the tokens are 0 to {size - 1}")
    return value


def _end_ids(metadata: Metadata, tables: _Tables) -> tuple[int, ...]:
    stated = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    named = [tables.ids.get(token) for token in _END_OF_TURN]
    control = [i for i in named if i is not None and tables.types[i] == TokenType.CONTROL]
    valid = [i for i in stated if isinstance(i, int) and 0 <= i < len(tables.tokens)]
    return tuple(dict.fromkeys(valid + control))


def _byte_level(metadata: Metadata, tables: _Tables, name: str) -> Tokenizer:
    pre = _PRE.get(metadata.get("tokenizer.ggml.pre") or "default")
    if pre is None:
        raise UnsupportedModel(
            f"{name}: pre-tokenizer {metadata.get('tokenizer.ggml.pre')!r} is not known "
            f"(known: {', '.join(_PRE)}); give a directory that has tokenizer.json"
        )
    if tables.merges is None:
        raise CorruptModel(f"{name} has no tokenizer.ggml.merges; convert it again with a current converter")
    backend = Tokenizer(BPE(vocab=dict(tables.ids), merges=list(tables.merges), ignore_merges=pre.whole_words))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    backend.decoder = decoders.ByteLevel()
    _frame(backend, metadata, tables, add_bos=pre.add_bos)
    return backend


def _sentencepiece(metadata: Metadata, tables: _Tables) -> Tokenizer:
    merges = tables.merges if tables.merges is not None else _merges(metadata, tables)
    bytes_known = all(f"<0x{byte:02X}>" in tables.ids for byte in range(256))
    unknown = tables.roles.get("unk_token")
    if unknown is None:
        unknown = next((i for i, kind in enumerate(tables.types) if kind == TokenType.UNKNOWN), None)
    backend = Tokenizer(
        BPE(
            vocab=dict(tables.ids),
            merges=list(merges),
            unk_token=None if unknown is None else tables.tokens[unknown],
            fuse_unk=True,
            byte_fallback=bytes_known,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    _frame(backend, metadata, tables, add_bos=True)
    return backend


def _merges(metadata: Metadata, tables: _Tables) -> list[tuple[str, str]]:
    """Recover merges: SentencePiece joins the pair whose whole has the best score, whichever its parts are."""
    ids, scores = tables.ids, tables.scores
    # Gemma's scores do not follow the order of its merges; the order of its table does.
    by_position = scores is None or str(metadata.get("general.architecture", "")).startswith("gemma")
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, i in ids.items():
        if tables.types[i] in (TokenType.CONTROL, TokenType.BYTE, TokenType.UNKNOWN):
            continue
        rank = float(i) if by_position or scores is None else -float(scores[i])
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((rank, i, cut if by_position else -cut, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _frame(backend: Tokenizer, metadata: Metadata, tables: _Tables, add_bos: bool) -> None:
    wanted = (("bos_token", "add_bos_token", add_bos), ("eos_token", "add_eos_token", False))
    bos, eos = (
        tables.roles.get(role) if metadata.get(f"tokenizer.ggml.{key}", say) else None for role, key, say in wanted
    )
    if bos is not None or eos is not None:
        frame(backend, bos, eos)


def _add_tokens(backend: Tokenizer, tables: _Tables, rstrip: bool) -> None:
    """Have control and user-defined tokens match whole, before any cutting; only control tokens are special."""
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    marked = [(t, k == TokenType.CONTROL) for t, k in zip(tables.tokens, tables.types, strict=True) if k in kinds]
    for special, group in itertools.groupby(marked, key=lambda entry: entry[1]):
        tokens = [
            AddedToken(token, normalized=False, special=special, rstrip=rstrip and special and token not in _PHI3_TIGHT)
            for token, _ in group
        ]
        backend.add_tokens(tokens)
