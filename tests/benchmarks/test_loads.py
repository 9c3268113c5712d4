"""Books of the batch benchmark: windows, plain decoding's pace, texts; and the watch under it all."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams
from tests.benchmarks.scripts import PAIR, found, script

batch, watch, modes = script("batch"), script("watch"), script("modes")


def step(sequences=1, seconds=0.25, committed=None, verified=0, prefill=0):
    """A step of so many sequences; all but the first commit one token."""
    first = (committed or sequences) - (sequences - 1)
    counts = [(verified, first), *[(0, 1)] * (sequences - 1)]
    parts = tuple(watch.Part(i, 0, v, v, c) for i, (v, c) in enumerate(counts))
    return watch.Step(seconds, 0.0, prefill, parts)


def test_windows_are_of_a_second_of_decoding_and_hold_every_step_once():
    run = [step(), step(prefill=9), *[step()] * 7, step(seconds=1.5)]
    cut = batch.windows(run)
    assert [sum(s.seconds for s in window) for window in cut] == [1.0, 1.0, 1.5]
    assert [s for window in cut for s in window] == batch.decoding([run])
    assert len(batch.windows([step()] * 7)) == 1, "what is left at the end is no window"


def test_a_window_is_held_against_plain_decoding_of_as_many():
    plain = batch.plain_paces([[step(1, 0.5), step(1, 0.5), step(4, 1.0)]])
    assert plain == {1: 2.0, 4: 4.0}
    assert batch.against([step(1, 0.5), step(4, 0.5, committed=6)], plain) == [pytest.approx(7 / 3)]
    assert batch.against([step(1, 0.5)] * 2, plain) == [pytest.approx(1.0)], "plain against itself"
    assert batch.against([step(3, 1.0)], plain) == [], "nothing is known of three"


def test_a_ratio_and_its_interval():
    fast, slow = [[step(committed=2)] * 40], [[step()] * 40]
    assert batch.ratio(fast, slow) == pytest.approx({"ratio": 2.0, "low": 2.0, "high": 2.0})
    mixed = [[*[step(committed=2)] * 20, *[step()] * 20]]
    mid = batch.ratio(mixed, slow)
    assert mid["low"] < 1.45 and mid["high"] > 1.55 and mid["ratio"] == pytest.approx(1.5)


def test_the_best_is_never_auto_and_the_share_is_of_all_rows():
    runs = {
        "plain": [[step()] * 8],
        "auto": [[step(committed=3, verified=3)] * 8],
        "fixed:2": [[step(committed=2, verified=2)] * 8],
    }
    point = batch.point(1, runs, {1: 4.0})
    assert point["best"] == "fixed:2"
    assert point["auto_of_best"]["ratio"] == pytest.approx(1.5)
    assert point["drafted_share"] == pytest.approx(3 / 4)
    assert point["windows"]["auto"]["least"] == pytest.approx(3)
    assert point["windows"]["plain"]["below"] == 0


def test_texts_are_compared_as_far_as_they_go():
    texts = batch.Texts()
    texts.add({0: [(1, 2), (1, 2, 3), (1,)], 1: [(5,)]})
    assert (texts.compared, texts.equal) == (4, 4)
    texts.add({0: [(1, 2, 4)]})
    assert (texts.compared, texts.equal) == (5, 4)


def test_the_watch_sees_what_the_completion_counts():
    llm = LLM("toy:ngram", draft="toy:ngram-draft", keep_costs=False)
    seen = watch.Watch(llm.engine)
    mode = modes.Mode.parse("fixed:4")
    done = llm.generate(["abc", "abd"], SamplingParams(max_tokens=30), mode.params)
    steps = seen.take()
    for completion in done:
        parts = [p for s in steps for p in s.parts if p.request == completion.request_id]
        report = completion.speculation
        assert sum(p.committed for p in parts) == len(completion.token_ids)
        assert sum(p.verified for p in parts) >= report.verified > 0
        assert len(parts) == report.steps
        at = 0
        for part in parts:
            assert part.position == at
            at += part.committed
    assert seen.take() == []
    assert seen.costs is llm.engine.governor.costs, "all else is the governor's"


def test_steady_and_ramp_on_a_toy(tmp_path):
    shown, result = found(
        "batch",
        tmp_path / "out.json",
        *PAIR,
        *("--batches", "1,2,4", "--modes", "plain,auto,fixed:2", "--seconds", "0.2", "--settle", "0.05"),
        *("--rounds", 1, "--context", 400, "--max-tokens", 24, "--plot", tmp_path / "batch.svg"),
    )
    assert [p["batch"] for p in result["points"]] == [1, 2, 4]
    assert result["text"]["compared"] == result["text"]["equal"] > 10
    assert all(p["tokens_per_s"].keys() == {"plain", "auto", "fixed:2"} for p in result["points"])
    assert result["ramp"].keys() == {"plain", "auto"}
    assert "crossover" in shown
    assert (tmp_path / "batch.svg").read_text().startswith("<?xml")
