"""The same seed gives the same text: with speculation off and on, alone and beside others, streamed or whole."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.server.prepare import choice_seed

from .live import Live

MODES = ("off", "auto", "always")
PROMPTS = [
    "Repeat after me: a line of riders, a line of riders, a line of riders.",
    "Write a list of numbers: 1, 2, 3, 4, 5, 6, 7,",
    "Why is the sky blue?",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n",
]
SHAPES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "frequency_penalty": 0.5},
    {"temperature": 1.2, "top_k": 20},
]
COUNT = 16
TOKENS = 8
"""Of the first answer of the demo model; each has one more than the one before."""


def asked(model: str, tokens: int, i: int, mode: str) -> dict[str, Any]:
    """Return the parameters of one of sixteen requests that differ in all there is."""
    shape = dict(SHAPES[(i // 4) % 4])
    extra = {"speculation": {"mode": mode}} | ({"top_k": shape.pop("top_k")} if "top_k" in shape else {})
    messages = [{"role": "user", "content": PROMPTS[i % 4]}]
    return {"model": model, "messages": messages, "max_tokens": tokens + i, "seed": i, **shape, "extra_body": extra}


async def _one(client: openai.AsyncOpenAI, gate: asyncio.Semaphore, given: dict[str, Any], stream: bool) -> str:
    async with gate:
        if not stream:
            answer = await client.chat.completions.create(**given)
            return answer.choices[0].message.content or ""
        chunks = await client.chat.completions.create(**given, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


def texts(server: Live, requests: list[dict[str, Any]], concurrency: int) -> list[str]:
    async def go() -> list[str]:
        gate = asyncio.Semaphore(concurrency)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(_one(client, gate, r, bool(i % 2)) for i, r in enumerate(requests)))

    return asyncio.run(go())


def expected(plain: LLM, tokens: int) -> list[str]:
    """Return what a model without drafters says, one request at a time."""
    found = []
    for i in range(COUNT):
        sampling = SamplingParams(max_tokens=tokens + i, seed=i, **SHAPES[(i // 4) % 4])
        found.append(plain.chat([{"role": "user", "content": PROMPTS[i % 4]}], sampling).text)
    return found


@pytest.fixture(scope="module")
def toy_texts(plain_toy) -> list[str]:
    return expected(plain_toy, 40)


@pytest.fixture(scope="module")
def demo_texts(plain_demo) -> list[str]:
    return expected(plain_demo, TOKENS)


@pytest.fixture(autouse=True)
def allowed(toy: Live) -> None:
    allow(toy)


def allow(server: Live) -> None:
    """Let requests speculate whatever it costs: a server would soon switch off what only loses time."""
    server.wait(server.hub.rollback.operate(SpeculationParams("always"), "a test"))


def accepted(server: Live) -> int:
    return server.call(lambda engine: engine.report().accepted)


def compare(server: Live, requests: list[dict[str, Any]], concurrency: int, want: list[str], drafts: bool) -> None:
    before = accepted(server)
    assert texts(server, requests, concurrency) == want[: len(requests)]
    if drafts:
        assert accepted(server) > before, "no guess came true: plain decoding was compared with itself"
    server.settle()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_a_toy_says_the_same(toy, toy_texts, mode, concurrency):
    requests = [asked("toy:ngram", 40, i, mode) for i in range(COUNT)]
    compare(toy, requests, concurrency, toy_texts, mode == "always")


@pytest.mark.parametrize(
    ("mode", "concurrency", "count"),
    [
        *((mode, concurrency, concurrency) for mode in ("off", "auto") for concurrency in (4, 16)),
        ("always", 16, 16),
        ("off", 1, 2),
        ("auto", 1, 2),
        *(pytest.param(mode, c, COUNT, marks=pytest.mark.long) for mode in MODES for c in (1, 4)),
    ],
)
def test_the_demo_model_says_the_same(demo, demo_texts, mode, concurrency, count):
    allow(demo)
    requests = [asked("demo", TOKENS, i, mode) for i in range(count)]
    compare(demo, requests, concurrency, demo_texts, mode == "always")


def test_another_seed_says_something_else(toy, toy_texts):
    requests = [asked("toy:ngram", 40, i, "auto") | {"seed": 100 + i} for i in range(COUNT)]
    others = texts(toy, requests, 16)
    drawn = [i for i in range(COUNT) if SHAPES[(i // 4) % 4]["temperature"]]
    assert all(others[i] != toy_texts[i] for i in drawn), "a seed that is not read would pass everything above"
    assert all(others[i] == toy_texts[i] for i in range(COUNT) if i not in drawn), "without a draw it matters not"


def test_the_seeds_of_choices_are_fixed():
    """They are documented: other values would change texts that people have kept."""
    assert [choice_seed(7, i) for i in range(3)] == [7, 2_174_948_161_648_732_372, 12_112_147_548_605_771_095]
    assert len({choice_seed(seed, i) for seed in range(50) for i in range(8)}) == 400
    assert all(0 <= choice_seed(2**64 - 1, i) < 2**64 for i in range(8))
