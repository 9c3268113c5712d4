"""Modes that take turns: who answers what, in which order, at most so many at a time."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams
from paceline.bench import trials
from paceline.bench.modes import AUTO, PLAIN, Modes, listed
from paceline.bench.trials import Ask, grouped, interleave, take

SAMPLING = SamplingParams(max_tokens=24, ignore_eos=True, seed=3)


@pytest.fixture(scope="module")
def modes():
    return Modes(LLM("toy:ngram", draft="toy:ngram-draft", keep_costs=False, sequences=4), SAMPLING)


def asks(count, category="a", sampling=SAMPLING):
    return [Ask(category, (97 + i, 98, 99), sampling) for i in range(count)]


def silent(what, done, total):
    assert what and 0 <= done < total


def test_a_turn_answers_every_prompt_in_their_order(modes):
    turn = take(modes, AUTO, asks(5), 2)
    assert [done.prompt_tokens for done in turn.done] == [3] * 5 and turn.numbers == (0, 1, 2, 3, 4)
    plain = take(modes, PLAIN, asks(5), 1)
    assert [done.token_ids for done in turn.done] == [done.token_ids for done in plain.done]
    assert turn.tokens == 5 * 24 and modes.llm.engine.idle


def test_no_more_run_than_may(modes):
    assert max(step.sequences for step in take(modes, PLAIN, asks(4), 3).steps) == 3
    assert max(step.sequences for step in take(modes, PLAIN, asks(4), 1).steps) == 1


def test_steps_are_all_that_the_turn_took(modes):
    turn = take(modes, AUTO, asks(3), 3)
    assert sum(step.tokens for step in turn.steps) == turn.tokens
    assert turn.seconds == pytest.approx(turn.steps[-1].at, rel=0.2, abs=2e-3)
    assert 0 < turn.decode_s < turn.seconds and turn.decode_tokens <= turn.tokens
    assert turn.a_token_s == turn.decode_s / turn.decode_tokens


def test_prompts_that_come_later_are_not_asked_before(modes):
    turn = take(modes, PLAIN, asks(2), 2, starts=(0.0, 0.3))
    assert turn.steps[-1].at > 0.3 and turn.seconds < turn.steps[-1].at, "idle time is nobody's"
    assert max(turn.waited_s) < 0.3


def test_who_waits_in_line_is_told_so(modes):
    turn = take(modes, PLAIN, asks(2), 1, starts=(0.0, 0.0))
    assert turn.waited_s[1] >= turn.done[0].timings.decode_ms / 1e3


def test_turns_are_mirrored_and_who_begins_changes(modes):
    used = listed("plain,off,auto")
    order = [turn.mode for turn in interleave(modes, asks(2), used, 1, 1, silent)]
    assert order == ["plain", "off", "auto", "auto", "off", "plain", "off", "auto", "plain", "plain", "auto", "off"]


def test_an_error_leaves_the_engine_idle(modes, monkeypatch):
    def fail(self, step):
        raise RuntimeError("told to")

    monkeypatch.setattr(trials._Run, "_stepped", fail)
    with pytest.raises(RuntimeError, match="told to"):
        take(modes, AUTO, asks(3), 2)
    monkeypatch.undo()
    assert modes.llm.engine.idle and modes.llm.engine.watch is None
    modes.llm.engine.pool.check()
    assert take(modes, AUTO, asks(1), 1).tokens == 24


@pytest.mark.parametrize(
    ("categories", "batch", "expected"),
    [
        ("aab", 1, [(0,), (1,), (2,)]),
        ("aabb", 2, [(0, 1), (0, 1), (2, 3), (2, 3)]),
        ("aaaaa", 2, [(0, 1), (2, 3), (4, 0)]),
        ("a", 4, [(0, 0, 0, 0), (0, 0, 0, 0)]),
    ],
)
def test_groups_fill_a_batch_with_one_category(categories, batch, expected):
    assert grouped(categories, batch) == expected
