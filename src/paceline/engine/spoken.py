"""How often each token was said here: what a draft model's head is cut by at the next start.

Counts alone are kept, no text and no order. The file is written when costs are and read with the same suspicion. Of
several processes that count at the same time, the last to write wins, and what the others have counted is lost.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.types import Request
from paceline.drafters.trim import Counts
from paceline.governor import saved
from paceline.governor.saved import Identity, Refusal
from paceline.models.tokenizer import Tokenizer

MOST_TOKENS = 65_536
"""Different ones that are counted."""
MOST_SAID = 1 << 22
"""Counts in all, beyond which each is halved: what was said long ago counts less."""
_READER = "model"
"""The drafter that the counts are for."""


class Spoken:
    """The tokens of prompts and answers, counted.

    Args:
        identity: whose tokens these are.
        size: ids that the target has.
        shared: whether what one tenant's requests have said may draft for another's.
    """

    def __init__(self, identity: Identity, size: int, shared: bool = False) -> None:
        self._identity, self._shared = identity, shared
        self.path: Path = saved.place(identity, "spoken")
        before = saved.restored(self.path, identity, lambda given: _restore(given, size), "counts of tokens")
        self.counts: Counts = np.zeros(size, np.int64) if isinstance(before, Refusal) else before

    def hear(self, request: Request, tokens: Sequence[int]) -> None:
        """Count what an ended request has said, its prompt included: answers quote it.

        Not of requests that the draft model does not draft for, from which no drafter learns; nor of a named tenant,
        whose words would draft for all others, unless that is allowed.
        """
        if request.speculation.uses(_READER) and (self._shared or not request.tenant):
            self.counts += np.bincount(tokens, minlength=len(self.counts))
            while self.counts.sum() > MOST_SAID or np.count_nonzero(self.counts) > MOST_TOKENS:
                self.counts //= 2

    def text(self) -> str:
        """Return what the file is to say, but for its time."""
        said = defaultdict(list)
        for token in np.flatnonzero(self.counts).tolist():
            said[int(self.counts[token])].append(token)
        return json.dumps({"format": saved.FORMAT, "identity": self._identity, "said": said}, separators=(",", ":"))


def spelling(tokenizer: Tokenizer) -> str:
    """Return a digest of what every id means."""
    return blake2b(json.dumps(tokenizer.vocabulary).encode(), digest_size=16).hexdigest()


def _restore(given: Mapping[str, Any], size: int) -> Counts:
    counts = np.zeros(size, np.int64)
    for times, tokens in given["said"].items():
        if not 0 < int(times) <= MOST_SAID or any(type(token) is not int for token in tokens):
            raise ValueError("a count or a token makes no sense")
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise ValueError("there is no such token")
        np.add.at(counts, tokens, int(times))
    if counts.sum() > MOST_SAID or np.count_nonzero(counts) > MOST_TOKENS:
        raise ValueError("more was said than is ever kept")
    return counts
