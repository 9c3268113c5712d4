"""From one model's tokens to another's: which ones mean the same, and how bytes are spelled in tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.errors import VocabularyError
from paceline.models.sample import SAMPLE
from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import Comparison, compare, show_first

Way = Literal["native", "intersection", "retokenised"]
"""native: the same tokens. intersection: the drafter guesses tokens that both have (TLI, Timor et al. 2502.05202 §4).
retokenised: it writes text, which is put into the target's tokens (SLEM, §3)."""

COVERED = 0.95
"""The least share of common text, in both models' tokens, that shared tokens must make up. Below it a drafter held to
them has to leave its own way of writing too often."""
_ANCHOR = "\n"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True, slots=True, eq=False)
class Bridge:
    """How a drafter's guesses become the target's tokens."""

    way: Way
    reason: str
    comparison: Comparison
    target: Speller
    drafter: Speller
    names: NDArray[np.int64]
    """[the drafter's ids], the target's token that means the same, or -1; no token is named twice."""
    specials: Mapping[int, int]
    """The target's special tokens -> the drafter's that mean the same; empty where all tokens are the same."""
    shared: int
    """Tokens that both have."""
    target_share: float
    """Share of a sample of common text, in the target's tokens, that shared tokens make up."""
    drafter_share: float
    """The same in the drafter's tokens."""

    def names_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the target's token for each of the drafter's, -1 where there is none."""
        known = tokens < len(self.names)
        return np.where(known, self.names[np.where(known, tokens, 0)], -1)


class Speller:
    """Spells bytes in a tokenizer's tokens, where they follow others and may be no whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._bytes = _byte_ids(tokenizer)
        self.adds_space = self.bytes_of(tokenizer.encode("a")) == b" a"
        """Whether a blank is put before a text: one that is not in it."""

    def bytes_of(self, ids: list[int]) -> bytes:
        return b"".join(map(self.tokenizer.token_bytes, ids))

    def spell(self, data: bytes, start: bool = False) -> list[int]:
        """Return the tokens of `data`; bytes that are not UTF-8 are spelled one by one, as far as there are tokens.

        Args:
            start: whether nothing comes before it, so that the tokenizer may put its blank there.
        """
        found: list[int] = []
        for text, stray in runs(data):
            found += self._encode(text, start and not found) if text else []
            found += [self._bytes[byte] for byte in stray if byte in self._bytes]
        return found

    def _encode(self, text: str, start: bool) -> list[int]:
        if start or not self.adds_space:
            return self.tokenizer.encode(text)
        ids, left = self.tokenizer.encode(_ANCHOR + text), len(f" {_ANCHOR}".encode())
        for i, token in enumerate(ids):
            if left <= 0:
                return ids[i:] if left == 0 else self.tokenizer.encode(text)
            left -= len(self.tokenizer.token_bytes(token))
        return []


