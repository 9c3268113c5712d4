"""Chosen acceptance at real cost, so that what drafting costs and what it earns can be told apart.

The drafter runs as ever and takes the time it takes; its tokens are thrown away. In their place comes a chain whose
token at each depth is the right one with the chosen probability, given that those before it were right, and a wrong one
otherwise. The right tokens are known beforehand, from a plain run; the target verifies all of them as ever, so the text
stays what it is. No result of this kind says anything about real drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.engine.llm import LLM
from paceline.errors import OptionError

COSTLY = ("model", "heads")
"""Drafters that run passes: theirs is the cost that is kept."""
Answers = Mapping[tuple[int, ...], Sequence[int]]
"""What plain decoding says to each prompt."""


class Synthetic:
    """A drafter in the place of another.

    Args:
        rates: by depth, the last one for all that are deeper.
        costly: whether the other's passes decide how long a draft is; else the limit does.
    """

    def __init__(
        self, inner: Drafter, name: str, rates: Sequence[float], answers: Answers, vocab_size: int, costly: bool
    ) -> None:
        self._inner, self._name, self._rates = inner, name, tuple(rates)
        self._answers, self._vocab_size, self._costly = answers, vocab_size, costly

    def begin(self, seq: SequenceView) -> None:
        self._inner.begin(seq)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        real = self._inner.propose(seqs, limits)
        lengths = [len(draft) for draft in real] if self._costly else limits
        return [self._draft(seq, length) for seq, length in zip(seqs, lengths, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        self._inner.observe(seq, seen)

    def end(self, seq: SequenceView) -> None:
        self._inner.end(seq)

    def _draft(self, seq: SequenceView, length: int) -> Draft:
        answer = self._answers.get(tuple(seq.tokens[: seq.prompt_len]))
        if answer is None:
            return EMPTY
        at = len(seq.tokens) - seq.prompt_len
        right = answer[at : at + length]
        rates = [self._rates[min(depth, len(self._rates) - 1)] for depth in range(len(right))]
        coins = np.random.default_rng((seq.prompt_len, at, *seq.tokens[-4:])).random(len(right))
        tokens = []
        for token, rate, coin in zip(right, rates, coins, strict=True):
            tokens.append(token if coin < rate else (token + 1) % self._vocab_size)
        return Draft.chain(tokens, self._name, rates)


def install(llm: LLM, rates: Sequence[float], answers: Answers) -> None:
    """Put a synthetic drafter in the place of all that an engine has: of the one that runs passes, if there is one.

    Raises:
        OptionError: it has no drafter, or the rates are none.
    """
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise OptionError(f"acceptance is {tuple(rates)}; allowed: numbers from 0 to 1, one for each depth")
    desk = llm.engine.desk
    if not desk.drafters:
        raise OptionError("acceptance needs a drafter whose cost is measured; this model was loaded without any")
    name = next((name for name in COSTLY if name in desk.drafters), next(iter(desk.drafters)))
    inner, vocab = desk.drafters[name], llm.engine.target.info.vocab_size
    desk.drafters = {name: Synthetic(inner, name, rates, answers, vocab, name in COSTLY)}
