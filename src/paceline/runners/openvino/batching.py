"""A ragged batch as the inputs of paged attention.

The plugin has several kernels, and they round differently: one for a sequence of one row, one for a sequence of many,
one for a lone sequence of one row. Quantised activations turn such a last bit into tenths of a logit. So where results
must not depend on what runs beside them, every row of a span is a sequence of its own, over the same blocks: attention
begins when all keys and values of the pass are written, so a row finds those of the rows before it in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from paceline.runners.base import Span
from paceline.runners.openvino.attention import BLOCK_SIZE

Ints = NDArray[np.int32]
_NO_MASK = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What attention takes for one sequence."""

    cached: int
    rows: int
    blocks: Ints
    mask: NDArray[np.bool_] | None = None


def parts(spans: Sequence[Span], stepwise: bool) -> list[Part]:
    """Return the sequences of a pass; with `stepwise`, rows of stepwise spans each on their own."""
    found: list[Part] = []
    for span in spans:
        rows = len(span.tokens)
        if stepwise and span.stepwise and span.mask is None:
            found += [Part(span.cached + row, 1, span.blocks) for row in range(rows)]
        else:
            found.append(Part(span.cached, rows, span.blocks, span.mask))
    return found


def index(parts: Sequence[Part]) -> dict[str, NDArray[np.generic]]:
    """Return the inputs that say which rows are whose, where their keys and values lie, and which row sees which."""
    lengths = [part.cached + part.rows for part in parts]
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    masks = [part.mask for part in parts if part.mask is not None]
    return {
        "past_lens": np.array([part.cached for part in parts], np.int32),
        "subsequence_begins": begins([part.rows for part in parts]),
        "block_indices": np.concatenate([part.blocks[:count] for part, count in zip(parts, counts, strict=True)]),
        "block_indices_begins": begins(counts),
        "max_context_len": np.array(max(lengths), np.int32),
        "qq_bias": np.concatenate([mask.astype(np.uint8).reshape(-1) for mask in masks]) if masks else _NO_MASK,
        "qq_bias_begins": begins([0 if part.mask is None else part.mask.size for part in parts]),
    }


def wanted(spans: Sequence[Span]) -> Ints:
    """Return the rows to answer, counted over all spans."""
    first = begins([len(span.tokens) for span in spans])
    return np.concatenate([span.wanted + begin for span, begin in zip(spans, first[:-1], strict=True)])


def begins(sizes: Sequence[int]) -> Ints:
    return np.array([*accumulate(sizes, initial=0)], np.int32)
