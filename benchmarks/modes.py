"""One model in several modes that learn nothing from each other, and what scripts share around it.

A mode is written as on the command line: `plain` (no speculation), `off` (the same again, which measures the noise),
`auto` (governed), `always`, `fixed:N` (always N tokens), and any of these with drafters in front of it:
`suffix` or `suffix:auto`, `suffix:4`, `suffix+lookup:8`.
"""

from __future__ import annotations

import argparse
import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import LLM, Completion, SamplingParams, SpeculationParams
from paceline.core.types import Request
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
        """Raises argparse.ArgumentTypeError: it is no mode."""
        try:
            return cls(text, _params(text))
        except (ValueError, OptionError) as error:
            raise argparse.ArgumentTypeError(
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
    """Parse modes that are separated by commas."""
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
        """Return a request of a tenant that has not seen this prompt's answer; a text is asked as a user would."""
        ids = tuple(self.llm.chat_prompt([{"role": "user", "content": prompt}]) if isinstance(prompt, str) else prompt)
        tenant = f"{mode.name}/{self._asked[mode.name, ids]}"
        self._asked[mode.name, ids] += 1
        expected = prediction if mode.params.mode != "off" else None
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
    readers = [getattr(drafter, "_reader", None) for drafter in llm.engine.desk.drafters.values()]
    return [reader._pool for reader in readers if reader is not None]


def forget(pool: Pool) -> None:
    """Drop all that an idle pool has cached: taking every block makes it nameless."""
    slot = pool.open([], shared=0)
    pool.reserve(slot, pool.available * pool.block_size)
    pool.close(slot)


def arguments(doc: str | None, max_tokens: int = 64, prompts: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the lines that most scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft", help="a smaller model that drafts")
    parser.add_argument("--drafters", type=lambda names: tuple(names.split(",")), help="default: all that can be had")
    parser.add_argument("--max-draft", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, help="write every number, with where it comes from")
    if prompts:
        parser.add_argument("--prompts", type=Path, nargs="+", default=[Path(__file__).with_name("prompts.jsonl")])
        parser.add_argument("--per-category", type=int, help="prompts of each category; default: all")
    return parser


def load(given: argparse.Namespace, **options: Any) -> LLM:
    """Load what the arguments name. What earlier runs have learnt is left aside: it may be of these very prompts."""
    named = {"draft": given.draft, "drafters": given.drafters, "max_draft": given.max_draft, "keep_costs": False}
    return LLM(given.model, **(named | options))


def sampling(given: argparse.Namespace, **fields: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": given.max_tokens, "temperature": given.temperature, "seed": 1} | fields))
