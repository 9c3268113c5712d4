"""The scenarios, by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from paceline.bench import synthetic
from paceline.bench.lab.scenario import SAME, Scenario
from paceline.bench.modes import PLAIN, Modes
from paceline.bench.prove.traffic import NICHE, long_prompts
from paceline.bench.trials import Ask, take
from paceline.bench.workloads import fitting, load
from paceline.bench.wrapped import Wrapped
from paceline.core.types import SamplingParams
from paceline.engine.llm import LLM
from paceline.runners.base import Output, Span, Want

EASY, HARD = "copying", "maths and niche syntax"
EAGER = {"drafters": ("suffix", "lookup", "recycle")}
"""Drafters of which one always has a guess."""
WRONG = 0.05
"""How often a bad drafter is right."""
CLIFF, FALL = 3, 2.0
"""Rows up to which a pass is as it is, and how many times longer it takes beyond."""
SHORT = SamplingParams(48, seed=1, ignore_eos=True)


def collapse(llm: LLM) -> list[Ask]:
    """Return texts that are easy to draft for, then such as are not."""
    easy = [replace(ask, category=EASY) for ask in fitting(llm, load("edit", 4), SHORT)]
    texts = [*NICHE, *(str(item.prompt) for item in load("maths", 4).items)]
    return easy + [_said(llm, HARD, text, replace(SHORT, temperature=1.0)) for text in texts]


def mixed(llm: LLM) -> list[Ask]:
    """Return one short prompt of each of our categories, as one."""
    most = replace(SHORT, max_tokens=24, temperature=1.0)
    return [replace(ask, category="short prompts") for ask in fitting(llm, load("short", 4), most)]


def chat(llm: LLM) -> list[Ask]:
    return [replace(ask, category="chat and code") for name in ("chat", "code") for ask in _some(llm, name, 3)]


def long_context(llm: LLM) -> list[Ask]:
    hot = replace(SHORT, temperature=1.0)
    return [Ask("long prompts", prompt, hot) for prompt in long_prompts(llm, hot.max_tokens, 3)]


def wrong(llm: LLM, asks: Sequence[Ask]) -> None:
    """Let a draft model take the time that it takes, and be right once in twenty."""
    modes = Modes(llm, SHORT)
    answers = {ask.prompt: take(modes, PLAIN, [ask], 1).done[0].token_ids for ask in asks}
    synthetic.install(llm, [WRONG], answers)


def cliff(llm: LLM, asks: Sequence[Ask]) -> None:
    """Let passes of more than so many rows take twice as long."""
    llm.engine.target = Cliff(llm.engine.target)


def crowd(llm: LLM, asks: Sequence[Ask]) -> None:
    """Take KV blocks away until there are only as many as plain decoding needs."""
    pool, size = llm.engine.pool, llm.engine.pool.block_size
    longest = sorted((len(ask.prompt) + ask.sampling.max_tokens for ask in asks), reverse=True)[: max(CROWD.batches)]
    whole = -(-llm.engine.context // size)  # a request alone always finds room: admission counts on it
    needed = max(whole, sum(-(-tokens // size) for tokens in longest))
    slot = pool.open([], shared=0)
    pool.reserve(slot, max(0, pool.available - needed) * size)


class Cliff(Wrapped):
    """A runner whose cost curve jumps."""

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        begin = time.perf_counter()
        found = self._inner.forward(spans, want)
        took = time.perf_counter() - begin
        if sum(len(span.tokens) for span in spans) > CLIFF:
            time.sleep(took * (FALL - 1))
        return found


def _said(llm: LLM, category: str, text: str, sampling: SamplingParams) -> Ask:
    return Ask(category, tuple(llm.chat_prompt([{"role": "user", "content": text}])), sampling)


def _some(llm: LLM, name: str, prompts: int) -> list[Ask]:
    return fitting(llm, load(name, prompts), SHORT)


CROWD = Scenario(
    "memory",
    "KV blocks are so few that drafts and texts compete for them",
    "fixed:8",
    mixed,
    options=EAGER,
    prepare=crowd,
    batches=(8,),
)
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "collapse",
            "texts turn from what is easy to draft for into what is not",
            "fixed:8",
            collapse,
            options=EAGER,
        ),
        Scenario(
            "batch",
            "more and more run at a time, until drafted rows cost as much as others' tokens",
            "fixed:8",
            mixed,
            options=EAGER,
            batches=(1, 4, 16, 32),
        ),
        Scenario(
            "bad-drafter",
            "a draft model takes its time and is right once in twenty",
            "fixed:4",
            chat,
            options={"draft": SAME, "drafters": ("model",)},
            prepare=wrong,
        ),
        Scenario("long-context", "prompts are long and what follows is not in them", "fixed:8", long_context, EAGER),
        Scenario(
            "cliff",
            f"passes of more than {CLIFF} rows take {FALL:g} times as long",
            "fixed:8",
            chat,
            prepare=cliff,
        ),
        CROWD,
    )
}
