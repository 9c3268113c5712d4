"""The text of one request as its tokens come."""

from __future__ import annotations

from paceline.core.types import Request
from paceline.models.detokenize import Detokenizer, StopFilter
from paceline.models.tokenizer import Tokenizer


class TextStream:
    """Whole characters, and nothing that may yet turn into a stop string."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._detokenizer = Detokenizer(tokenizer, request.prompt)
        self._filter = StopFilter(request.sampling.stop)

    def push(self, token: int) -> tuple[str, bool]:
        return self._filter.push(self._detokenizer.push(token))

    def flush(self) -> str:
        text, _ = self._filter.push(self._detokenizer.flush())
        return text + self._filter.flush()
