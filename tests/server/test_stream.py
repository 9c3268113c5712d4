"""Streams: what they add up to, how they end, and what happens when one side goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from paceline import LLM

from .live import Live, live

MESSAGES: Any = [{"role": "user", "content": "say it"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 60, "seed": 3}
TEXT: dict[str, Any] = {"prompt": "say it", "max_tokens": 60, "seed": 3}
URLS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}


@pytest.fixture(scope="module")
def http(toy: Live) -> Iterator[httpx.Client]:
    with toy.client() as made:
        yield made


@pytest.fixture
def own(kept) -> Iterator[Live]:
    """A server whose engine may be broken."""
    with live(LLM("toy:ngram"), {"server": {"request_timeout_s": 600.0}}) as server:
        yield server


def whole(http: httpx.Client, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(URLS[kind], json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx.Client, kind: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a stream that ends well."""
    with http.stream("POST", URLS[kind], json=given | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def added(chunks: list[dict[str, Any]], kind: str) -> dict[int, dict[str, Any]]:
    """Add a stream's chunks up, choice by choice."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for entry in chunk["choices"]:
            choice = found.setdefault(entry["index"], {"text": "", "logprobs": [], "finish": None, "shown": []})
            assert choice["finish"] is None, "something came after the end"
            choice["text"] += entry["text"] if kind == "text" else entry["delta"].get("content") or ""
            choice["finish"] = entry["finish_reason"]
            told = entry["logprobs"] or {}
            choice["logprobs"] += told.get("content", []) if kind == "chat" else told.get("token_logprobs", [])
            choice["shown"] += chunk.get("paceline", {}).get("tokens", [])
    return found


def parted(answer: dict[str, Any], kind: str) -> dict[int, dict[str, Any]]:
    found = {}
    for entry in answer["choices"]:
        told = entry["logprobs"] or {}
        found[entry["index"]] = {
            "text": entry["text"] if kind == "text" else entry["message"]["content"],
            "logprobs": told.get("content" if kind == "chat" else "token_logprobs", []),
            "finish": entry["finish_reason"],
            "shown": entry.get("paceline", {}).get("tokens", []),
        }
    return found


ALIKE: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"temperature": 0},
    {"stop": ["e", "a"]},
    {"ignore_eos": True, "speculation": {"mode": "always"}},
    {"speculation": {"mode": "off"}},
    {"speculation": {"mode": "always", "show_draft": True}},
    {"regex": "(é🙂, ){4}[ab]+"},
    {"min_tokens": 50, "frequency_penalty": 1.0, "n": 2},
]


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("extra", ALIKE)
def test_a_stream_adds_up_to_the_answer(http, kind, extra):
    logprobs = {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2}
    given = (CHAT if kind == "chat" else TEXT) | logprobs | extra
    chunks = events(http, kind, given | {"stream_options": {"include_usage": True}})
    answer = whole(http, kind, given)
    assert added(chunks, kind) == parted(answer, kind)
    *parts, last = chunks
    assert last["choices"] == [] and all(part["usage"] is None for part in parts)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == answer["usage"][name]
    assert last["usage"]["speculation"].keys() == answer["usage"]["speculation"].keys()
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert last["seed"] == answer["seed"] == 3


def test_chunks_are_openais(http):
    chunks = events(http, "chat", CHAT)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("usage" in chunk for chunk in chunks), "usage was not asked for"
    assert {chunk["object"] for chunk in events(http, "text", TEXT)} == {"text_completion"}


def test_no_chunk_has_half_a_character(http):
    """Each token of a toy is a byte, so that without care most chunks would."""
    given = CHAT | {"regex": "[é🙂漢]{30}", "max_tokens": 200, "speculation": {"mode": "off"}}
    contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(http, "chat", given)]
    assert all(set(content) <= set("é🙂漢") for content in contents)
    assert sum(map(len, contents)) == 30
    assert len(contents) > 4, "in one piece, it proves nothing"


def test_who_guessed_what_comes_beside_each_chunk(http):
    given = CHAT | {"temperature": 0, "max_tokens": 200, "ignore_eos": True}
    shown = given | {"speculation": {"mode": "always", "show_draft": True}}
    chunks = [chunk for chunk in events(http, "chat", shown) if "paceline" in chunk]
    tokens = [token for chunk in chunks for token in chunk["paceline"]["tokens"]]
    rejected = [token for chunk in chunks for token in chunk["paceline"]["rejected"]]
    assert len(tokens) == 200
    assert {"id", "text", "source"} == tokens[0].keys()
    assert {token["source"] for token in tokens} - {None}, "no guess came true: this proves little"
    assert {"text", "source", "depth"} == rejected[0].keys()
    assert not any("paceline" in chunk for chunk in events(http, "chat", given))


def slowed(server: Live, seconds: float) -> None:
    forward = server.llm.engine.target.forward

    def slow(*given: Any) -> Any:
        time.sleep(seconds)
        return forward(*given)

    server.llm.engine.target.forward = slow  # type: ignore[method-assign]


def failing(server: Live, at: int) -> Callable[[], None]:
    """Have the pass of this number fail, and return what makes it well again."""
    forward, calls = server.llm.engine.target.forward, 0

    def fail(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise ZeroDivisionError("inside")
        return forward(*given)

    def heal() -> None:
        server.llm.engine.target.forward = forward  # type: ignore[method-assign]

    server.llm.engine.target.forward = fail  # type: ignore[method-assign]
    return heal


@pytest.mark.parametrize("n", [1, 3])
def test_a_reader_who_leaves_frees_the_slot(own, n):
    slowed(own, 0.01)
    given = CHAT | {"max_tokens": 450, "ignore_eos": True, "stream": True, "n": n, "speculation": {"mode": "off"}}
    with own.client() as http, http.stream("POST", URLS["chat"], json=given) as answer:
        next(answer.iter_lines())
    own.settle()
    assert own.call(lambda engine: engine.report().steps) < 200 * n, "it was decoded to its end"


def test_a_client_who_leaves_before_the_answer_frees_the_slot(own):
    slowed(own, 0.01)
    given = CHAT | {"max_tokens": 450, "ignore_eos": True, "speculation": {"mode": "off"}}
    with own.client(timeout=0.5) as http, pytest.raises(httpx.ReadTimeout):
        http.post(URLS["chat"], json=given)
    own.settle()
    assert 0 < own.call(lambda engine: engine.report().steps) < 300, "it was decoded to its end"


def test_an_error_after_the_beginning_is_an_event(own):
    given = CHAT | {"ignore_eos": True, "stream": True, "n": 2}
    heal = failing(own, at=12)
    with own.client() as http, http.stream("POST", URLS["chat"], json=given) as answer:
        lines = [line for line in answer.iter_lines() if line]
    heal()
    assert len(lines) > 4, "it failed before the beginning"
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["type"] == "server_error" and error.keys() == {"message", "type", "param", "code"}
    assert "inside" not in error["message"], "the inside is nobody's business"
    own.settle()
    with own.client() as http:
        assert whole(http, "chat", CHAT)["choices"][0]["finish_reason"] == "length"


def test_the_official_client_hears_of_it(own):
    failing(own, at=12)
    with openai.OpenAI(base_url=f"{own.url}/v1", api_key="unused", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="toy:ngram", messages=MESSAGES, max_tokens=60, stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError, match="failed"):
            list(stream)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_an_error_without_a_stream_is_a_500(own, kind):
    failing(own, at=12)
    with own.client() as http:
        answer = http.post(URLS[kind], json=(CHAT if kind == "chat" else TEXT) | {"ignore_eos": True})
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error" and "inside" not in answer.text
        assert whole(http, "chat", CHAT)["usage"]["completion_tokens"] > 0
    own.settle()


def test_what_takes_too_long_is_cancelled(kept):
    with live(LLM("toy:ngram"), {"server": {"request_timeout_s": 0.5}}) as server, server.client() as http:
        slowed(server, 0.02)
        given = CHAT | {"max_tokens": 450, "ignore_eos": True}
        answer = http.post(URLS["chat"], json=given)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "cancelled")
        with http.stream("POST", URLS["chat"], json=given | {"stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "cancelled"
        server.settle()


def test_a_request_that_is_refused_begins_no_stream(http):
    answer = http.post(URLS["chat"], json=CHAT | {"stream": True, "temperature": -1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"
