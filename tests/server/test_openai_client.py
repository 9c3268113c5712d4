"""The official client, over every parameter: what it asks for reaches the engine, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from paceline import LLM, SamplingParams
from paceline.server.prepare import choice_seed
from paceline.server.schemas import IGNORED

from .live import Live

MESSAGES: Any = [{"role": "user", "content": "say it"}]
BASE: dict[str, Any] = {"max_tokens": 48, "seed": 11, "temperature": 1.0}


@pytest.fixture(scope="module")
def client(toy: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{toy.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, extra: dict[str, Any] | None = None, **given: Any) -> Any:
    return client.chat.completions.create(
        model="toy:ngram", messages=MESSAGES, **(BASE | given), extra_body={"ignore_eos": True} | (extra or {})
    )


def expected(plain: LLM, **given: Any) -> Any:
    return plain.chat(MESSAGES, SamplingParams(**({"ignore_eos": True} | BASE | given)))


def text(answer: Any) -> str:
    return answer.choices[0].message.content


PARAMETERS = [
    # what the client sends, what lies outside of OpenAI's parameters, what it means
    ({"temperature": 0}, {}, {"temperature": 0.0}),
    ({"temperature": 1.7}, {}, {"temperature": 1.7}),
    ({"seed": 12}, {}, {"seed": 12}),
    ({"seed": -1}, {}, {"seed": 2**64 - 1}),
    ({"top_p": 0.3}, {}, {"top_p": 0.3}),
    ({"presence_penalty": 2}, {}, {"presence_penalty": 2.0}),
    ({"frequency_penalty": 1.5}, {}, {"frequency_penalty": 1.5}),
    ({"logit_bias": {"101": 8, "102": -100}}, {}, {"logit_bias": {101: 8.0, 102: -100.0}}),
    ({"max_tokens": 7}, {}, {"max_tokens": 7}),
    ({"max_tokens": openai.omit, "max_completion_tokens": 9}, {}, {"max_tokens": 9}),
    ({}, {"top_k": 2}, {"top_k": 2}),
    ({}, {"min_p": 0.4}, {"min_p": 0.4}),
    ({}, {"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    ({"logit_bias": {"256": 9}}, {"ignore_eos": False}, {"ignore_eos": False, "logit_bias": {256: 9.0}}),
    (
        {"logit_bias": {"256": 9}},
        {"ignore_eos": False, "min_tokens": 5},
        {"ignore_eos": False, "min_tokens": 5, "logit_bias": {256: 9.0}},
    ),
]


@pytest.mark.parametrize(("given", "extra", "meaning"), PARAMETERS)
def test_a_parameter_means_what_it_means_in_the_library(client, plain_toy, given, extra, meaning):
    answer, want = ask(client, extra, **given), expected(plain_toy, **meaning)
    assert text(answer) == want.text
    assert answer.choices[0].finish_reason == want.finish_reason
    assert answer.usage.completion_tokens == len(want.token_ids)
    assert want.token_ids != expected(plain_toy).token_ids, "the parameter changes nothing: this proves nothing"


def test_the_default_is_openais(client, plain_toy):
    answer = client.chat.completions.create(model="toy:ngram", messages=MESSAGES, seed=4)
    room = plain_toy.engine.context - answer.usage.prompt_tokens
    want = plain_toy.chat(MESSAGES, SamplingParams(seed=4, temperature=1.0, max_tokens=room))
    assert text(answer) == want.text


@pytest.mark.parametrize("form", ["text", "list"])
def test_stop_ends_before_the_text(client, plain_toy, form):
    whole = expected(plain_toy).text
    stop = whole[10:12]
    assert whole.find(stop) > 0
    answer = ask(client, stop=stop if form == "text" else ["\x00never", stop])
    assert text(answer) == whole[: whole.find(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_stop_tokens_and_bad_words(client, plain_toy):
    tokens = expected(plain_toy).token_ids
    answer = ask(client, {"stop_token_ids": [tokens[6]]})
    assert answer.usage.completion_tokens == tokens.index(tokens[6]) + 1
    assert answer.choices[0].finish_reason == "stop"
    word = next(char for char in expected(plain_toy).text if char.isascii() and char.isalpha())
    banned = ask(client, {"bad_words": [word]})
    assert word not in text(banned) and text(banned) == expected(plain_toy, bad_words=(word,)).text


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_the_targets(client, plain_toy, top):
    silent = [257, 258]  # special tokens, which are spelled in log-probabilities and in no text
    answer = ask(client, logprobs=True, top_logprobs=top, logit_bias={str(token): -100 for token in silent})
    want = expected(plain_toy, logprobs=top, logit_bias=dict.fromkeys(silent, -100.0))
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens == len(want.logprobs)
    for entry, position in zip(told, want.logprobs, strict=True):
        assert bytes(entry.bytes) == plain_toy.tokenizer.token_bytes(position.token_id)
        assert entry.logprob == pytest.approx(position.logprob)
        assert [t.logprob for t in entry.top_logprobs] == pytest.approx([x for _, x in position.top])
        assert sum(math.exp(t.logprob) for t in entry.top_logprobs) <= 1 + 1e-6
    spelled = b"".join(bytes(entry.bytes) for entry in told)
    assert spelled.decode("utf-8", "replace") == text(answer), "halves of characters are whole in bytes"


def test_choices_have_seeds_of_their_own(client, plain_toy):
    answer = ask(client, n=4)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts == [expected(plain_toy, seed=choice_seed(11, i)).text for i in range(4)]
    assert texts[0] == text(ask(client)), "the first has the request's own"
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (4 * 48, len("say it") + 2)


def test_the_seed_that_was_drawn_is_told(client):
    first = ask(client, seed=None)
    again = ask(client, seed=first.seed)
    assert text(first) == text(again)
    assert first.seed < 2**53, "any reader of JSON keeps it"
    assert text(ask(client, seed=None)) != text(first)


@pytest.mark.parametrize("name", IGNORED)
def test_parameters_of_an_account_change_nothing(client, name):
    value: Any = {"user": "u", "store": True, "metadata": {"a": "b"}}.get(name, "auto")
    assert text(ask(client, {name: value})) == text(ask(client))


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("strict", [True, False, None])
def test_an_answer_follows_its_schema(client, strict):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": strict}}
    answer = ask(client, {"ignore_eos": False}, response_format=form, max_tokens=300)
    person = json.loads(text(answer))
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 5 and 0 <= person["age"] <= 99


def test_an_answer_is_an_object(client, plain_toy):
    wished = {'"': 15, "}": 40, ",": -100}  # a toy would hardly ever close a string, or the object
    bias = {str(plain_toy.tokenizer.encode(char)[0]): wish for char, wish in wished.items()}
    form = {"type": "json_object"}
    answer = ask(client, {"ignore_eos": False}, response_format=form, max_tokens=400, logit_bias=bias)
    assert isinstance(json.loads(text(answer)), dict)


@pytest.mark.parametrize(
    ("extra", "allowed"),
    [({"regex": "(yes|no), [0-9]{3}"}, "0123456789, yesno"), ({"grammar": 'start: "a" ("b" | "c")+ "d"'}, "abcd")],
)
def test_regex_and_grammar(client, extra, allowed):
    answer = ask(client, {"ignore_eos": False} | extra)
    assert text(answer) and set(text(answer)) <= set(allowed)
    assert text(ask(client))[:1] not in allowed, "plainly it would say something else"


def test_a_text_response_format_is_none(client):
    assert text(ask(client, response_format={"type": "text"})) == text(ask(client))


@pytest.mark.parametrize("parts", [False, True])
def test_a_prediction_is_accounted_for(client, parts):
    plain = ask(client)
    # A toy's text is not ASCII, and what is sent as a prediction is: the part that is may come true.
    prompt = "abcdefgh" * 4
    want = client.chat.completions.create(
        model="toy:ngram",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=24,
        temperature=0,
        extra_body={"regex": "(abcdefgh){3}"},
    )
    said = "abcdefgh" * 3
    content: Any = [{"type": "text", "text": said[:9]}, {"type": "text", "text": said[9:]}] if parts else said
    answer = client.chat.completions.create(
        model="toy:ngram",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=24,
        temperature=0,
        prediction={"type": "content", "content": content},
        extra_body={"regex": "(abcdefgh){3}", "speculation": {"mode": "always", "drafters": ["prediction"]}},
    )
    assert text(answer) == text(want) == said
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.accepted_prediction_tokens == answer.usage.speculation["by_drafter"]["prediction"]["accepted"]
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_speculation_is_asked_for_and_told(client):
    off = ask(client, {"speculation": {"mode": "off"}})
    always = ask(client, {"speculation": {"mode": "always", "max_draft_tokens": 3, "drafters": ["suffix", "lookup"]}})
    assert text(off) == text(always)
    told = off.usage.speculation
    assert (told["mode"], told["drafted"], told["lossless"]) == ("off", 0, True)
    assert told["reasons"].keys() == {"requested_off"}
    told = always.usage.speculation
    assert told["mode"] == "always" and set(told["by_drafter"]) <= {"suffix", "lookup"}
    assert told["drafted"] >= told["verified"] >= told["accepted"]
    assert told["accepted"] + told["steps"] == always.usage.completion_tokens
    assert told["plain_steps"] <= told["steps"]
    typical = ask(client, {"speculation": {"rule": "typical"}}).usage.speculation
    assert (typical["rule"], typical["lossless"]) == ("typical", False)


def test_who_guessed_each_token_is_shown_on_demand(client, plain_toy):
    extra = {"speculation": {"mode": "always", "show_draft": True}}
    answer = ask(client, extra, temperature=0, max_tokens=200)
    shown, want = answer.choices[0].paceline, expected(plain_toy, temperature=0.0, max_tokens=200)
    assert [token["id"] for token in shown["tokens"]] == list(want.token_ids)
    assert "".join(token["text"] for token in shown["tokens"]) == text(answer)[: len(text(answer))]
    accepted = [token["source"] for token in shown["tokens"] if token["source"]]
    told = answer.usage.speculation
    assert len(accepted) == told["accepted"]
    assert len(shown["rejected"]) == told["verified"] - told["accepted"]
    assert all(rejected["depth"] >= 1 and rejected["source"] for rejected in shown["rejected"])
    assert not hasattr(ask(client).choices[0], "paceline")


def test_models_are_listed_and_found(client, toy):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == ("toy:ngram", "paceline", toy.llm.engine.context)
    assert client.models.retrieve("toy:ngram").id == "toy:ngram"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.body["code"] == "model_not_found"


def test_the_asynchronous_client(toy, plain_toy):
    async def go() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{toy.url}/v1", api_key="unused", max_retries=0) as client:
            given: Any = {"model": "toy:ngram", "messages": MESSAGES, **BASE, "extra_body": {"ignore_eos": True}}
            whole = await client.chat.completions.create(**given)
            stream = await client.chat.completions.create(**given, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(go()) == (expected(plain_toy).text,) * 2


def test_conversations_of_every_role(client, plain_toy):
    given: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    meant = [{"role": r, "content": c} for r, c in (("system", "be brief"), ("user", "a\nb"), ("assistant", "c"))]
    answer = client.chat.completions.create(model="toy:ngram", messages=given, temperature=0, max_tokens=20)
    want = plain_toy.chat([*meant, {"role": "user", "content": "d"}], SamplingParams(max_tokens=20))
    assert text(answer) == want.text
    assert answer.usage.prompt_tokens == want.prompt_tokens
