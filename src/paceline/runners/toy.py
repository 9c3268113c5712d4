"""A runner whose logits are a fixed function of the tokens in its cache, read back through the block tables.

There is nothing to round, so results are the same bit for bit however a batch is put together; and a wrong block, a
stale row or a missing mask shows as another text.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from paceline.models.toy import ToyLaw
from paceline.runners.base import Output, RunnerInfo, Span, Want

UNWRITTEN = -1
WIDTH = 8
"""Of hidden states and embeddings, which are as good as random: each a fixed function of what it stands for."""


class ToyRunner:
    """Runs a ToyLaw; its "keys and values" are the tokens themselves."""

    def __init__(self, law: ToyLaw, context: int = 512, block_size: int = 8, can_rewind: bool = True) -> None:
        self._law, self._size = law, block_size
        self._cells = np.zeros(0, np.int64)
        self.info = RunnerInfo(
            vocab_size=law.vocab_size,
            layers=1,
            context=context,
            block_size=block_size,
            block_bytes=8 * block_size,
            can_rewind=can_rewind,
            name="toy",
            weights="exact",
        )

    def allocate(self, blocks: int) -> None:
        self._cells = np.full(blocks * self._size, UNWRITTEN, np.int64)

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        for span in spans:
            self._cells[self._places(span)[span.cached :]] = span.tokens
        rows = [self._law.logits(self._context(span, row)) for span in spans for row in span.wanted]
        hidden = {layer: self._hidden(spans, layer) for layer in want.hidden}
        return Output(np.array(rows, np.float32).reshape(len(rows), self.info.vocab_size), hidden)

    def embed(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        return _vectors([(-1, int(token)) for token in tokens])

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self._cells[target] = self._cells[source]

    def _hidden(self, spans: Sequence[Span], layer: int) -> NDArray[np.float32]:
        """Any layer may be asked for: the state is a function of its number and of what the row sees."""
        seen = [self._context(span, row) for span in spans for row in range(len(span.tokens))]
        return _vectors([(layer, *context) for context in seen])

    def _places(self, span: Span) -> NDArray[np.int64]:
        index = np.arange(span.cached + len(span.tokens))
        return span.blocks[index // self._size].astype(np.int64) * self._size + index % self._size

    def _context(self, span: Span, row: int) -> list[int]:
        """The tokens that a row sees, itself included, in order."""
        cells = self._cells[self._places(span)]
        seen = [*cells[: span.cached], *cells[span.cached :][span.row_mask[row]]]
        assert span.row_positions[row] == len(seen) - 1, "a row's position is the number of tokens before it"
        assert UNWRITTEN not in seen, "a row sees a slot that was never written"
        return [int(token) for token in seen]


def _vectors(keys: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
    """Return [keys, WIDTH], between -1 and 1."""
    digests = [blake2b(np.array(key, np.int64).tobytes(), digest_size=4 * WIDTH).digest() for key in keys]
    found = np.frombuffer(b"".join(digests), "<u4").reshape(len(keys), WIDTH)
    return (found / np.float64(1 << 31) - 1).astype(np.float32)
