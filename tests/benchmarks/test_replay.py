"""Replayed completions against a walk by hand, and what the recordings that ship show."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM
from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Seen, SequenceView
from paceline.errors import OptionError
from tests.core.strategies import drafts, examples

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDED = BENCHMARKS / "recorded"


@pytest.fixture(scope="module")
def replay() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("replay")


class Scripted:
    """Drafts what it is told, in turn, and keeps what it is shown."""

    name = "scripted"

    def __init__(self, *moves: Draft) -> None:
        self._moves, self.asked = moves, 0
        self.shown: list[tuple[tuple[int, ...], list[dict[int, float]], tuple[int, ...], int]] = []

    def begin(self, seq: SequenceView) -> None:
        pass

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        self.asked += 1
        return [self._moves[(self.asked - 1) % len(self._moves)]]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        logits = [row.whole() for row in seen.rows]
        rows = [{int(t): float(row[t]) for t in np.flatnonzero(np.isfinite(row))} for row in logits]
        self.shown.append((tuple(seen.tokens), rows, tuple(seq.tokens), seen.begin))

    def end(self, seq: SequenceView) -> None:
        pass


def walk(output: list[int], moves: Sequence[Draft]) -> tuple[int, int]:
    """Steps and accepted nodes, by hand."""
    steps = accepted = said = 0
    while said < len(output):
        draft, node = moves[steps % len(moves)], ROOT
        steps += 1
        while said < len(output) and (node, output[said]) in tree.children(draft):
            node = tree.children(draft)[node, output[said]]
            said += 1
            accepted += 1
        said += 1
    return steps, accepted


@given(st.data())
@examples(100)
def test_drafts_are_walked_as_verification_walks_them(replay: Any, data: st.DataObject) -> None:
    output = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    moves = data.draw(st.lists(drafts(max_nodes=6), min_size=1, max_size=4))
    trees = data.draw(st.booleans())
    drafter = Scripted(*moves)
    recording = replay.Recording("test", (7, 8), tuple(output))
    counts = replay.Replay({"scripted": drafter}, 8, trees, 9).run(recording)
    verified = moves if trees else [tree.best_chain(draft) for draft in moves]
    assert (counts.steps, counts.accepted) == walk(output, verified)
    assert counts.committed == len(output)
    assert counts.drafted == sum(len(moves[i % len(moves)]) for i in range(counts.steps))
    assert counts.verified == sum(len(verified[i % len(moves)]) for i in range(counts.steps))
    said = [7, 8]
    for tokens, rows, now, begin in drafter.shown:
        assert list(tokens) == [7, 8, *output][begin : begin + len(tokens)]
        assert begin == len(said) - 1
        said += [token for row in rows for token in row]
        assert list(now) == said == [7, 8, *output[: len(said) - 2]]
    assert said == [7, 8, *output]


def test_recorded_rows_are_shown_and_leave_no_trace(replay: Any) -> None:
    top = tuple(((token, -0.5), (token + 3, -1.5)) for token in (1, 2, 1, 0))
    drafter = Scripted(Draft.chain([1, 2], "scripted"), EMPTY)
    replay.Replay({"scripted": drafter}, 8, True, 9).run(replay.Recording("test", (5,), (1, 2, 1, 0), top=top))
    assert [rows for _, rows, _, _ in drafter.shown] == [
        [{1: -0.5, 4: -1.5}, {2: -0.5, 5: -1.5}, {1: -0.5, 4: -1.5}],
        [{0: -0.5, 3: -1.5}],
    ]


def test_several_drafters_fill_one_tree(replay: Any) -> None:
    short, long = Scripted(Draft.chain([1], "short", [0.9])), Scripted(Draft.chain([1, 2, 0], "long", [0.5] * 3))
    counts = replay.Replay({"short": short, "long": long}, 2, True, 4).run(replay.Recording("test", (3,), (1, 2, 3)))
    assert (counts.steps, counts.accepted, counts.verified) == (1, 2, 2)


LINE = {"category": "a", "prompt_tokens": [1, 2], "output_tokens": [3, 4]}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        json.dumps(LINE | {"output_tokens": []}),
        json.dumps(LINE | {"prompt_tokens": []}),
        json.dumps(LINE | {"prompt_tokens": [-1]}),
        json.dumps(LINE | {"output_tokens": ["x"]}),
        json.dumps(LINE | {"top": [[[3, 0.0]]]}),
        json.dumps(LINE | {"top": [[[3]], [[4]]]}),
    ],
)
def test_what_is_no_recording_is_named(replay: Any, line: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"file.jsonl:3 is not a recording .* make one with --record$"):
        replay.read([path])
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(OptionError, match="no completion"):
        replay.read([path])


def test_a_recording_is_made_and_replayed(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands that the script's first lines give."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    prompts, made, result = tmp_path / "prompts.jsonl", tmp_path / "out" / "made.jsonl", tmp_path / "result.json"
    rows = [{"category": name, "prompt": text} for name, text in (("a", "abab"), ("b", "cats"), ("b", "cats and"))]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(*given: object) -> str:
        monkeypatch.setattr(sys, "argv", ["replay.py", *map(str, given)])
        replay.main()
        return capsys.readouterr().out

    run("--record", made, "--model", "toy:ngram", "--prompts", prompts, "--max-tokens", 24)
    recordings = replay.read([made])
    llm = LLM("toy:ngram")
    for row, recording in zip(rows, recordings, strict=True):
        assert recording.category == row["category"]
        assert recording.prompt == tuple(llm.chat_prompt([{"role": "user", "content": row["prompt"]}]))
        done = llm.generate(recording.prompt, replace(replay.SamplingParams(), max_tokens=24))[0]
        assert recording.output == done.token_ids
        assert [ranked[0][0] for ranked in recording.top] == list(done.token_ids), "greedy takes the likeliest"

    shown = run(made, "--limit", 4, "--drafters", "suffix,lookup", "--json", result)
    assert shown.startswith(f"3 completions, {sum(len(r.output) for r in recordings)} tokens")
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["limit"] == 4
    assert set(found["modes"]) == {"suffix", "lookup", "all"}
    for shapes in found["modes"].values():
        for cells in shapes.values():
            assert set(cells) == {"a", "b", "all"}
            assert cells["a"]["committed"] + cells["b"]["committed"] == cells["all"]["committed"]
            assert cells["all"]["drafted"] <= 4 * cells["all"]["steps"]
    lines = [line.split() for line in shown.splitlines()[2:]]
    assert [line[:2] for line in lines] == [[m, c] for m in ("suffix", "lookup", "all") for c in ("a", "b", "all")]
    assert lines[2][2] == f"{found['modes']['suffix']['tree']['all']['acceptance_length']:.2f}"


def paces(replay: Any, recordings: list[Any], name: str = "suffix") -> dict[str, float]:
    """The acceptance length of the first completion of each kind, and of those that follow."""
    [tree_mode, _] = replay.Session(recordings, (name,), 16).run()
    return replay.summarise(recordings, tree_mode[2])["all"]


def test_suffix_goes_twice_as_far_on_a_second_similar_request(replay: Any) -> None:
    """On what a model said; as requests of different tenants they do not help each other."""
    recordings = replay.read([RECORDED / "similar.jsonl"])
    found = paces(replay, recordings)
    assert found["later"] >= 2 * found["first"]
    apart = paces(replay, [replace(r, tenant=str(i)) for i, r in enumerate(recordings)])
    assert apart["first"] == found["first"]
    assert apart["later"] < 1.5 * apart["first"]


def test_all_drafters_together_are_no_worse_than_each(replay: Any) -> None:
    recordings = replay.read([RECORDED / "demo.jsonl"])
    found = {}
    for mode, shape, counts in replay.Session(recordings, replay.FREE, 16).run():
        found[mode, shape] = replay.summarise(recordings, counts)["all"]["acceptance_length"]
    assert all(found["all", "tree"] >= found[name, "tree"] > 1.3 for name in replay.FREE)
    assert found["suffix", "tree"] > found["lookup", "tree"]
    assert all(found[name, "chain"] <= found[name, "tree"] for name in (*replay.FREE, "all"))
