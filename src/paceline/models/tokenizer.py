"""Text to tokens and back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from paceline.errors import CorruptModel, ModelNotFound, RequestError, UnsupportedModel
from paceline.models import gguf_tokenizer
from paceline.models.gguf import Fields, open_gguf
from paceline.models.gguf_tokenizer import Metadata, Parts

_BREAK = "\ufdd0"
"""A noncharacter, which no text contains: `shield` parts with it what must not become a special token."""

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes: printable Latin-1 for itself, the others from U+0100 up in order."""
    alphabet = set(ByteLevel.alphabet())
    plain = {byte: chr(byte) for byte in range(256) if chr(byte) in alphabet}
    others = (byte for byte in range(256) if byte not in plain)
    return {char: byte for byte, char in plain.items()} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


class Tokenizer:
    """A model's tokenizer, with what else its files say about text: special tokens and chat template.

    Tokens are bytes here. Text is their concatenation, read as UTF-8 with U+FFFD for what is not; this is what makes
    streamed text equal to decoded text. Safe to use from several threads.

    Raises:
        UnsupportedModel: tokens that are neither byte-level nor SentencePiece (WordPiece, for one).
    """

    def __init__(self, parts: Parts) -> None:
        self._backend, self._special, self._unused = parts.backend, dict(parts.special), parts.unused
        self.eos_ids, self.chat_template = parts.eos_ids, parts.chat_template
        self.byte_level, self.strips_space = _spelling(parts.backend)
        added = parts.backend.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._specials = {i: token.content for i, token in added.items() if token.special}
        self._lock = threading.Lock()
        self._breakable = _breakable(self._specials.values())

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """Read tokenizer.json and, where present, the files beside it.

        Raises:
            ModelNotFound: there is no such directory, or it has no tokenizer.json.
            CorruptModel: a file is damaged.
        """
        return cls(_read_directory(path))

    @classmethod
    def from_gguf(cls, source: Path | Metadata, name: str = "the file") -> Self:
        """Build from the tables of a GGUF file, given as a path or as its metadata when already parsed.

        Raises:
            ModelNotFound, CorruptModel: there is no such file, or it is damaged.
            UnsupportedModel: its kind of tokenizer is not known here.
        """
        if isinstance(source, Path):
            return cls(gguf_tokenizer.build(Fields(open_gguf(source), source.name), source.name))
        return cls(gguf_tokenizer.build(source, name))

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Strings by role: bos_token, eos_token, unk_token, pad_token; a role without a token is absent."""
        return dict(self._special)

    @property
    def bos_id(self) -> int | None:
        return self._role("bos_token")

    @cached_property
    def add_bos(self) -> bool:
        """Whether the model expects prompts to begin with `bos_id`; `encode(…, add_special=True)` sees to it."""
        around = self._encode("", add_special=True, allow_special=False)
        return bool(around) and around[0] == self.bos_id

    @cached_property
    def vocabulary(self) -> tuple[str | None, ...]:
        """The spelling of every token, by id; None where an id has no token."""
        by_id = {i: token for token, i in self._backend.get_vocab(with_added_tokens=True).items()}
        return tuple(by_id.get(i) for i in range(max(by_id, default=-1) + 1))

    def is_special(self, token_id: int) -> bool:
        return token_id in self._specials

    def is_unused(self, token_id: int) -> bool:
        """Whether an id has no token, or one that only fills the table."""
        if token_id in self._unused or not 0 <= token_id < len(self.vocabulary):
            return True
        token = self.vocabulary[token_id]
        return token is None or gguf_tokenizer.is_padding(token)

    def encode(self, text: str, add_special: bool = False, allow_special: bool = False) -> list[int]:
        """Return the tokens of a text.

        Args:
            add_special: put around it what the model expects, such as BOS.
            allow_special: let "<|im_end|>" and its like in the text become the special tokens they spell. Only for text
                whose author commands the model anyway, such as the prompt of a raw completion; text from a third party
                must not, for it could end its own turn and speak as the system.
        """
        return self._encode(text, add_special, allow_special)

    def shield(self, text: str) -> str:
        """Mark a text so that it cannot become special tokens when it is put into a template.

        `encode_shielded` reads the marks and drops them. A special token of a single character cannot be marked.
        """
        text = text.replace(_BREAK, "\ufffd")
        return self._breakable.sub(lambda match: match[0] + _BREAK, text) if self._breakable else text

    def encode_shielded(self, text: str) -> list[int]:
        """Return the tokens of a text where special tokens count, but for those that `shield` marked."""
        return [i for piece in text.split(_BREAK) for i in self._encode(piece, add_special=False, allow_special=True)]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of tokens; ids without a token add nothing."""
        data = b"".join(self.token_bytes(i) for i in ids if not (skip_special and i in self._specials))
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the text, which may be a part of a character."""
        token = self.vocabulary[token_id] if 0 <= token_id < len(self.vocabulary) else None
        if token is None:
            return b""
        if not self.byte_level:
            byte = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
        if token_id in self._added or any(char not in _ALPHABET for char in token):
            return token.encode()
        return bytes(_ALPHABET[char] for char in token)

    def _role(self, role: str) -> int | None:
        token = self._special.get(role)
        return None if token is None else self._backend.token_to_id(token)

    def _encode(self, text: str, add_special: bool, allow_special: bool) -> list[int]:
        with self._lock:  # whether special tokens match is a setting of the backend
            self._backend.encode_special_tokens = not allow_special
            try:
                return self._backend.encode(text, add_special_tokens=add_special).ids
            except (TypeError, UnicodeError) as error:  # half a surrogate pair is not text
                raise RequestError(f"the text cannot be encoded ({error}); give valid Unicode") from None


def _spelling(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """Return whether tokens are byte-level (otherwise SentencePiece), and whether text loses its first blank."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if kinds - {"Fuse"} == {"ByteLevel"}:
        return True, False
    if kinds & {"Replace", "Metaspace"} and kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return False, any(_strips(step) for step in steps)
    shown = ", ".join(sorted(str(kind) for kind in kinds))
    raise UnsupportedModel(f"the tokenizer's decoder is {shown}; byte-level and SentencePiece ones are supported")


