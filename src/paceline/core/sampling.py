"""From the logits of one row to the law that plain decoding would draw from there.

Pure: everything a rule needs, the history of its path included, is an argument, so a row of a draft is shaped
exactly as plain decoding would shape it (research order: penalties, bias, bans, temperature, top-k, top-p, min-p).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.law import Law
from paceline.core.types import LARGEST, SamplingParams, TokenLogprob

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is fixed for a request: its parameters and the tokens they name."""

    params: SamplingParams
    prompt: tuple[int, ...] = ()
    ending: Collection[int] = ()
    """End-of-sequence and stop tokens, banned before `min_tokens`."""
    bad: tuple[tuple[int, ...], ...] = ()

    @property
    def touches_logits(self) -> bool:
        """Whether logits change before temperature."""
        p = self.params
        return bool(
            p.repetition_penalty != 1
            or p.presence_penalty
            or p.frequency_penalty
            or p.logit_bias
            or self.bad
            or p.min_tokens
        )


def law(logits: Logits, shaping: Shaping, output: Sequence[int]) -> Law:
    """Return the law of the next token.

    Args:
        logits: [vocabulary], of the row of the last token.
        shaping: the request's parameters.
        output: tokens generated so far, those of the path included.
    """
    params = shaping.params
    if shaping.touches_logits:
        logits = shape(logits, shaping, output)
    if params.temperature == 0:
        return Law.point(int(np.argmax(logits)))
    ids, highest = _highest(logits, params.top_k)
    scores = highest.astype(np.float64)
    with np.errstate(over="ignore"):  # below the highest, a tiny temperature rightly ends at -inf
        scores = (scores - scores.max()) / params.temperature
    log_p = scores - _log_sum_exp(scores)
    if params.top_p < 1:
        ids, log_p = _nucleus(ids, log_p, params.top_p)
    if params.min_p > 0:
        keep = log_p >= log_p.max() + np.log(params.min_p)
        ids, log_p = ids[keep], log_p[keep]
    keep = log_p > -np.inf
    ids, log_p = ids[keep], log_p[keep]
    return Law(ids, log_p - _log_sum_exp(log_p))


def shape(logits: Logits, shaping: Shaping, output: Sequence[int]) -> Logits:
    """Return the logits after penalties, bias and bans; the argument is left as it is."""
    params, shaped = shaping.params, np.array(logits, np.float32)
    if params.repetition_penalty != 1:
        seen = np.unique(np.array([*shaping.prompt, *output], np.int64))
        values = shaped[seen]
        shaped[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if output and (params.presence_penalty or params.frequency_penalty):
        used, counts = np.unique(np.array(output, np.int64), return_counts=True)
        shaped[used] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    for token, bias in params.logit_bias.items():
        shaped[token] += max(bias, -LARGEST)  # -inf on every token would leave no law
    banned = _banned(shaping, output)
    if banned and np.isfinite(np.delete(shaped, banned)).any():
        shaped[banned] = -np.inf
    return shaped


def _banned(shaping: Shaping, output: Sequence[int]) -> list[int]:
    """Return the tokens that may not come next; a ban on every token there is would leave no law, and is ignored."""
    banned = [bad[-1] for bad in shaping.bad if tuple(output[len(output) - len(bad) + 1 :]) == bad[:-1]]
    if len(output) < shaping.params.min_tokens:
        banned += shaping.ending
    return banned


def _highest(logits: Logits, top_k: int) -> tuple[NDArray[np.int64], Logits]:
    """Return the ids, ascending, and logits of the `top_k` highest (0: all); ties with the last of them are kept."""
    if 0 < top_k < len(logits):
        bar = np.partition(logits, -top_k)[-top_k]
        ids = np.flatnonzero(logits >= bar).astype(np.int64)
        return ids, logits[ids]
    return np.arange(len(logits), dtype=np.int64), logits


def _nucleus(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], top_p: float, guess: int = 512
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Keep the fewest most probable tokens whose mass reaches `top_p` (Holtzman et al. 1904.09751 §3.1).

    Sorting 150,000 tokens for a nucleus of five is waste: first only the `guess` highest are sorted.
    """
    some = np.argpartition(log_p, -guess)[-guess:] if guess < len(ids) else np.arange(len(ids))
    some = some[np.lexsort((some, -log_p[some]))]
    mass = np.cumsum(np.exp(log_p[some]))
    if mass[-1] < top_p and len(some) < len(ids):
        return _nucleus(ids, log_p, top_p, guess * 16)
    bar = log_p[some[min(int(np.searchsorted(mass, top_p)), len(some) - 1)]]
    keep = log_p >= bar  # ties with the last one stay, so that the choice among them does not hang on sorting
    return ids[keep], log_p[keep]


def _log_sum_exp(x: NDArray[np.float64]) -> float:
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum()))


def logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Return the log-probability of `token` and the `top` most probable tokens under the logits as they are."""
    wide = logits.astype(np.float64)
    total = _log_sum_exp(wide)
    ids, _ = _highest(logits, max(top, 1))
    best = ids[np.lexsort((ids, -wide[ids]))][:top]
    return TokenLogprob(token, float(wide[token] - total), tuple((int(i), float(wide[i] - total)) for i in best))
