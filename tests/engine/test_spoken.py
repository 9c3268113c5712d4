"""Counts of what was said: which requests count, what is kept, and what it does to drafts, which is never the text."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM, Options, SamplingParams, SpeculationParams
from paceline.core.types import Request
from paceline.engine import keeper as keeper_module
from paceline.engine import spoken as module
from paceline.engine.build import build, choose
from paceline.engine.engine import Engine
from paceline.engine.keeper import PERIOD_S, Keeper
from paceline.engine.spoken import MOST_SAID, MOST_TOKENS, Spoken, spelling
from paceline.governor import saved
from paceline.models import toy
from tests import tiny
from tests.core.strategies import examples
from tests.models.tongues import bridge, tongue

IDENTITY = {"model": "any"}
SIZE = 40
ASKED = Request((1, 2))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def spoken(shared: bool = False, size: int = SIZE) -> Spoken:
    return Spoken(IDENTITY, size, shared)


def counted(found: Spoken) -> dict[int, int]:
    return {token: int(found.counts[token]) for token in np.flatnonzero(found.counts).tolist()}


def kept(found: Spoken) -> Spoken:
    """What the next start would know."""
    saved.write(found.path, found.text())
    return spoken(size=len(found.counts))


# What is counted.


def test_every_token_of_an_ended_request_counts() -> None:
    found = spoken()
    found.hear(ASKED, [1, 2, 7, 7, 39])
    found.hear(ASKED, [7])
    assert counted(found) == {1: 1, 2: 1, 7: 3, 39: 1}


@pytest.mark.parametrize(
    "wish",
    [SpeculationParams(mode="off"), SpeculationParams(max_draft=0), SpeculationParams(drafters=("suffix", "lookup"))],
)
def test_requests_that_the_draft_model_has_no_part_in_teach_it_nothing(wish: SpeculationParams) -> None:
    found = spoken(shared=True)
    found.hear(replace(ASKED, speculation=wish), [1, 2, 3])
    assert counted(found) == {}
    found.hear(replace(ASKED, speculation=SpeculationParams(drafters=("model",))), [3])
    assert counted(found) == {3: 1}


def test_a_named_tenants_words_count_only_where_tenants_share() -> None:
    apart, together = spoken(), spoken(shared=True)
    for found in (apart, together):
        found.hear(replace(ASKED, tenant="a"), [5])
        found.hear(ASKED, [6])
    assert counted(apart) == {6: 1}
    assert counted(together) == {5: 1, 6: 1}


@examples(60)
@given(st.lists(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=30), max_size=20))
def test_counts_are_bounded_and_forget_the_oldest_first(texts: list[list[int]]) -> None:
    """Against a dictionary that is halved in the same moments."""
    found, plain = spoken(), Counter[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_SAID", 50)
        patch.setattr(module, "MOST_TOKENS", 12)
        for text in texts:
            found.hear(ASKED, text)
            plain.update(text)
            while plain.total() > 50 or len(plain) > 12:
                plain = Counter({token: n // 2 for token, n in plain.items() if n > 1})
    assert counted(found) == dict(plain)


def test_what_is_said_now_comes_before_what_was_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SAID", 1000)
    found = spoken()
    found.hear(ASKED, [3] * 900)
    for _ in range(20):
        found.hear(ASKED, [4] * 100)
    assert found.counts[4] > 10 * found.counts[3]


# What is kept.


@examples(40)
@given(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=60), st.randoms())
def test_counts_come_back_and_tell_nothing_of_the_order(tokens: list[int], dice: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "restored", lambda *_: saved.Refusal.ABSENT)  # begin with none
        found, other = spoken(), spoken()
    found.hear(ASKED, tokens)
    dice.shuffle(tokens)
    for token in tokens:
        other.hear(ASKED, [token])
    assert found.text() == other.text()
    assert counted(kept(found)) == dict(Counter(tokens))


def test_the_file_holds_counts_and_nothing_else() -> None:
    found = spoken()
    found.hear(ASKED, [9, 4, 9, 30])
    kept(found)
    content = json.loads(found.path.read_bytes())
    assert content.pop("at") > 0
    assert content == {"format": saved.FORMAT, "identity": IDENTITY, "said": {"1": [4, 30], "2": [9]}}
    assert found.path.stat().st_mode & 0o077 == 0, "nobody else may read it"


def test_the_most_that_is_counted_fits_a_file() -> None:
    """With as many different counts as there can be, and ids of many digits."""
    found = spoken(size=1 << 18)
    found.counts[-MOST_TOKENS:] = 1
    found.counts[-2800:] = np.arange(1, 2801)
    assert MOST_SAID - 2900 * 100 < found.counts.sum() <= MOST_SAID
    again = kept(found)
    assert found.path.stat().st_size < saved.MOST_BYTES
    np.testing.assert_array_equal(again.counts, found.counts)


def test_other_models_counts_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    found = spoken()
    found.hear(ASKED, [1])
    kept(found)
    other = Spoken({"model": "other"}, SIZE)
    assert other.path != found.path
    assert counted(other) == {} and caplog.text == ""
    found.path.rename(other.path)
    assert counted(Spoken({"model": "other"}, SIZE)) == {}
    assert "other_identity" in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        {"1": [SIZE]},
        {"1": [-1]},
        {"1": [True]},
        {"1": [5, True]},
        {"1": [1.0]},
        {"1": ["1"]},
        {"1": [None]},
        {"1": 5},
        {"0": [1]},
        {"-3": [1]},
        {"x": [1]},
        {"9" * 200: [1]},
        {str(MOST_SAID + 1): [1]},
        {str(MOST_SAID): [1, 2]},
        {"1": [1] * 100_000},
        [[1]],
        None,
    ],
)
def test_odd_counts_are_none(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = spoken()
    saved.write(found.path, json.dumps({"format": saved.FORMAT, "identity": IDENTITY, "said": said}))
    assert counted(spoken()) == {}
    [record] = caplog.records
    assert "counts of tokens are not used (malformed)" in record.getMessage()


def test_more_tokens_than_are_ever_kept_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spoken()
    found.hear(ASKED, range(5))
    assert len(counted(kept(found))) == 5
    monkeypatch.setattr(module, "MOST_TOKENS", 4)
    assert counted(spoken()) == {}


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04", b"[" * 10_000, b" " * (saved.MOST_BYTES + 1)])
def test_a_damaged_file_is_none_and_is_replaced(content: bytes) -> None:
    path = spoken().path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = spoken()
    assert counted(found) == {}
    found.hear(ASKED, [8])
    assert counted(kept(found)) == {8: 1}


# When it is kept.


@pytest.fixture
def engine() -> Engine:
    """Of a formula, whose tokens are counted because a test says so."""
    made = build(choose(Options("toy:chaos", sequences=2)))
    made.spoken = spoken(size=made.target.info.vocab_size)
    return made


def answer(engine: Engine, *prompt: int, max_tokens: int = 8) -> list[int]:
    number = engine.add(Request(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    while not engine.idle:
        engine.step()
    return [*prompt, *engine.completion(number).token_ids]


def test_requests_count_when_they_end_however_they_do(engine: Engine) -> None:
    assert engine.spoken is not None
    said = Counter(answer(engine, 1, 2, 3))
    running = engine.add(Request((250, 251), SamplingParams(max_tokens=50, ignore_eos=True)))
    engine.step()
    assert counted(engine.spoken) == said, "it runs"
    engine.abort(running)
    said.update([250, 251, *engine.completion(running).token_ids])
    assert counted(engine.spoken) == said


def test_the_keeper_writes_counts_when_it_writes_costs(engine: Engine, cache: Path) -> None:
    now = [0.0]
    keeper = Keeper({"costs": "of this"}, engine, clock=lambda: now[0])
    said = Counter(answer(engine, 1, 2, 3))
    keeper.rest()
    assert not cache.exists(), "too early"
    now[0] += PERIOD_S
    keeper.rest()
    assert {path.name for path in cache.iterdir()} == {"costs", "spoken"}
    assert counted(spoken(size=300)) == said
    said.update(answer(engine, 4))
    keeper.close()
    assert counted(spoken(size=300)) == said


def test_where_nothing_was_said_nothing_is_written(engine: Engine, cache: Path) -> None:
    Keeper(None, engine).close()
    assert not cache.exists()


def test_a_disk_that_takes_nothing_is_one_line(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    now = [0.0]
    keeper = Keeper(None, engine, clock=lambda: now[0])
    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(3):
        answer(engine, 1, 2, 3)
        now[0] += PERIOD_S
        keeper.rest()
    keeper.close()
    [record] = [record for record in caplog.records if record.name == keeper_module.__name__]
    assert record.levelno == logging.WARNING
    assert "counts of tokens cannot be kept" in record.getMessage()


# Whole engines, on tiny checkpoints.

RARE = 254
"""A byte that no text has: of 259 tokens the head is cut to 256, the lowest and the special ones."""
ALWAYS, OFF = SpeculationParams(mode="always", max_draft=4), SpeculationParams(mode="off")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    tiny.make("llama", path)
    toy.tokenizer()._backend.save(str(path / "tokenizer.json"))
    return str(path)


@pytest.fixture
def options(model: str) -> Options:
    """A model that drafts for itself, with a shorter head."""
    return Options(
        model, draft=model, drafters=("model",), weights="fp32", draft_weights="fp32", context=128, sequences=2,
        draft_vocabulary=256,
    )  # fmt: skip


def start(options: Options) -> LLM:
    return LLM.from_chosen(choose(options))


def named(llm: LLM) -> set[int]:
    """What the draft model can name."""
    drafter: Any = llm.engine.desk.drafters["model"]
    return set(drafter._columns.tolist())


def rare(speculation: SpeculationParams, temperature: float = 0.0) -> tuple[Any, ...]:
    """A request that says the rare token often."""
    sampling = SamplingParams(
        max_tokens=24, temperature=temperature, seed=3, ignore_eos=True, logit_bias={RARE: 8.0 if temperature else 30.0}
    )
    return (5, 6, 7), sampling, speculation


def end(llm: LLM) -> None:
    llm._keeper.close()


def test_a_token_once_said_is_drafted_at_the_next_start(options: Options) -> None:
    first = start(options)
    assert RARE not in named(first) and len(named(first)) == 256
    [done] = first.generate(*rare(ALWAYS))
    assert RARE in done.token_ids and done.speculation.accepted == 0, "it cannot be drafted yet"
    end(first)
    second = start(options)
    assert RARE in named(second) and len(named(second)) == 256
    [again] = second.generate(*rare(ALWAYS))
    assert again.token_ids == done.token_ids
    assert again.speculation.accepted > 12
    assert second.chosen.identity == first.chosen.identity, "what passes cost does not depend on which tokens"


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.2])
def test_the_text_is_that_of_plain_decoding_whatever_was_counted(options: Options, temperature: float) -> None:
    texts, vocabularies = [], []
    for _ in range(2):
        llm = start(options)
        vocabularies.append(named(llm))
        texts += [llm.generate(*rare(wish, temperature))[0].token_ids for wish in (ALWAYS, OFF)]
        end(llm)
    assert vocabularies[0] != vocabularies[1]
    assert len(set(texts)) == 1


def test_nothing_is_read_or_written_on_request(options: Options, cache: Path) -> None:
    first = start(options)
    first.generate(*rare(ALWAYS))
    end(first)
    [file] = (cache / "spoken").iterdir()
    before = file.read_bytes()
    other = start(replace(options, keep_costs=False))
    assert RARE not in named(other) and other.engine.spoken is None
    other.generate(*rare(ALWAYS))
    end(other)
    assert [path.read_bytes() for path in (cache / "spoken").iterdir()] == [before]


def test_counts_are_kept_only_where_a_head_is_cut_by_them(options: Options) -> None:
    chosen = choose(options)
    identity = chosen.spoken
    assert identity is not None and set(identity) == {"model", "tokenizer"}
    for other in (
        replace(options, keep_costs=False),
        replace(options, draft=None, drafters=None),
        replace(options, drafters=("lookup",)),
        replace(options, speculate=False),
        replace(options, draft_vocabulary=None),
        replace(options, draft_vocabulary=259),
        Options("toy:llama", draft="toy:llama-draft", draft_vocabulary=256),
    ):
        assert choose(other).spoken is None, other
    for drafter in ("narrow", "plain"):
        assert replace(chosen, bridge=bridge("broad", drafter)).spoken is None, "its ids are not the target's"
    assert choose(replace(options, draft_vocabulary=257)).spoken == identity, "the target's, whatever reads them"


def test_tokenizers_have_spellings_of_their_own() -> None:
    names = ("broad", "narrow", "plain", "pieces")
    assert len({spelling(tongue(name)) for name in names}) == len(names)
    assert spelling(toy.tokenizer()) == spelling(toy.tokenizer())