def _strips(step: Mapping[str, Any]) -> bool:
    return bool(step.get("start")) if step["type"] == "Strip" else step.get("prepend_scheme", "never") != "never"


def _breakable(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Match the first character of every special token, those that overlap included."""
    spelled = "|".join(re.escape(token) for token in tokens if len(token) > 1)
    return re.compile(f"(?s)(?=(?:{spelled})).") if spelled else None


def _read_directory(path: Path) -> Parts:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelNotFound(f"{path} has no tokenizer.json; give a model directory that has one, or a .gguf file")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.encode("a", add_special_tokens=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics, which are not even that
        raise CorruptModel(f"{file} cannot be read ({_line(error)}); download it again") from None
    config, roles = _json(path / "tokenizer_config.json"), _json(path / "special_tokens_map.json")
    special = {role: _content(config.get(role) or roles.get(role), role, path) for role in _ROLES}
    known = {role: token for role, token in special.items() if token is not None}
    backend.no_padding()
    backend.no_truncation()
    bos, eos = (backend.token_to_id(known[role]) if role in known else None for role in ("bos_token", "eos_token"))
    if "add_bos_token" in config or "add_eos_token" in config:
        gguf_tokenizer.frame(
            backend, bos if config.get("add_bos_token") else None, eos if config.get("add_eos_token") else None
        )
    stated = _json(path / "generation_config.json").get("eos_token_id")
    return Parts(backend, known, _end_ids(eos, stated, path), _template(path, config))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file, empty if there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(found, dict):
        raise CorruptModel(f"{path} holds a {type(found).__name__}; an object is expected")
    return found


def _content(token: Any, role: str, path: Path) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    if content is not None and not isinstance(content, str):
        raise CorruptModel(f"{path}: {role} is {token!r}; a string is expected")
    return content


def _end_ids(eos: int | None, stated: Any, path: Path) -> tuple[int, ...]:
    listed = stated if isinstance(stated, list) else [stated]
    ids = [i for i in [eos, *listed] if i is not None]
    if not all(isinstance(i, int) and i >= 0 for i in ids):
        raise CorruptModel(f"{path / 'generation_config.json'}: eos_token_id is {stated!r}; ids are expected")
    return tuple(dict.fromkeys(ids))


def _template(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: its own file before the entry in the configuration, "default" among several."""
    try:
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise CorruptModel(f"{path / 'chat_template.jinja'} is not UTF-8 ({error})") from None
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise CorruptModel(f"{path / 'tokenizer_config.json'}: chat_template is a {type(found).__name__}, not a string")
    return found
