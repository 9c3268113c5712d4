"""Requests leave nothing behind: after hundreds of every kind there are as many objects as after the first ones."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core.types import Request
from paceline.governor import acceptance, alarms, costly, ledger

KINDS = [
    (SamplingParams(max_tokens=6), SpeculationParams("off")),
    (SamplingParams(max_tokens=6), SpeculationParams("always", max_draft=4)),
    (SamplingParams(max_tokens=6, temperature=0.8, seed=3), SpeculationParams()),
    (SamplingParams(max_tokens=6, logprobs=3, stop=("zz",)), SpeculationParams("always", rule="typical")),
]
SLACK = 100
"""Objects of a kind that may come: of tables that are bounded and not yet full, as what is known of tokens. There are
more requests of each kind."""
REMEMBERED = 16
"""Requests that the governor knows of, ended or not; a thousand as it is."""


def requests(llm: LLM) -> Iterator[Request]:
    number = 0
    while True:
        for sampling, speculation in KINDS:
            prompt = [1 + (number * 7 + i) % 90 for i in range(5 + number % 40)]
            yield llm.request(prompt, sampling, speculation, tenant=f"tenant {number % 3}")
            number += 1


def serve(llm: LLM, asked: Iterator[Request], count: int) -> None:
    """Run requests four at a time; each time two more are aborted, one of a stream and one of the engine."""
    for _ in range(count // 4):
        batch = list(islice(asked, 4))
        llm.run(batch)
        stream = llm.stream(list(batch[0].prompt))
        next(iter(stream))
        stream.close()
        aborted = llm.engine.add(batch[1])
        llm.engine.step()
        llm.engine.abort(aborted)
        llm.engine.step()
        llm.engine.completion(aborted)


def counted() -> Counter[str]:
    gc.collect()
    gc.collect()  # of what the first has untracked
    return Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    return {name: n for name, count in after.items() if (n := count - before[name]) > SLACK}


@pytest.mark.parametrize("options", [{"prefix_cache": False}, {"draft": "toy:ngram-draft"}], ids=str)
def test_requests_leave_nothing_behind(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (acceptance, alarms, costly, ledger):
        monkeypatch.setattr(room, "REQUESTS", REMEMBERED)
    llm = LLM("toy:ngram", context=128, sequences=4, **options)
    asked = requests(llm)
    serve(llm, asked, 40)
    before = counted()
    serve(llm, asked, 600)
    assert grown(before, counted()) == {}
    assert llm.engine.idle


def test_what_is_left_behind_is_found() -> None:
    llm = LLM("toy:ngram", context=128)
    asked = requests(llm)
    serve(llm, asked, 20)
    before = counted()
    for request in islice(asked, SLACK + 1):
        llm.engine.add(request)
    while not llm.engine.idle:
        llm.engine.step()
    found = grown(before, counted())
    assert found["paceline.core.types.Completion"] == SLACK + 1, "nobody has asked for them"
