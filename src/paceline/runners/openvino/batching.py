"""A ragged batch as the inputs of paged attention.

The plugin has several kernels, and they round differently: one for a sequence of one row, one for a sequence of many,
one for a lone sequence of one row. Quantised activations turn such a last bit into tenths of a logit. So where results
must not depend on what runs beside them, every row of a span is a sequence of its own, over the same blocks: attention
begins when all keys and values of the pass are written, so a row finds those of the rows before it in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.runners.base import Span
from paceline.runners.openvino.attention import BLOCK_SIZE

Ints = NDArray[np.int32]


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
    tables = [part.blocks[: -(-length // BLOCK_SIZE)] for part, length in zip(parts, lengths, strict=True)]
    masks = [np.zeros(0, np.uint8) if p.mask is None else p.mask.astype(np.uint8).reshape(-1) for p in parts]
    return {
        "past_lens": np.array([part.cached for part in parts], np.int32),
        "subsequence_begins": begins([part.rows for part in parts]),
        "block_indices": np.concatenate(tables).astype(np.int32),
        "block_indices_begins": begins([len(table) for table in tables]),
        "max_context_len": np.array(max(lengths), np.int32),
        "qq_bias": np.concatenate(masks),
        "qq_bias_begins": begins([len(mask) for mask in masks]),
    }


def wanted(spans: Sequence[Span]) -> Ints:
    """Return the rows to answer, counted over all spans."""
    first = begins([len(span.tokens) for span in spans])
    rows = [span.wanted + begin for span, begin in zip(spans, first[:-1], strict=True)]
    return np.concatenate(rows).astype(np.int32)


def begins(sizes: Sequence[int]) -> Ints:
    return np.cumsum([0, *sizes], dtype=np.int32)
