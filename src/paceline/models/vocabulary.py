"""Do two tokenizers speak the same tokens?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.models.tokenizer import Tokenizer

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """An id that means one thing to the target and another to the drafter; None means nothing."""

    token_id: int
    target: str | None
    drafter: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a drafter's vocabulary relates to the target's.

    "native": every id that both have means the same, and what only one of them has is padding. Ids at and above
    `common` may still come from the larger model: no drafter may be fed one.
    """

    kind: Literal["native", "different"]
    common: int
    """Ids that both tables have."""
    target_size: int
    drafter_size: int
    different: int
    """Ids that differ."""
    first: tuple[Difference, ...] = ()
    """The first of them, at most five."""


def compare(target: Tokenizer, drafter: Tokenizer) -> Comparison:
    """Compare by meaning: the bytes that a token adds to the text, however its table spells them."""
    sizes = len(target.vocabulary), len(drafter.vocabulary)
    differing = [i for i in range(max(sizes)) if not _same(target, drafter, i)]
    first = tuple(Difference(i, _spelling(target, i), _spelling(drafter, i)) for i in differing[:_SHOWN])
    kind: Literal["native", "different"] = "different" if differing else "native"
    return Comparison(kind, min(sizes), *sizes, len(differing), first)


def show_first(found: Comparison) -> str:
    """Return in words how many ids differ, and the first of them."""
    shown = "; ".join(f"{d.token_id}: {_show(d.target)} and {_show(d.drafter)}" for d in found.first)
    return (
        f"{found.different} ids differ (sizes {found.target_size} and {found.drafter_size}), first, target's and "
        f"drafter's: {shown}"
    )


def _same(target: Tokenizer, drafter: Tokenizer, token_id: int) -> bool:
    spelled = _spelling(target, token_id)
    if target.byte_level == drafter.byte_level and spelled == _spelling(drafter, token_id):
        return True
    if target.token_bytes(token_id) == drafter.token_bytes(token_id):
        return True
    return target.is_unused(token_id) and drafter.is_unused(token_id)


def _spelling(tokenizer: Tokenizer, token_id: int) -> str | None:
    return tokenizer.vocabulary[token_id] if token_id < len(tokenizer.vocabulary) else None


def _show(token: str | None) -> str:
    return "nothing" if token is None else repr(token)
