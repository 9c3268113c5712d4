"""A prediction from the caller to the account: the same text, sooner, and every token of it counted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core.types import DrafterCounts, SpeculationReport
from paceline.drafters.prediction import counted
from paceline.errors import RequestError

TOY = ("generate", "abc", "--model", "toy:chaos", "--raw", "--max-tokens", "120", "--temperature", "1", "--seed", "5")
SAMPLING = SamplingParams(max_tokens=60, temperature=1.0, seed=5, ignore_eos=True)
ALWAYS = SpeculationParams(mode="always", max_draft=8)


@pytest.fixture
def file(tmp_path: Path, run) -> Path:
    """What toy:chaos answers, with a piece in the middle replaced; its bytes that are no text are left out."""
    found = tmp_path / "expected.txt"
    text = run(*TOY, "--json", "--no-speculation").json["text"].replace("\ufffd", "")
    found.write_text(f"{text[:30]}something else{text[36:]}", encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("toy:chaos", drafters=("prediction",))


@pytest.fixture(scope="module")
def answer(llm: LLM) -> tuple[int, ...]:
    return llm.generate("abc", SAMPLING, SpeculationParams(mode="off"))[0].token_ids


@pytest.mark.usefixtures("always")
class TestCommand:
    def test_the_text_is_the_same_and_the_tokens_are_counted(self, run, file):
        plain = run(*TOY, "--json", "--no-speculation").json
        found = run(*TOY, "--json", "--prediction", str(file)).json
        assert found["token_ids"] == plain["token_ids"]
        details, counts = found["usage"]["completion_tokens_details"], found["speculation"]["by_drafter"]["prediction"]
        assert details == {
            "accepted_prediction_tokens": counts["accepted"],
            "rejected_prediction_tokens": counts["verified"] - counts["accepted"],
        }
        assert details["accepted_prediction_tokens"] > 10
        assert details["rejected_prediction_tokens"] > 0
        assert found["speculation"]["steps"] < plain["speculation"]["steps"] - 10
        assert "completion_tokens_details" not in plain["usage"]

    def test_a_prediction_of_something_else_changes_no_text(self, run, tmp_path):
        other = tmp_path / "other.txt"
        other.write_text("Dear aunt, the weather is fine. " * 9)
        plain = run(*TOY, "--json").json
        found = run(*TOY, "--json", "--prediction", str(other)).json
        assert found["token_ids"] == plain["token_ids"]
        assert found["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] < 10

    def test_the_closing_line_counts_them(self, run, file):
        line = run(*TOY, "--prediction", str(file)).err
        accepted, rejected = map(int, re.findall(r"prediction: accepted (\d+), rejected (\d+)", line)[0])
        assert accepted > 10
        assert rejected > 0
        assert "prediction" not in run(*TOY).err

    def test_it_may_be_the_only_drafter(self, run, file):
        found = run(*TOY, "--json", "--prediction", str(file), "--drafters", "prediction", "--show-draft").json
        assert set(found["sources"]) == {"prediction", None}


def test_bytes_that_are_no_text_are_refused(refused, tmp_path):
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"ab\xff")
    line = refused(*TOY, "--prediction", str(broken))
    assert "broken.txt' is not UTF-8 text (byte 0xff at 2)" in line


def test_one_longer_than_the_context_is_refused(refused, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text("a" * 65)
    line = refused(*TOY, "--context", "64", "--prediction", str(long))
    assert "the prediction has 65 tokens; an answer has at most 64" in line


def test_tokens_or_text_in_every_call(llm: LLM, answer: tuple[int, ...]) -> None:
    for given in (answer, list(answer), llm.tokenizer.decode(answer[:3]) + "?"):
        found = [
            llm.generate("abc", SAMPLING, ALWAYS, given)[0],
            llm.run([llm.request("abc", SAMPLING, ALWAYS, given, tenant="me")])[0],
        ]
        stream = llm.stream("abc", SAMPLING, ALWAYS, prediction=given)
        list(stream)
        for done in (*found, stream.completion):
            assert done.token_ids == answer
            assert done.speculation.by_drafter["prediction"].drafted
    assert found[0].speculation.steps > 50
    [done] = llm.generate("abc", SAMPLING, ALWAYS, answer)
    assert counted(done.speculation) == {"accepted_prediction_tokens": 52, "rejected_prediction_tokens": 0}
    assert done.speculation.steps == 8, "the first token, then at most 8 drafted and one of the target's own a step"


def test_in_a_conversation(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    plain = llm.chat(messages, SAMPLING)
    done = llm.chat(messages, SAMPLING, ALWAYS, plain.token_ids)
    assert done.token_ids == plain.token_ids
    assert done.speculation.steps == 8


def test_it_is_tokenised_without_special_tokens(llm: LLM) -> None:
    request = llm.request("<user>", SAMPLING, ALWAYS, "<user>", tenant="me")
    assert request.prompt == tuple(llm.tokenizer.encode("<user>", allow_special=True))
    assert request.prediction == tuple(llm.tokenizer.encode("<user>"))
    assert len(request.prediction) == 6
    assert request.tenant == "me"
    assert llm.request("a", SAMPLING, ALWAYS).prediction == llm.request("a", SAMPLING, ALWAYS, "").prediction == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "off"}, "the request's speculation is off"),
        ({"max_draft": 0}, "the request's speculation is off"),
        ({"drafters": ("lookup",)}, "the request's drafters are lookup"),
    ],
)
def test_a_request_that_would_not_read_it_is_refused(llm: LLM, change: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        llm.generate("abc", SAMPLING, replace(ALWAYS, **change), "text")
    assert llm.engine.idle


@pytest.mark.parametrize("drafters", [("lookup",), ()])
def test_an_engine_that_would_not_read_it_refuses(drafters: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match=f"the drafters are {'lookup' if drafters else 'none'}; leave"):
        LLM("toy:chaos", drafters=drafters).generate("abc", SAMPLING, prediction="text")


@pytest.mark.parametrize("token", [-1, 259])
def test_tokens_that_do_not_exist_are_refused(llm: LLM, token: int) -> None:
    with pytest.raises(RequestError, match=f"the prediction has token id {token}; this model's ids are 0 to 258"):
        llm.generate("abc", SAMPLING, prediction=[1, token])


def test_counting() -> None:
    assert set(counted(SpeculationReport()).values()) == {0}
    report = SpeculationReport(by_drafter={"prediction": DrafterCounts(9, 7, 5), "lookup": DrafterCounts(3, 3, 3)})
    assert counted(report) == {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 2}
