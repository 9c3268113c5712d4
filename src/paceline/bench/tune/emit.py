"""The same numbers in the words of other servers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Literal

Server = Literal["vllm", "sglang"]
LARGEST_BATCH = 512
"""Where a schedule by batch size ends."""


def schedule(lengths: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (first batch, last batch, length), without gaps, equal neighbours joined.

    Args:
        lengths: (batch, best length there), rising.
    """
    found: list[tuple[int, int, int]] = []
    for place, (batch, length) in enumerate(lengths):
        end = lengths[place + 1][0] - 1 if place + 1 < len(lengths) else LARGEST_BATCH
        if found and found[-1][2] == length:
            found[-1] = (found[-1][0], end, length)
        else:
            found.append((batch, end, length))
    return found


def vllm(draft: str | None, lengths: Sequence[tuple[int, int]]) -> str:
    """Return vLLM's flag: a draft model, or n-grams where there is none; empty where nothing pays."""
    deepest = max((length for _, length in lengths), default=0)
    if not deepest:
        return ""
    config: dict[str, object] = {"num_speculative_tokens": deepest}
    if draft is None:
        config |= {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    else:
        config |= {"method": "draft_model", "model": draft}
    if len(table := schedule(lengths)) > 1:
        config["num_speculative_tokens_per_batch_size"] = table
    return f"--speculative-config {shlex.quote(json.dumps(config))}"


def sglang(draft: str | None, lengths: Sequence[tuple[int, int]]) -> str:
    """Return SGLang's flags for one request at a time; empty where nothing pays. It has a length of its own for batches
    only with adaptive tiers, which stand in a file: see its documentation."""
    deepest = max((length for _, length in lengths), default=0)
    if not deepest:
        return ""
    if draft is None:
        flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(deepest)]
        return shlex.join(flags)
    flags = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft]
    flags += ["--speculative-num-steps", str(deepest), "--speculative-eagle-topk", "1"]
    flags += ["--speculative-num-draft-tokens", str(deepest + 1)]
    return shlex.join(flags)
