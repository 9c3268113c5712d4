"""Completions: prompts of every form, echo, and the older form of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from paceline import LLM, SamplingParams
from paceline.models.toy import tokenizer
from paceline.server.prepare import choice_seed

from .live import Live

BASE: dict[str, Any] = {"max_tokens": 24, "seed": 5, "temperature": 1.0}


@pytest.fixture(scope="module")
def client(toy: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{toy.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


ENCODE = tokenizer().encode


def ask(client: openai.OpenAI, prompt: Any, **given: Any) -> Any:
    return client.completions.create(
        model="toy:ngram", prompt=prompt, **(BASE | given), extra_body={"ignore_eos": True}
    )


def expected(plain: LLM, prompt: Any, **given: Any) -> Any:
    return plain.generate(prompt, SamplingParams(**({"ignore_eos": True} | BASE | given)))[0]


def texts(answer: Any) -> list[str]:
    return [choice.text for choice in answer.choices]


@pytest.mark.parametrize("prompt", ["abc", ENCODE("abc"), ["abc"], [ENCODE("abc")]])
def test_a_prompt_is_a_text_or_its_tokens(client, plain_toy, prompt):
    answer = ask(client, prompt)
    assert texts(answer) == [expected(plain_toy, "abc").text]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 24, 27)


@pytest.mark.parametrize("prompts", [["ab", "xyz"], [ENCODE("ab"), ENCODE("xyz")]])
def test_every_prompt_has_its_choices(client, plain_toy, prompts):
    answer = ask(client, prompts, n=2)
    want = [expected(plain_toy, p, seed=choice_seed(5, i)).text for p in ("ab", "xyz") for i in range(2)]
    assert texts(answer) == want
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4 * 24)
    assert texts(ask(client, prompts[1], n=2)) == want[2:], "other prompts change nothing"


def test_sixteen_tokens_unless_more_are_asked_for(client):
    assert ask(client, "ab", max_tokens=None).usage.completion_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hi — there", ENCODE("hi —")[:-1]])
def test_echo_repeats_the_prompt(client, plain_toy, prompt, stream):
    shown = prompt if isinstance(prompt, str) else "hi "  # the answer completes what is left half-written
    want = shown + expected(plain_toy, prompt).text
    if stream:
        assert "".join(chunk.choices[0].text for chunk in ask(client, prompt, echo=True, stream=True)) == want
    else:
        assert texts(ask(client, prompt, echo=True)) == [want]
        assert ask(client, prompt, echo=True).usage.completion_tokens == 24, "what is repeated is not counted"


@pytest.mark.parametrize("top", [0, 1, 4])
def test_logprobs_in_the_older_form(client, plain_toy, top):
    banned = {256: -100.0, 257: -100.0, 258: -100.0}
    answer = ask(client, "ab", logprobs=top, logit_bias={str(k): v for k, v in banned.items()})
    (choice,), want = answer.choices, expected(plain_toy, "ab", logprobs=top, logit_bias=banned)
    told = choice.logprobs
    assert told.token_logprobs == pytest.approx([p.logprob for p in want.logprobs])
    assert len(told.tokens) == len(told.text_offset) == 24
    for token, offset, position in zip(told.tokens, told.text_offset, want.logprobs, strict=True):
        data = plain_toy.tokenizer.token_bytes(position.token_id)
        if token.startswith("bytes:"):
            assert token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        else:
            assert choice.text[offset:].startswith(token) and token.encode() == data
    assert any(token.startswith("bytes:") for token in told.tokens), "no half of a character: this proves too little"
    assert told.text_offset == sorted(told.text_offset)
    if not top:
        assert told.top_logprobs == [None] * 24
        return
    for token, best, position in zip(told.tokens, told.top_logprobs, want.logprobs, strict=True):
        assert token in best, "the token that was drawn is among them, whatever its rank"
        assert len(best) in (top, top + 1)
        assert max(best.values()) == pytest.approx(position.top[0][1])


def test_what_a_prompt_spells_may_be_special(client, plain_toy):
    assert ask(client, "<user>a<bot>").usage.prompt_tokens == 3
    assert texts(ask(client, "<user>a<bot>")) == [expected(plain_toy, [257, *ENCODE("a"), 258]).text]


@pytest.mark.parametrize("given", [{"best_of": 1}, {"n": 2, "best_of": 2}])
def test_best_of_what_is_asked_for(client, given):
    assert texts(ask(client, "ab", **given)) == texts(ask(client, "ab", n=given.get("n", 1)))
