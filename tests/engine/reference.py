"""Plain decoding in thirty lines: what every engine, drafter and batch has to agree with."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence

from paceline.core.noise import Stream, gumbel, stream_key
from paceline.core.sampling import Logits, Shaping, law
from paceline.core.types import Request

Logic = Callable[[Sequence[int]], Logits]
"""Tokens so far -> the target's logits."""


def decode(logits: Logic, request: Request, eos: Collection[int] = (), context: int = 2**20) -> tuple[list[int], str]:
    """Return the output tokens and why they end; stop strings are not looked at."""
    asked, output = request.sampling, list[int]()
    ending = {*asked.stop_token_ids, *(() if asked.ignore_eos else eos)}
    shaping = Shaping(asked, request.prompt, tuple(sorted(ending)), request.bad_token_ids)
    while True:
        text = [*request.prompt, *output]
        key = stream_key(asked.seed or 0, len(text), Stream.TARGET)
        output.append(law(logits(text), shaping, output).draw(lambda ids, key=key: gumbel(key, ids)))
        if output[-1] in ending:
            return output, "stop"
        if len(output) == asked.max_tokens or len(text) + 1 == context:
            return output, "length"


def spell(pieces: Iterable[bytes], stops: Collection[str] = ()) -> tuple[int, str, bool]:
    """Return how many tokens a text takes, given as their bytes, the text, and whether a stop string ended it.

    Tokens are taken one by one until the whole characters among them hold a stop string.
    """
    data, count = b"", 0
    for count, piece in enumerate(pieces, 1):
        data += piece
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
        cut = first_stop(whole, stops)
        if cut is not None:
            return count, whole[:cut], True
    return count, data.decode("utf-8", "replace"), False


def first_stop(text: str, stops: Collection[str]) -> int | None:
    """Return where the stop string begins that ends first, the longest of those that end there."""
    for end in range(len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins)
    return None
