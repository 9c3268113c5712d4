"""A shorter vocabulary for a drafter's head: a tail of rare tokens costs time at every draft and is hardly ever right.

Exactness is untouched: tokens that the drafter cannot name are the target's to name (FR-Spec, 2502.14856 §3). It is
frequency in the target's own use that counts (VocabTrim, 2506.22694); where none was seen, that in the tokenizer's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paceline.models.tokenizer import Tokenizer

Counts = NDArray[np.int64]
"""[ids], how often each token was said."""


def frequent(
    tokenizer: Tokenizer, size: int, always: Iterable[int] = (), counts: Counts | None = None
) -> NDArray[np.int64] | None:
    """Return `size` token ids, ascending, or None when there are no more than that.

    First `always` and the special tokens (ends of turns), wherever they are and however many; then what was said,
    most often first; then the lowest ids: byte-pair merges are learnt most frequent first.
    """
    total = len(tokenizer.vocabulary)
    if total <= size:
        return None
    kept = {*filter(tokenizer.is_special, range(total)), *(i for i in always if i < total)}
    rank = np.zeros(total, np.int64)
    if counts is not None:
        rank[: len(counts)] = counts[:total]
    rank[list(kept)] = np.iinfo(np.int64).max
    order = np.argsort(-rank, kind="stable")
    return np.sort(order[: max(size, len(kept))]).astype(np.int64)
