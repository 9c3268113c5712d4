"""One model in several modes that learn nothing from each other.

A mode is written as on the command line: `plain` (no speculation), `off` (the same again, which measures the noise),
`auto` (governed), `always`, `fixed:N` (always N tokens), and any of these with drafters in front of it:
`suffix` or `suffix:auto`, `suffix:4`, `suffix+lookup:8`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.types import Completion, Request, SamplingParams, SpeculationParams
from paceline.drafters.prediction import Prediction
from paceline.engine.llm import LLM
from paceline.errors import OptionError
from paceline.runners.kv import Pool

WARM_UP = "Count from one to twenty in words, then in digits."


@dataclass(frozen=True, slots=True)
class Mode:
    """What requests ask of speculation, by name."""

    name: str
    params: SpeculationParams

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Raises OptionError: it is no mode."""
        try:
            return cls(text, _params(text))
        except ValueError as error:
            raise OptionError(
                f"{text!r} is no mode ({error}); allowed: plain, off, auto, always, fixed:N, and DRAFTER+DRAFTER:N|auto"
            ) from None


def _params(text: str) -> SpeculationParams:
    head, _, tail = text.partition(":")
    if not tail:
        plain = {"plain": "off", "off": "off", "auto": "auto", "always": "always"}
        if head in plain:
            return SpeculationParams(mode=plain[head])  # type: ignore[arg-type]
    names = None if head == "fixed" else tuple(head.split("+"))
    if names is None and not tail:
        raise ValueError("fixed needs a length")
    if names is not None and (not all(names) or {"plain", "off", "auto", "always", "fixed"} & set(names)):
        raise ValueError("no name of a drafter")
    if names and tail in ("", "auto"):
        return SpeculationParams(drafters=names)
    return SpeculationParams(mode="always", max_draft=int(tail), drafters=names)


def listed(text: str) -> tuple[Mode, ...]:
    """Parse modes that are separated by commas.

    Raises:
        OptionError: one of them is no mode.
    """
    return tuple(Mode.parse(part) for part in text.split(","))


PLAIN, AUTO = listed("plain,auto")


class Modes:
    """One model in several modes.

    Each mode has a governor state of its own. A prompt that comes again in the same mode comes from another tenant,
    which has never seen its answer: a drafter that remembers would replay it. What the draft model has read is
    dropped between turns as well, so that each mode pays for its reading.

    Args:
        sampling: of requests that name no other.
    """

    def __init__(self, llm: LLM, sampling: SamplingParams) -> None:
        self.llm, self.sampling = llm, sampling
        self._governor = llm.engine.governor
        self._fresh = copy.deepcopy(vars(self._governor))
        self._learnt: dict[str, dict[str, Any]] = {}
        self._asked: Counter[tuple[str, tuple[int, ...]]] = Counter()

    @contextmanager
    def turn(self, mode: Mode) -> Iterator[None]:
        """Let the engine be this mode's; it must be idle before and after."""
        unknown = set(mode.params.drafters or ()) - set(self.llm.engine.desk.drafters)
        if unknown:
            there = ", ".join(self.llm.engine.desk.drafters) or "none"
            raise OptionError(f"mode {mode.name} names the drafter {min(unknown)!r}; there are: {there}")
        governor = vars(self._governor)
        governor.update(self._learnt.setdefault(mode.name, copy.deepcopy(self._fresh)))
        for pool in draft_pools(self.llm):
            forget(pool)
        try:
            yield
        finally:
            self._learnt[mode.name] = dict(governor)

    def unlearn(self, mode: Mode) -> None:
        """Let a mode's governor know what it knew at the start: what was profiled, and of drafters nothing."""
        self._learnt.pop(mode.name, None)

    def request(
        self,
        mode: Mode,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        prediction: str | None = None,
    ) -> Request:
        """Return a request of a tenant that has not seen this prompt's answer; a text is asked as a user would.

        A prediction is left out where the mode has nobody to read it.
        """
        ids = tuple(self.llm.chat_prompt([{"role": "user", "content": prompt}]) if isinstance(prompt, str) else prompt)
        tenant = f"{mode.name}/{self._asked[mode.name, ids]}"
        self._asked[mode.name, ids] += 1
        reads = mode.params.uses(Prediction.name) and Prediction.name in self.llm.engine.desk.drafters
        expected = prediction if reads else None
        return self.llm.request(ids, sampling or self.sampling, mode.params, expected, tenant)

    def run(
        self,
        mode: Mode,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        prediction: str | None = None,
    ) -> Completion:
        with self.turn(mode):
            return self.llm.run([self.request(mode, prompt, sampling, prediction)])[0]

    def warm_up(self, modes: Sequence[Mode]) -> None:
        """Let each mode run once: what is made at a first step is made."""
        short = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, 32))
        for mode in modes:
            self.run(mode, WARM_UP, short)


def draft_pools(llm: LLM) -> list[Pool]:
    """Return the KV pools of drafters that read."""
    pools = [getattr(drafter, "pool", None) for drafter in llm.engine.desk.drafters.values()]
    return [pool for pool in pools if pool is not None]


def forget(pool: Pool) -> None:
    """Drop all that an idle pool has cached: taking every block makes it nameless."""
    slot = pool.open([], shared=0)
    pool.reserve(slot, pool.available * pool.block_size)
    pool.close(slot)
