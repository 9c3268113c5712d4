"""Requests drawn from the server's own OpenAPI document, some that fit it and some that do not."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.schemas import APIOperation, BaseSchema

from paceline.core.types import SamplingParams
from paceline.engine.llm import LLM
from paceline.server import api
from paceline.server.admission import Line

from .asking import ask
from .live import Live, live

TIMEOUT_S = 20.0
"""Of each call: longer than the longest text takes that may be asked for here."""
GOOD = {
    "/v1/completions": {"model": "toy:ngram", "prompt": "a line of riders", "max_tokens": 4, "seed": 7},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4, "seed": 7},
    "/admin/speculation": {"mode": "auto"},
}
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
OPERATIONS = (
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/metrics"),
    ("get", "/api/state"),
    ("get", "/api/requests"),
    ("get", "/admin/speculation"),
    ("get", "/admin/check"),
    ("post", "/admin/speculation"),
    ("post", "/v1/completions"),
    ("post", "/v1/chat/completions"),
)


@pytest.fixture(scope="module")
def fuzzed(kept) -> Iterator[Live]:
    with live(LLM("toy:ngram")) as server:
        yield server


@pytest.fixture(scope="module")
def schema(fuzzed) -> BaseSchema:
    with fuzzed.client() as client:
        return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


@st.composite
def cases(draw: st.DrawFn, operation: APIOperation) -> Case:
    """A request that fits the document or does not; half of the bodies are good ones with a few fields of the drawn."""
    modes = list(GenerationMode) if operation.body or list(operation.iter_parameters()) else [GenerationMode.POSITIVE]
    case = draw(operation.as_strategy(generation_mode=draw(st.sampled_from(modes))))
    good = GOOD.get(operation.path)
    if good and case.body and isinstance(case.body, dict) and draw(st.booleans()):
        changed = draw(st.lists(st.sampled_from(sorted(case.body)), max_size=3))
        streams = {"stream": True} if "/v1/" in operation.path and draw(st.booleans()) else {}
        case.body = good | streams | {name: case.body[name] for name in changed}
    return case


def check(operation: APIOperation, response: Response) -> None:
    """Assert that an answer is one of those that the document has, and JSON that can be read."""
    status, told = response.status_code, response.content[:600]
    assert status < 500 or status == 503, told
    documented = operation.definition.raw["responses"]
    assert str(status) in documented or f"{status // 100}XX" in documented, (status, told)
    kind = response.headers.get("content-type", [""])[0].partition(";")[0]
    if status >= 400:
        refused(status, json.loads(response.content))
    elif kind == "text/event-stream":
        streamed(response.content)
    else:
        assert kind in documented["200"].get("content", {kind: ...})
        assert kind != "application/json" or isinstance(json.loads(response.content), dict | list)


def refused(status: int, body: dict[str, Any]) -> None:
    """Assert that a body is OpenAI's error object."""
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == KINDS.get(status, "invalid_request_error")
    assert body["error"]["message"]


def streamed(content: bytes) -> None:
    """Assert that a stream has an end, and objects before it; an error is not the server's."""
    *events, last = content.decode().removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    for event in events:
        told = json.loads(event.removeprefix("data: "))
        assert "choices" in told or told["error"]["type"] != "server_error", event


def fuzz(server: Live, operation: APIOperation, examples: int) -> Counter[int | str]:
    """Send so many requests one after another, check each answer, and count their statuses, and the streams."""
    found: Counter[int | str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(operation))
    def send(case: Case) -> None:
        response = case.call(base_url=server.url, session=session, timeout=TIMEOUT_S)
        found[response.status_code] += 1
        found["streams"] += response.content.startswith(b"data: ")
        check(operation, response)

    with requests.Session() as session:
        send()
    return found


def answers_well(server: Live, plain: LLM) -> None:
    """Nothing was lost, and a good request gets what plain decoding gives."""
    server.settle()
    body = GOOD["/v1/completions"] | {"max_tokens": 24, "temperature": 0.8}
    with server.client() as client:
        found = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    [expected] = plain.generate(str(body["prompt"]), SamplingParams(max_tokens=24, seed=7, temperature=0.8))
    assert found == expected.text


def test_the_document_has_these_operations_and_their_bodies(schema):
    found = {(each.ok().method, each.ok().path) for each in schema.get_all_operations()}
    assert found == set(OPERATIONS)
    assert all(schema[path]["post"].body for path in GOOD)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_any_request_is_answered(fuzzed, schema, plain_toy, method, path):
    found = fuzz(fuzzed, schema[path][method], 20)
    assert sum(found.values()) > 0
    answers_well(fuzzed, plain_toy)


def test_both_refusals_and_texts_are_reached(fuzzed, schema):
    for path in ("/v1/completions", "/v1/chat/completions"):
        found = fuzz(fuzzed, schema[path]["post"], 40)
        assert found[200] > 0
        assert found[400] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[0] == "post"])
def test_any_of_many_requests_is_answered(fuzzed, schema, plain_toy, method, path):
    found = fuzz(fuzzed, schema[path][method], 1000)
    assert found[200] > 0
    assert found[400] > 0
    assert found["streams"] > 0 or path.startswith("/admin")
    answers_well(fuzzed, plain_toy)


class TestControls:
    def test_a_route_that_raises_is_found(self, fuzzed, schema, monkeypatch):
        monkeypatch.setattr(api, "unknown_model", lambda *given: ZeroDivisionError())
        with pytest.raises(AssertionError, match="server_error"):
            fuzz(fuzzed, schema["/v1/models/{name}"]["get"], 20)

    def test_and_one_that_hangs(self, fuzzed, schema, monkeypatch):
        monkeypatch.setattr(api, "unknown_model", lambda *given: time.sleep(1))
        monkeypatch.setattr("tests.server.test_fuzz.TIMEOUT_S", 0.2)
        with pytest.raises(requests.Timeout):
            fuzz(fuzzed, schema["/v1/models/{name}"]["get"], 5)


class TestFound:
    """What malformed requests have brought to light."""

    @pytest.mark.parametrize("name", ["max_tokens", "min_tokens", "top_k", "best_of", "n", "seed", "logprobs"])
    def test_a_number_of_400_digits_is_refused(self, fuzzed, plain_toy, name):
        with fuzzed.client() as client:
            response = client.post("/v1/completions", json=GOOD["/v1/completions"] | {name: 10**400})
        assert response.status_code == 400
        refused(400, response.json())
        assert response.json()["error"]["param"] == name
        answers_well(fuzzed, plain_toy)

    def test_one_that_gets_to_the_engine_costs_no_more_than_the_context(self, fuzzed, plain_toy):
        completion = ask(fuzzed, tokens=10**400)
        assert completion.prompt_tokens + len(completion.token_ids) <= fuzzed.llm.engine.context
        answers_well(fuzzed, plain_toy)

    def test_what_cannot_be_taken_stays_in_line(self):
        """And so has an end when the engine thread has."""
        line: Line[str] = Line(2)
        line.put("a", 10**400, "odd")
        with pytest.raises(OverflowError):
            line.take()
        assert list(line) == ["odd"]
