from __future__ import annotations

import json

import pytest

from paceline import LLM, SamplingParams

MODEL = "toy:ngram"
CHAT = ("chat", "--model", MODEL, "--max-tokens", "8")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def answer():
    llm = LLM(MODEL)
    return lambda *messages: llm.chat(messages, SamplingParams(max_tokens=8)).text


def texts(result) -> list[str]:
    return [json.loads(line)["text"] for line in result.out.splitlines()]


def test_every_line_is_a_turn_and_the_conversation_is_remembered(run, answer):
    result = run(*CHAT, "--json", stdin=b"one\n\n  \ntwo\nthree")
    first = answer(user("one"))
    second = answer(user("one"), assistant(first), user("two"))
    third = answer(user("one"), assistant(first), user("two"), assistant(second), user("three"))
    assert result.code == 0
    assert texts(result) == [first, second, third]


def test_answers_go_to_stdout_and_the_account_to_stderr(run, answer):
    result = run(*CHAT, stdin=b"one\n")
    assert result.out == answer(user("one")) + "\n"
    assert result.err.startswith("8 tokens (length)")
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("always")
def test_every_answer_may_repeat_the_prediction(run, answer, tmp_path):
    """The same text, and the second answer is drafted from it as the first."""
    first = answer(user("one"))
    file = tmp_path / "expected.txt"
    file.write_text(first)
    result = run(*CHAT, "--json", "--prediction", str(file), stdin=b"one\n/reset\none\n")
    assert texts(result) == [first, first]
    counts = [json.loads(line)["usage"]["completion_tokens_details"] for line in result.out.splitlines()]
    assert all(count["accepted_prediction_tokens"] > 0 for count in counts)


def test_reset_forgets(run, answer):
    result = run(*CHAT, "--json", stdin=b"one\n/reset\ntwo\n")
    assert texts(result) == [answer(user("one")), answer(user("two"))]


def test_reset_keeps_what_the_system_said(run, answer):
    told = {"role": "system", "content": "be brief"}
    result = run(*CHAT, "--json", "--system", "be brief", stdin=b"one\n/reset\ntwo\n")
    assert texts(result) == [answer(told, user("one")), answer(told, user("two"))]


def test_exit_leaves(run):
    result = run(*CHAT, stdin=b"/exit\none\n")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_an_unknown_command_is_not_sent_to_the_model(run):
    result = run(*CHAT, stdin=b"/rest\n/exit\n")
    assert (result.code, result.out) == (0, "")
    assert result.err == "paceline: there is no command /rest; allowed: /reset, /exit\n"


def test_a_message_that_begins_with_a_slash_is_a_message(run, answer):
    assert texts(run(*CHAT, "--json", stdin=b"/etc is what?\n")) == [answer(user("/etc is what?"))]


def test_a_conversation_that_outgrows_the_context_goes_on_after_a_reset(run, answer):
    long = "a" * 400
    result = run(*CHAT, "--json", stdin=f"{long}\n{long}\n/reset\none\n".encode())
    assert result.code == 0
    assert texts(result) == [answer(user(long)), answer(user("one"))]
    assert result.err.count("\n") == 1
    assert "at most 511 fit in the context of 512" in result.err
    assert "/reset" in result.err


def test_a_refused_message_is_forgotten(run, answer):
    result = run(*CHAT, "--json", stdin=b"one\n" + b"a" * 600 + b"\ntwo\n")
    first = answer(user("one"))
    assert texts(result) == [first, answer(user("one"), assistant(first), user("two"))]


def test_a_first_message_that_is_too_long_is_not_helped_by_a_reset(run):
    assert "/reset" not in run(*CHAT, stdin=b"a" * 600).err


def test_raw_continues_the_transcript(run):
    result = run(*CHAT, "--json", "--raw", stdin=b"one\ntwo\n")
    llm = LLM(MODEL)
    first = llm.generate("one", SamplingParams(max_tokens=8))[0].text
    second = llm.generate(f"one\n{first}\ntwo", SamplingParams(max_tokens=8))[0].text
    assert texts(result) == [first, second]


def test_a_model_without_a_template_is_refused_before_the_first_turn(refused, monkeypatch):
    from paceline.models import toy

    bare = toy.tokenizer()
    bare.chat_template = None
    monkeypatch.setattr(toy, "tokenizer", lambda: bare)
    assert "--raw" in refused(*CHAT, stdin=b"one\n")


def test_earlier_turns_are_not_read_again(run, monkeypatch):
    from paceline.runners.toy import ToyRunner

    rows: list[int] = []
    whole = ToyRunner.forward

    def counting(self, spans, *rest):
        rows.append(sum(len(span.tokens) for span in spans))
        return whole(self, spans, *rest)

    monkeypatch.setattr(ToyRunner, "forward", counting)
    run(*CHAT, stdin=b"a" * 200 + b"\n" + b"b" * 20 + b"\n")
    turns = [n for n in rows if n > 16]
    assert max(turns) >= 200
    assert turns[-1] < 100
