"""By how much plain decoding preferred a token over the one that was given, from log-probabilities alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from paceline.core.noise import TargetNoise
from paceline.core.rows import FEW, REACH
from paceline.core.sampling import Shaping, shape
from paceline.core.types import Request, TokenLogprob

CANDIDATES = 20
"""Most probable tokens whose log-probabilities are known."""


def gap(
    request: Request,
    output: Sequence[int],
    plain: TokenLogprob,
    other: int,
    vocab_size: int,
    ending: Collection[int],
) -> float | None:
    """Return the distance between two tokens' scores, in logits; a perfect tie is 0.

    Greedily that is the distance between shaped logits; in a draw each has its noise added, see `RowChoice.draw`.

    Args:
        request: as it was decoded plainly.
        output: the tokens before, on which both agree.
        plain: what plain decoding gave, and the likeliest tokens there.
        other: what was given.
        ending: tokens that end it.

    Returns:
        None where it cannot be told: the other token is not among the likeliest, shares its noise with others, was cut
        off in one of the two, or the logits themselves would be needed (repetition penalty).
    """
    known = {**dict(plain.top), plain.token_id: plain.logprob}
    params = request.sampling
    if other not in known or params.repetition_penalty != 1:
        return None
    logits = np.full(vocab_size, -np.inf, np.float32)
    logits[list(known)] = list(known.values())
    shaping = Shaping(params, request.prompt, tuple(sorted(ending)), request.bad_token_ids)
    pair = np.array([plain.token_id, other], np.int64)
    shaped = shape(logits, shaping, output)
    scores = shaped[pair].astype(np.float64)
    if not np.isfinite(scores).all():
        return None
    if params.temperature == 0:
        return _found(float(scores[0] - scores[1]))
    if vocab_size > FEW and shaped.max() - scores.min() > params.temperature * REACH:
        return None
    noise = TargetNoise(params.seed or 0, len(request.prompt) + len(output))(pair)
    scores += params.temperature * noise
    return _found(float(scores[0] - scores[1]))


def _found(distance: float) -> float | None:
    """A negative distance says that the other token would have won, had it not been cut off."""
    return distance if distance >= 0 else None
