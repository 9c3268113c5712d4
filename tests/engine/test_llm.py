"""What users import, on toys: the same text with everything that can be switched on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from paceline import LLM, Completion, Options, PacelineError, SamplingParams, SpeculationParams
from paceline.engine.build import choose
from paceline.errors import OptionError, RequestError

OFF = SpeculationParams(mode="off")
ALWAYS = SpeculationParams(mode="always", max_draft=6)
PROMPTS = ["the cat and the hat and the cat", "abc abc abc ab", "?"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("packed")))
        yield


def ids(found: list[Completion]) -> list[tuple[int, ...]]:
    return [done.token_ids for done in found]


@pytest.mark.parametrize("name", ["table", "ngram", "chaos", "llama", "qwen", "gemma"])
def test_every_toy_says_the_same_with_drafts_and_without(name: str) -> None:
    llm = LLM(f"toy:{name}", draft=f"toy:{name}-draft")
    accepted = 0
    for temperature in (0.0, 0.9):
        sampling = SamplingParams(max_tokens=32, temperature=temperature, seed=4, ignore_eos=True)
        plain = [llm.generate(prompt, sampling, OFF)[0] for prompt in PROMPTS]
        for wish in (ALWAYS, SpeculationParams(), SpeculationParams(drafters=("model",), mode="always", max_draft=3)):
            found = llm.generate(PROMPTS, sampling, wish)
            assert ids(found) == ids(plain)
            assert [done.text for done in found] == [done.text for done in plain]
            accepted += sum(done.speculation.accepted for done in found)
    assert accepted > 0


@pytest.mark.parametrize(
    "change", [{"numerics": "fast"}, {"prefix_cache": False}, {"sequences": 1}, {"speculate": False}]
)
def test_options_change_no_text(change: dict[str, Any]) -> None:
    sampling = SamplingParams(max_tokens=24, temperature=0.7, seed=1)
    plain = LLM("toy:ngram").generate(PROMPTS, sampling, OFF)
    llm = LLM("toy:ngram", draft="toy:ngram-draft", **change)
    assert ids(llm.generate(PROMPTS, sampling, ALWAYS)) == ids(plain)
    assert llm.plain_tokens_per_s is None or llm.plain_tokens_per_s > 0


def test_the_governor_at_work_over_many_requests() -> None:
    llm = LLM("toy:ngram", draft="toy:ngram-draft", sequences=4)
    for seed, wish in enumerate(itertools.islice(itertools.cycle([SpeculationParams(), ALWAYS]), 6)):
        sampling = SamplingParams(max_tokens=40, temperature=0.5, seed=seed)
        assert ids(llm.generate(PROMPTS * 2, sampling, wish)) == ids(llm.generate(PROMPTS * 2, sampling, OFF))


def test_a_stream_is_its_completion() -> None:
    llm = LLM("toy:chaos")
    sampling = SamplingParams(max_tokens=30, temperature=1.0, seed=2, logprobs=1)
    stream = llm.stream("hello", sampling)
    with pytest.raises(PacelineError, match="has not ended"):
        _ = stream.completion
    events = list(stream)
    done = stream.completion
    [whole] = llm.generate("hello", sampling)
    assert "".join(event.text for event in events) == done.text == whole.text
    assert tuple(itertools.chain(*(event.token_ids for event in events))) == done.token_ids == whole.token_ids
    assert tuple(itertools.chain(*(event.logprobs for event in events))) == done.logprobs == whole.logprobs
    assert list(stream) == []
    stream.close()
    assert stream.completion is done


def test_a_stream_that_is_left_ends_its_request() -> None:
    llm = LLM("toy:chaos")
    stream = llm.stream("hello", SamplingParams(max_tokens=50, ignore_eos=True))
    for event in stream:
        if event.token_ids:
            break
    stream.close()
    assert stream.completion.finish_reason == "abort"
    assert 1 <= len(stream.completion.token_ids) < 50
    assert llm.engine.idle
    assert llm.engine.pool.available == llm.engine.pool.num_blocks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("device lost")])
def test_an_interrupted_run_leaves_nothing_behind(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("toy:chaos")
    expected = llm.generate(PROMPTS, SamplingParams(max_tokens=20))
    with monkeypatch.context() as patch:
        forward, calls = llm.engine.target.forward, itertools.count()

        def failing(*given: Any) -> Any:
            if next(calls) == 5:
                raise error
            return forward(*given)

        patch.setattr(llm.engine.target, "forward", failing)
        with pytest.raises(type(error)):
            llm.generate(PROMPTS, SamplingParams(max_tokens=20))
    assert llm.engine.idle
    assert ids(llm.generate(PROMPTS, SamplingParams(max_tokens=20))) == ids(expected)


def test_a_prompt_that_cannot_be_served_is_an_error() -> None:
    llm = LLM("toy:chaos")
    with pytest.raises(RequestError, match="empty"):
        llm.generate("")
    assert llm.engine.idle


def test_prompts_are_texts_or_tokens_one_or_many() -> None:
    llm = LLM("toy:ngram")
    sampling = SamplingParams(max_tokens=5)
    tokens = llm.tokenizer.encode("ab")
    found = [llm.generate(given, sampling) for given in ("ab", tokens, ["ab"], [tokens], ("ab", tokens))]
    assert [len(done) for done in found] == [1, 1, 1, 1, 2]
    assert len({done.token_ids for each in found for done in each}) == 1
    assert llm.generate([], sampling) == []


def test_chatting_and_special_tokens() -> None:
    llm = LLM("toy:ngram")
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "?"},
    ]
    assert llm.chat_prompt(messages) == llm.tokenizer.encode("<user>hi<bot>ho<user>?<bot>", allow_special=True)
    done = llm.chat(messages, SamplingParams(max_tokens=4))
    assert done.prompt_tokens == 9
    [raw] = llm.generate("<user>hi<bot>ho<user>?<bot>", SamplingParams(max_tokens=4))
    assert raw.token_ids == done.token_ids


def test_bad_words_are_banned_in_the_middle_of_a_text_too() -> None:
    llm = LLM("toy:table")
    free = llm.generate("a", SamplingParams(max_tokens=40, temperature=1.5, seed=3))[0]
    word = next(a + b for a, b in itertools.pairwise(free.text) if (a + b).isascii())
    sampling = SamplingParams(max_tokens=40, temperature=1.5, seed=3, bad_words=(word, word))
    request = llm.request("a", sampling, ALWAYS)
    assert request.bad_token_ids == (tuple(llm.tokenizer.encode(word)), tuple(llm.tokenizer.encode(f" {word}")))
    for wish in (OFF, ALWAYS):
        [done] = llm.generate("a", sampling, wish)
        assert word not in done.text
        assert done.token_ids == llm.generate("a", sampling, OFF)[0].token_ids


def test_making_one() -> None:
    with pytest.raises(OptionError, match="LLM has no option 'drafts'; allowed: draft, "):
        LLM("toy:chaos", drafts=3)
    options = Options("toy:chaos", max_draft=3)
    seen: list[str] = []
    llm = LLM.from_options(options, lambda what, done, total: seen.append(what))
    other = LLM.from_chosen(choose(options))
    sampling = SamplingParams(max_tokens=6)
    assert ids(llm.generate("a", sampling)) == ids(other.generate("a", sampling))
    assert llm.chosen.options is options
    assert "measuring the cost curve" in seen


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_no_prompt_runs_when_one_cannot(bad: int) -> None:
    llm = LLM("toy:chaos")
    prompts = ["a", "b", "c"]
    prompts[bad] = ""
    with pytest.raises(RequestError, match="empty"):
        llm.generate(prompts)
    assert llm.engine.idle


def test_streams_may_run_side_by_side_and_beside_a_batch() -> None:
    llm = LLM("toy:chaos")
    sampling = [SamplingParams(max_tokens=n, seed=n, temperature=1.0, ignore_eos=True) for n in (20, 5, 9)]
    expected = [llm.generate("ab", each)[0].token_ids for each in sampling]
    streams = [llm.stream("ab", each) for each in sampling]
    first = iter(streams[0])
    seen = [next(first), next(first)]
    [batch] = llm.generate("ab", sampling[1])
    assert batch.token_ids == expected[1]
    for stream in streams[1:]:
        list(stream)
    seen += list(first)
    assert [stream.completion.token_ids for stream in streams] == expected
    assert tuple(itertools.chain(*(event.token_ids for event in seen))) == expected[0]
    assert llm.engine.idle


def test_a_stream_that_was_left_does_not_disturb_the_next_request() -> None:
    llm = LLM("toy:chaos")
    for left_after in (0, 1, 3):
        stream = llm.stream("hello", SamplingParams(max_tokens=50, ignore_eos=True))
        for _ in zip(range(left_after), stream, strict=False):
            pass
        stream.close()
        assert stream.completion.finish_reason == "abort"
        assert llm.engine.idle
        assert len(llm.generate("ab", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4
