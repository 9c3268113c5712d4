"""A shorter vocabulary for a drafter's head: a tail of rare tokens costs time at every draft and is hardly ever right.

Exactness is untouched: tokens that the drafter cannot name are the target's to name (FR-Spec, 2502.14856 §3).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paceline.models.tokenizer import Tokenizer


def frequent(tokenizer: Tokenizer, size: int, always: Iterable[int] = ()) -> NDArray[np.int64] | None:
    """Return about `size` token ids, ascending, or None when there are no more than that.

    Byte-pair merges are learnt most frequent first, so a lower id is a more frequent token; `always` and special
    tokens (ends of turns) are kept wherever they are.
    """
    total = len(tokenizer.vocabulary)
    if total <= size:
        return None
    special = [i for i in range(size, total) if tokenizer.is_special(i)]
    return np.unique(np.array([*range(size), *special, *always], np.int64))
