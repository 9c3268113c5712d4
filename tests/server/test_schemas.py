"""What is taken for a request, and what is said of one that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.server.refusals import LONGEST, Refusal, encode, invalid, refusal, render
from paceline.server.schemas import IGNORED, MOST_PROMPTS, ChatBody, CompletionBody, Strict

HI = [{"role": "user", "content": "hi"}]


def refused(record: type[Strict], **given: Any) -> Refusal:
    with pytest.raises(ValidationError) as caught:
        record.model_validate(given)
    return invalid(caught.value.errors())


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"temprature": 1}, "temprature", "unknown parameter 'temprature' (did you mean 'temperature'?)"),
        ({"foo": 1, "bar": 2}, "bar", "unknown parameters 'bar', 'foo'"),
        ({"speculation": {"mod": "off"}}, "speculation.mod", "'speculation.mod' (did you mean 'mode'?)"),
        ({"n": "3"}, "n", "n: input should be a valid integer"),
        ({"n": True}, "n", "n: input should be a valid integer"),
        ({"n": 0}, "n", "n: input should be greater than or equal to 1"),
        ({"temperature": "hot"}, "temperature", "temperature: input should be a valid number"),
        ({"temperature": float("nan")}, "temperature", "temperature: input should be a finite number"),
        ({"seed": 2**64}, "seed", "seed: "),
        ({"stop": ["a", 4]}, "stop.1", "stop.1: input should be a valid string"),
        ({"stop": {}}, "stop", "stop: input should be a valid string"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias: 'x' is no token id"),
        ({"logit_bias": {"1": "2"}}, "logit_bias", "logit_bias: the bias of token 1 is no number"),
        ({"logit_bias": [1]}, "logit_bias", "logit_bias: an object of token ids"),
        ({"messages": []}, "messages", "messages: list should have at least 1 item"),
        ({"messages": "hi"}, "messages", "messages: input should be a valid list"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages.0.role", "'system', 'developer', 'user'"),
        ({"messages": [{"role": "user"}]}, "messages.0", "a message of role 'user' has no content"),
        ({"messages": [{"role": "user", "content": 4}]}, "messages.0.content", "input should be a valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0",
            "a part has the type 'image_url'; this model reads text only",
        ),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0", "has no tool_call_id"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema goes with the type"),
        ({"functions": []}, "functions", "functions: is deprecated; use tools"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "the model has no such setting"),
        ({"modalities": ["audio"]}, "modalities.0", "input should be 'text'"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "max_tokens and max_completion_tokens differ"),
        ({"top_logprobs": 3}, None, "top_logprobs is given and logprobs is not true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"tool_choice": "required"}, None, "tool_choice is given and there are no tools"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options is given and stream is not true"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "match pattern"),
    ],
)
def test_a_wrong_chat_request_is_named(given, param, said):
    found = refused(ChatBody, **({"messages": HI} | given))
    assert (found.status, found.type, found.param) == (400, "invalid_request_error", param)
    assert said in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"suffix": "x"}, "suffix", "the text is continued at its end only"),
        ({"best_of": 2}, None, "best_of is 2; choices are not ranked here"),
        ({"n": 2, "best_of": 1}, None, "best_of is 1"),
        ({"echo": True, "logprobs": 1}, None, "echo and logprobs do not go together"),
        ({"prompt": []}, None, "prompt is a list of 0 prompts; allowed: 1 to 64"),
        ({"prompt": ["x"] * (MOST_PROMPTS + 1)}, None, "prompt is a list of 65 prompts"),
        ({"prompt": [1, -2]}, "prompt.1", "greater than or equal to 0"),
        ({"prompt": [1, 2.5]}, "prompt.1", "valid integer"),
        ({"prompt": [[1], ["a"]]}, "prompt.1.0", "valid integer"),
        ({"messages": HI}, "messages", "unknown parameter 'messages'"),
    ],
)
def test_a_wrong_completion_request_is_named(given, param, said):
    found = refused(CompletionBody, **({"prompt": "hi"} | given))
    assert (found.status, found.param) == (400, param)
    assert said in found.message


@pytest.mark.parametrize(
    ("prompt", "count"), [("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1, 2], [3]], 2), (["a"], 1), ([[1]], 1)]
)
def test_prompts_of_every_form_are_told_apart(prompt, count):
    assert len(CompletionBody.model_validate({"prompt": prompt}).prompts) == count


def test_null_is_nothing_given():
    names = set(ChatBody.model_fields) - {"messages"}
    assert ChatBody.model_validate({"messages": HI, **dict.fromkeys(names)}) == ChatBody.model_validate(
        {"messages": HI}
    )
    names = set(CompletionBody.model_fields) - {"prompt"}
    assert CompletionBody.model_validate({"prompt": "x", **dict.fromkeys(names)}).choices == 1


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_ignored_may_be_anything(name):
    for value in ("x", {"a": 1}, True, 3):
        assert ChatBody.model_validate({"messages": HI, name: value})


def test_a_message_of_an_answer_may_be_sent_back():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    again = answer | {"function_call": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}]}
    assert len(ChatBody.model_validate({"messages": [*HI, again, result]}).messages) == 3


def test_a_million_mistakes_are_told_in_a_line():
    found = refused(CompletionBody, prompt="x", **{f"k{i}": i for i in range(100_000)})
    assert found.message == "an object has 100001 keys; allowed: 100"
    assert len(refused(CompletionBody, prompt="x", **{"k" * 10_000: 1}).message) < 600
    assert len(refused(CompletionBody, prompt=[*range(100_000), "x"]).message) < 600
    few = refused(ChatBody, messages=HI, n="1", seed="1", top_p="1", top_k="1", stop=4)
    assert few.message.endswith("; and 2 more")


def test_an_unexpected_error_is_told_by_an_id_alone(caplog):
    found = refusal(ZeroDivisionError("secret"))
    assert (found.status, found.type) == (500, "server_error")
    name = found.message.rpartition(" ")[2]
    assert "secret" not in found.message
    assert name in caplog.text and "secret" in caplog.text


def test_refusals_are_openais_object():
    given = Refusal(429, "too many", code="queue_full", retry_after=1.6)
    answer = render(given)
    assert json.loads(answer.body) == {
        "error": {"message": "too many", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    }
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    kinds = {status: Refusal(status, "").type for status in (400, 401, 403, 404, 500, 503)}
    assert kinds == {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "invalid_request_error",
        500: "server_error",
        503: "overloaded_error",
    }


def test_half_a_surrogate_does_not_break_an_answer():
    assert encode({"a": "x\ud800y"}) == b'{"a":"x?y"}'
    assert len(refusal(Refusal(400, "x" * 2000)).message) == 2000
    assert len(refused(CompletionBody, prompt="x", **{"y" * 2000: 1}).message) <= LONGEST + 20
