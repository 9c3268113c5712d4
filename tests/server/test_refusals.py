"""What cannot be served is refused in one line that says what to do, and costs nobody else anything."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from paceline import LLM
from paceline.server.answer import Ticket
from paceline.server.api import failed
from paceline.server.prepare import depth

from .live import Live, live

CHAT = "/v1/chat/completions"
HI: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "seed": 1}
MANY = {str(token): 1 for token in range(1200)}


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def schema(given: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": given}}}


@pytest.fixture(scope="module")
def http(toy: Live) -> Iterator[httpx.Client]:
    with toy.client() as made:
        yield made


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"] and "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1.0; allowed: 0 (greedy) or a positive number"),
        ({"top_p": 0}, "top_p", "top_p is 0.0; allowed: above 0, up to 1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; allowed: 1 or more"),
        ({"min_tokens": 9}, "min_tokens", "min_tokens is 9; allowed: 0 to max_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty", "allowed: above 0"),
        ({"stop": ""}, "stop", "allowed: a tuple of non-empty strings"),
        ({"stop": ["a"] * 17}, "stop", "stop has 17 entries; allowed: 16"),
        ({"stop": "a" * 2000}, None, "a stop string's length is 2000; allowed: 1024"),
        ({"n": 9}, "n", "n is 9; allowed: 8"),
        ({"logit_bias": MANY}, "logit_bias", "logit_bias has 1200 entries; allowed: 1024"),
        ({"logit_bias": {"259": 1}}, "logit_bias", "logit_bias has token id 259; this model's ids are 0 to 258"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "this model's ids are 0 to 258"),
        ({"speculation": {"drafters": ["model"]}}, "drafters", "drafters has 'model'; this server's drafters: "),
        ({"speculation": {"max_draft_tokens": 65}}, "speculation.max_draft_tokens", "less than or equal to 64"),
        ({"speculation": {"rule": "lucky"}}, "speculation.rule", "'coupled', 'ratio', 'block' or 'typical'"),
        (
            {"prediction": {"type": "content", "content": "x"}, "speculation": {"mode": "off"}},
            None,
            "there is a prediction and the request's speculation is off",
        ),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, None, "at most 511 fit in the context of 512"),
        ({"regex": "("}, None, ""),
        ({"grammar": "start: nothing"}, None, ""),
        ({"regex": "a", "grammar": 'start: "a"'}, None, "more than one of response_format, regex and grammar"),
        (schema({"type": 4}), None, ""),
        (schema(nested(40)), None, "the depth of response_format's schema is "),
        (schema({"enum": ["x" * 70_000]}), None, "the size in bytes of response_format's schema is 70014"),
        ({"chat_template_kwargs": {"messages": []}}, None, "template option 'messages' is set by the request itself"),
    ],
)
def test_a_bad_request_is_told_why(http, given, param, said):
    error = refused(http.post(CHAT, json=HI | given), 400)
    assert said in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_another_model_is_not_found(http, path):
    error = refused(http.post(path, json=(HI if path == CHAT else {"prompt": "x"}) | {"model": "gpt-4o"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "the model 'gpt-4o' is not here; this server has 'toy:ngram'"


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b'{"messages": [', "application/json", "not valid JSON"),
        (b"[]", "application/json", "valid dictionary"),
        (b"", "application/json", "there is no body"),
        (b"\xff\xfe{}", "application/json", ""),
        (b'{"messages": "\xff"}', "application/json", ""),
        (b"1" * 10_000, "application/json", ""),
        (b"[" * 100_000, "application/json", ""),
        (json.dumps(HI).encode(), "text/plain", "valid dictionary"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "application/json", ""),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "application/json", "finite"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "application/json", "finite"),
        (b'{"messages": [{"role": "user", "content": "x"}], "\\ud800": 1}', "application/json", "valid string"),
    ],
)
def test_what_is_no_request_at_all(http, body, kind, said):
    error = refused(http.post(CHAT, content=body, headers={"Content-Type": kind}), 400)
    assert said in error["message"]
    assert http.post(CHAT, json=HI).json()["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", CHAT, 405), ("POST", "/v1/nothing", 404), ("GET", "/v1/models/x/y", 404)]
)
def test_what_is_not_there(http, method, path, status):
    refused(http.request(method, path), status)


def test_a_completions_prompts_are_bounded_together(http):
    error = refused(http.post("/v1/completions", json={"prompt": ["x"] * 64, "n": 8}), 400)
    assert error["message"] == "the number of prompts times n is 512; allowed: 256"
    assert "the prompt is empty" in refused(http.post("/v1/completions", json={"prompt": ""}), 400)["message"]


def test_the_official_client_knows_what_it_was(toy):
    with openai.OpenAI(base_url=f"{toy.url}/v1", api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="toy:ngram", messages=HI["messages"], temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-4o", messages=HI["messages"])


@pytest.fixture
def own(kept) -> Iterator[Live]:
    with live(LLM("toy:ngram", sequences=1), {"server": {"queue": 2, "max_prompt_tokens": 100}}) as server:
        yield server


def slowed(server: Live, seconds: float) -> None:
    forward = server.llm.engine.target.forward

    def slow(*given: Any) -> Any:
        time.sleep(seconds)
        return forward(*given)

    server.llm.engine.target.forward = slow  # type: ignore[method-assign]


def test_a_full_line_says_when_to_come_back(own):
    slowed(own, 0.01)
    long = HI | {"max_tokens": 100, "ignore_eos": True}
    with own.client() as http, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: http.post(CHAT, json=long), range(12)))
    busy = [answer for answer in answers if answer.status_code != 200]
    assert busy and len(busy) < 12
    for answer in busy:
        error = refused(answer, 429)
        assert error["type"] == "rate_limit_error" and int(answer.headers["retry-after"]) >= 1
    assert len({a.json()["choices"][0]["message"]["content"] for a in answers if a.status_code == 200}) == 1
    own.settle()


def test_choices_that_find_no_room_leave_none_behind(own):
    """One runs and one waits: of two choices there is room for one, which must not go on alone."""
    slowed(own, 0.01)
    long = HI | {"max_tokens": 120, "ignore_eos": True, "speculation": {"mode": "off"}}
    with own.client() as http, ThreadPoolExecutor(2) as pool:
        others = [pool.submit(http.post, CHAT, json=long) for _ in range(2)]
        while (own.hub.worker.snapshot.running, own.hub.worker.snapshot.waiting) != (1, 1):
            time.sleep(0.01)
        refused(http.post(CHAT, json=long | {"n": 2}), 429)
        assert [other.result().status_code for other in others] == [200, 200]
    own.settle()
    assert own.call(lambda engine: engine.report().steps) == 2 * 120


def test_a_prompt_may_be_bounded_below_the_context(own):
    with own.client() as http:
        error = refused(http.post("/v1/completions", json={"prompt": "x" * 101}), 400)
        assert error["message"] == "the prompt's tokens is 101; allowed: 100"


def test_while_draining_nothing_is_taken(own):
    with own.client() as http:
        own.wait(own.hub.worker.drain(1))
        answer = http.post(CHAT, json=HI)
        error = refused(answer, 503)
        assert error["code"] == "shutting_down" and "retry-after" in answer.headers


def test_a_bug_in_a_route_is_no_leak(own, monkeypatch, caplog):
    def broken(*given: Any) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("paceline.server.api.choices", broken)
    with own.client() as http:
        error = refused(http.post(CHAT, json=HI), 500)
        assert error["type"] == "server_error" and "inside" not in error["message"]
        assert error["message"].rpartition(" ")[2] in caplog.text
    monkeypatch.undo()
    own.settle()


def test_a_grammar_that_costs_too_much_while_it_runs_is_the_clients():
    error = failed(Ticket("chatcmpl-1"), "RequestError: the grammar costs more than it may")
    assert (error.status, error.message) == (400, "the grammar costs more than it may")
    assert failed(Ticket("chatcmpl-1"), "ZeroDivisionError: inside").status == 500


@pytest.mark.parametrize(("value", "want"), [(1, 0), ({}, 1), ({"a": [1]}, 2), ([[[]]], 3), (nested(9), 10)])
def test_depth_counts_what_is_inside(value, want):
    assert depth(value, 64) == want
    assert depth(value, 1) == min(want, 2)
