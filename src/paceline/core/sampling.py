"""From the logits of one row to the law that plain decoding would draw from there.

Pure: everything a rule needs, the history of its path included, is an argument, so a row of a draft is shaped
exactly as plain decoding would shape it (research order: penalties, bias, grammar, bans, temperature, top-k, top-p,
min-p).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core import rows
from paceline.core.law import Law
from paceline.core.noise import TargetNoise
from paceline.core.rows import HostRow, Near, Row
from paceline.core.rows import Logits as Logits
from paceline.core.types import LARGEST, SamplingParams, TokenLogprob

_WIDE = 32_768
"""Tokens among which a nucleus is looked for that is not near, before all are."""
_ROUNDING = 1e-9


class Mask(Protocol):
    """What a grammar allows of one text."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Return [vocabulary], which tokens may follow the output; at least one may. A pure function of the output.

        Raises:
            RequestError: that cannot be told within the grammar's limits.
        """

    def forced(self, output: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that spell what must follow the output. A guess: others may spell it as well."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is fixed for a request: its parameters and the tokens they name."""

    params: SamplingParams
    prompt: tuple[int, ...] = ()
    ending: Collection[int] = ()
    """End-of-sequence and stop tokens, banned before `min_tokens`."""
    bad: tuple[tuple[int, ...], ...] = ()
    grammar: Mask | None = None

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
            or self.grammar is not None
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowChoice:
    """What a row of the target says: a draw reads the likely tokens, the whole law all of them."""

    row: Row
    shaping: Shaping
    output: Sequence[int]
    """Tokens generated so far, those of the path included."""

    def draw(self, noise: TargetNoise) -> int:
        """Return argmax(log p + g), where tokens that are unlikely without being cut off share one g, see `Near.draw`.

        A draw from the law all the same: of independent Gumbel noise that is what the maximum over a set is.
        """
        params, row = self.shaping.params, self.row
        if self.shaping.touches_logits:
            row = HostRow(shape(row.whole(), self.shaping, self.output))
        if params.temperature == 0:
            return row.best()
        near = likely(row, params)
        token = near.draw(noise)
        if token is None:
            return HostRow(row.whole()).beyond(near.ids, params.temperature, noise.within_tail())
        return token

    def law(self) -> Law:
        return law(self.row.whole(), self.shaping, self.output)


def likely(row: Row, params: SamplingParams) -> Near:
    """Return the likely tokens of a row's law at a temperature above 0.

    What top-k, top-p and min-p leave are all that there are, whether they are near or not.
    """
    if 0 < params.top_k < row.size:
        ids, logits = row.top(params.top_k)
        return _all_of(_law(ids, logits, params))
    near = row.near(params.temperature)
    if params.top_p == 1 and params.min_p == 0:
        return near
    if near.tail > -np.inf and not _holds(near, params):
        return _all_of(_widely(row, near, params))
    return _all_of(_cut(near.ids, near.log_p, params))


def law(logits: Logits, shaping: Shaping, output: Sequence[int]) -> Law:
    """Return the law of the next token, in float64 over the whole row.

    Args:
        logits: [vocabulary], of the row of the last token.
        shaping: the request's parameters.
        output: tokens generated so far, those of the path included.
    """
    if shaping.touches_logits:
        logits = shape(logits, shaping, output)
    if shaping.params.temperature == 0:
        return Law.point(int(np.argmax(logits)))
    return _law(*_highest(logits, shaping.params.top_k), shaping.params)


def _law(ids: NDArray[np.int64], logits: Logits, params: SamplingParams) -> Law:
    """Return the law of what top-k has left."""
    scores = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # below the highest, a tiny temperature rightly ends at -inf
        scores = (scores - scores.max()) / params.temperature
    return _cut(ids, scores - _log_sum_exp(scores), params)


def _cut(ids: NDArray[np.int64], log_p: NDArray[np.float64], params: SamplingParams) -> Law:
    """Return the law that top-p and min-p leave."""
    if params.top_p < 1:
        ids, log_p = _nucleus(ids, log_p, params.top_p)
    if params.min_p > 0:
        keep = log_p >= log_p.max() + np.log(params.min_p)
        ids, log_p = ids[keep], log_p[keep]
    keep = log_p > -np.inf
    ids, log_p = ids[keep], log_p[keep]
    return Law(ids, log_p - _log_sum_exp(log_p))


def _holds(near: Near, params: SamplingParams) -> bool:
    """Whether all that top-p and min-p leave is near, ties included."""
    highest = near.log_p.max()
    # Other tokens are lower than those within reach, but where only the highest were kept they may equal the lowest.
    others = near.log_p.min() if len(near.ids) == rows.MOST else highest - rows.REACH
    if params.min_p > 0 and highest + np.log(params.min_p) > others + _ROUNDING:
        return True
    return params.top_p < 1 and float(np.exp(near.log_p[near.log_p > others]).sum()) >= params.top_p


def _widely(row: Row, near: Near, params: SamplingParams) -> Law:
    """Return the law that top-p and min-p leave where they leave tokens that are not near."""
    if params.top_p < 1:
        ids, logits = row.top(_WIDE)
        with np.errstate(over="ignore"):
            scores = (logits.astype(np.float64) - float(logits.max())) / params.temperature
        log_p = scores + near.log_p.max()
        if np.exp(log_p).sum() >= params.top_p:
            return _cut(ids, log_p, params)
    return _law(np.arange(row.size, dtype=np.int64), row.whole(), params)


def _all_of(law: Law) -> Near:
    return Near(law.ids, law.log_p)


def shape(logits: Logits, shaping: Shaping, output: Sequence[int]) -> Logits:
    """Return the logits after penalties, bias, grammar and bans; the argument is left as it is."""
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
    if shaping.grammar is not None:
        shaped = masked(shaped, shaping.grammar.allowed(output))
    banned = _banned(shaping, output)
    if banned and np.isfinite(np.delete(shaped, banned)).any():
        shaped[banned] = -np.inf
    return shaped


def masked(logits: Logits, allowed: NDArray[np.bool_]) -> Logits:
    """Return the logits of the allowed tokens, -inf for all others; where the model has none of them, all are equal."""
    found = np.full(len(logits), -np.inf, np.float32)
    np.copyto(found, logits, where=allowed)
    if found.max() == -np.inf:
        found[allowed] = 0.0
    return found


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
    some = np.sort(np.partition(log_p, -guess)[-guess:] if guess < len(ids) else log_p)[::-1]
    mass = np.cumsum(np.exp(some))
    if mass[-1] < top_p and len(some) < len(ids):
        return _nucleus(ids, log_p, top_p, guess * 16)
    bar = some[min(int(np.searchsorted(mass, top_p)), len(some) - 1)]
    keep = log_p >= bar  # ties with the last one stay, so that the choice among them does not hang on sorting
    return ids[keep], log_p[keep]


def _log_sum_exp(x: NDArray[np.float64]) -> float:
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum()))


def logprob(row: Row, token: int, top: int) -> TokenLogprob:
    """Return the log-probability of `token` and the `top` most probable tokens under the logits as they are."""
    total = row.near(1.0).norm
    ids, logits = row.top(max(top, 1))
    best = np.lexsort((ids, -logits))[:top]
    found = tuple((int(i), float(x) - total) for i, x in zip(ids[best], logits[best], strict=True))
    return TokenLogprob(token, row.at(token) - total, found)
