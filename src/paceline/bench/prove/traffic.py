"""Traffic that is hard to draft for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.bench.trials import Ask
from paceline.bench.workloads import load
from paceline.core.types import SamplingParams
from paceline.engine.llm import LLM

NICHE = (
    "Write an APL expression that finds all primes below n, and explain each symbol.",
    "Write a Befunge program that prints the powers of two.",
    "Write a PostScript procedure that draws a Sierpinski triangle of depth n.",
    "Write a TLA+ specification of a lock that two processes share.",
)
LONG_SHARE = 0.75
"""Of the context, that the long prompts fill."""
LONGEST = 3000
"""Tokens of a long prompt, at most: each must be read several times."""


def kinds(llm: LLM, sampling: SamplingParams, prompts: int) -> dict[str, list[Ask]]:
    """Return prompts by what makes them hard, so many of each."""
    made: dict[str, Callable[[], Sequence[Ask]]] = {
        "random tokens": lambda: _random(llm, sampling, prompts),
        "niche syntax": lambda: [_asked(llm, "niche syntax", text, sampling) for text in NICHE[:prompts]],
        "high temperature": lambda: _hot(llm, sampling, prompts),
        "long context": lambda: _long(llm, sampling, prompts),
    }
    return {name: list(make()) for name, make in made.items()}


def _asked(llm: LLM, kind: str, text: str, sampling: SamplingParams) -> Ask:
    return Ask(kind, tuple(llm.chat_prompt([{"role": "user", "content": text}])), sampling)


def _random(llm: LLM, sampling: SamplingParams, prompts: int) -> list[Ask]:
    dice, vocab = random.Random(0), llm.engine.target.info.vocab_size
    return [Ask("random tokens", tuple(dice.choices(range(vocab), k=64)), sampling) for _ in range(prompts)]


def _hot(llm: LLM, sampling: SamplingParams, prompts: int) -> list[Ask]:
    hot = replace(sampling, temperature=1.5)
    items = load("creative", prompts).items
    return [_asked(llm, "high temperature", str(item.prompt), hot) for item in items]


def _long(llm: LLM, sampling: SamplingParams, prompts: int) -> list[Ask]:
    return [Ask("long context", prompt, sampling) for prompt in long_prompts(llm, sampling.max_tokens, prompts)]


def long_prompts(llm: LLM, max_tokens: int, prompts: int) -> list[tuple[int, ...]]:
    """Return texts of our own, one after the other up to the wanted length, each prompt from another place."""
    wanted = min(LONGEST, int(LONG_SHARE * llm.engine.context) - max_tokens)
    texts = [str(item.prompt) for item in load("long").items]
    found = []
    for place in range(prompts):
        joined = "\n\n".join((texts[place:] + texts[:place]) * 8)
        ids = llm.tokenizer.encode(joined)
        found.append(tuple(ids[: max(1, wanted)]))
    return found