def runs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut bytes into text and what follows it that is not UTF-8: stray bytes, or the beginning of a character."""
    while data:
        try:
            yield data.decode(), b""
            return
        except UnicodeDecodeError as error:
            yield data[: error.start].decode(), data[error.start : error.end]
            data = data[error.end :]


def whole(data: bytes) -> bytes:
    """Return bytes without the beginning of a character at their end."""
    for n in range(1, min(3, len(data)) + 1):
        if data[-n] >= 0xC0:
            try:
                data[-n:].decode()
            except UnicodeDecodeError as error:
                return data[:-n] if error.reason == "unexpected end of data" else data
            return data
    return data


def connect(target: Tokenizer, drafter: Tokenizer) -> Bridge:
    """Choose how a drafter speaks to a target.

    Raises:
        VocabularyError: it cannot; too few tokens mean the same, and text does not come through both tokenizers whole.
    """
    comparison = compare(target, drafter)
    spellers = Speller(target), Speller(drafter)
    if comparison.kind == "native":
        names = np.arange(comparison.drafter_size, dtype=np.int64)
        names[comparison.common :] = -1
        return Bridge("native", "the same tokens", comparison, *spellers, names, {}, comparison.common, 1.0, 1.0)
    names = _names(target, drafter)
    specials = {int(name): i for i, name in enumerate(names) if name >= 0 and drafter.is_special(i)}
    shares = _share(target, set(names.tolist())), _share(drafter, set(np.flatnonzero(names >= 0).tolist()))
    way, reason = _choose(comparison, shares, all(_keeps_text(speller) for speller in spellers))
    return Bridge(way, reason, comparison, *spellers, names, specials, int((names >= 0).sum()), *shares)


def _share(tokenizer: Tokenizer, shared: set[int]) -> float:
    written = tokenizer.encode(SAMPLE)
    return sum(token in shared for token in written) / max(1, len(written))


def _choose(comparison: Comparison, shares: tuple[float, float], keeps_text: bool) -> tuple[Way, str]:
    told = f"shared tokens make up {shares[0]:.0%} of common text for the target and {shares[1]:.0%} for the drafter"
    if min(shares) >= COVERED:
        return "intersection", f"{told}, and {COVERED:.0%} are enough"
    if keeps_text:
        return "retokenised", f"{told}; below {COVERED:.0%} its text is worth more than its tokens"
    raise VocabularyError(
        f"the drafter cannot speak to the target: {told}, and text does not come through both tokenizers whole; "
        f"{show_first(comparison)}; use a drafter of the target's family, or one that needs no model (lookup, suffix)"
    )


def _keeps_text(speller: Speller) -> bool:
    return speller.bytes_of(speller.tokenizer.encode(SAMPLE)).removeprefix(b" ") == SAMPLE.encode()


def _meanings(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return what each token adds to the text -> its id; of several a plain one comes before the spelling of a byte."""
    found: dict[bytes, int] = {}
    spelled: dict[bytes, int] = {}
    for token in range(len(tokenizer.vocabulary)):
        if not tokenizer.is_special(token) and not tokenizer.is_unused(token):
            into = spelled if _spells_byte(tokenizer, token) else found
            into.setdefault(tokenizer.token_bytes(token), token)
    found = spelled | found
    found.pop(b"", None)
    return found


def _spells_byte(tokenizer: Tokenizer, token: int) -> bool:
    return not tokenizer.byte_level and _BYTE.fullmatch(tokenizer.vocabulary[token] or "") is not None


def _byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Return each byte that has a token of its own -> that token."""
    found: dict[int, int] = {}
    for token, spelling in enumerate(tokenizer.vocabulary):
        if spelling and (len(spelling) == 1 or _spells_byte(tokenizer, token)) and not tokenizer.is_special(token):
            meaning = tokenizer.token_bytes(token)
            if len(meaning) == 1:
                found.setdefault(meaning[0], token)
    return found


def _names(target: Tokenizer, drafter: Tokenizer) -> NDArray[np.int64]:
    """Return the target's token for each of the drafter's: of equal bytes, of equal spelling or role if special."""
    names = np.full(len(drafter.vocabulary), -1, np.int64)
    ours = _meanings(target)
    for meaning, token in _meanings(drafter).items():
        names[token] = ours.get(meaning, -1)
    special = {target.vocabulary[i]: i for i in range(len(target.vocabulary)) if target.is_special(i)}
    for token, spelling in enumerate(drafter.vocabulary):
        if drafter.is_special(token) and spelling in special:
            names[token] = special[spelling]
    for mine, other in zip(_roles(target), _roles(drafter), strict=True):
        if mine is not None and other is not None and names[other] < 0 and mine not in names:
            names[other] = mine
    return names


def _roles(tokenizer: Tokenizer) -> tuple[int | None, int | None]:
    ends = tokenizer.eos_ids
    return tokenizer.bos_id, ends[0] if ends else None
