"""Recorded traces: read as they are described, refused where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench import recorded
from paceline.bench.simulation import simulate
from paceline.bench.tracks import OTHER, WRONG, Chain
from paceline.errors import HistoryError
from tests.core.strategies import examples

COSTS = {
    "costs": {
        "passes": {"1": 0.04, "8": 0.05, "4": 0.041},
        "other": 0.001,
        "switch": 0.004,
        "drafts": {"model": 0.009},
        "reading": {"model": 0.0005},
    }
}
ANSWER = {
    "category": "qa",
    "prompt_tokens": 7,
    "drafts": {
        "suffix": [None, None, [1, 3, 0.55], [2, 2, 0.9]],
        "model": [None, [2, 4, [0.9, 0.81, 0.4, 0.3], 77], [0, 1, [0.5], 0], None],
    },
}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_file_is_read_as_its_format_says(tmp_path: Path) -> None:
    world, texts = recorded.load(write(tmp_path / "traces", COSTS, ANSWER, {**ANSWER, "category": "code"}))
    assert [text.category for text in texts] == ["qa", "code"]
    text = texts[0]
    assert (text.length, text.prompt, tuple(text.tracks)) == (4, 7, ("suffix", "model"))
    assert text.tracks["suffix"].chains == [None, None, Chain(1, (0.55,) * 3, WRONG), Chain(2, (0.9,) * 2, WRONG)]
    assert text.tracks["model"].chains == [
        None,
        Chain(2, (0.9, 0.81, 0.4, 0.3), OTHER + 77),
        Chain(0, (0.5,), OTHER),
        None,
    ]
    assert world.forward(1) == pytest.approx(0.04)
    assert world.forward(8) == pytest.approx(0.05)
    assert 0.0405 < world.forward(5) < 0.05
    assert world.forward(16) > world.forward(8)
    assert (world.other, world.switch, world.drafts["model"], world.reading["model"]) == (0.001, 0.004, 0.009, 0.0005)
    assert simulate(world, texts).tokens == 2 * 3


def test_without_costs_a_known_pair_is_taken(tmp_path: Path) -> None:
    world, _ = recorded.load(write(tmp_path / "traces", ANSWER))
    assert world.forward(1) == pytest.approx(recorded.PAIR["passes"]["1"])
    assert world.drafts["model"] > 0


def changed(**fields: Any) -> dict[str, Any]:
    return {**ANSWER, **fields}


def guess(entry: Any) -> dict[str, Any]:
    return changed(drafts={"model": [None, entry]})


@pytest.mark.parametrize(
    "record",
    [
        [],
        "text",
        None,
        {},
        {"costs": []},
        {"costs": {}},
        {"costs": {"passes": {"2": 0.1}}},
        {"costs": {"passes": {"one": 0.1}}},
        {"costs": {"passes": {"1": 0.0}}},
        {"costs": {"passes": {"1": -1}}},
        {"costs": {"passes": {"1": float("nan")}}},
        {"costs": {"passes": {"1": 1}, "drafts": {"model": "fast"}}},
        changed(prompt_tokens=-1),
        changed(prompt_tokens=1.5),
        changed(prompt_tokens=True),
        changed(drafts={}),
        changed(drafts=[]),
        changed(drafts={"model": []}),
        changed(drafts={"model": {}}),
        changed(drafts={"model": [None, None], "suffix": [None]}),
        guess(0),
        guess([]),
        guess([1]),
        guess([1, 1]),
        guess([2, 1, 0.5]),
        guess([0, 0, 0.5]),
        guess([0, 2, [0.5]]),
        guess([-1, 2, 0.5]),
        guess([0, 1, 1.5]),
        guess([0, 1, "sure"]),
        guess([0, 1, 0.5, -3]),
        guess([0, 1, 0.5, 3, 4]),
        guess([0, 1, 0.5, 2**40]),
        guess([0, 65, 0.5]),
        guess([0, 65, [0.5] * 65]),
        guess([0, 10**9, 0.5]),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, record: Any) -> None:
    with pytest.raises(HistoryError, match="line 2"):
        recorded.load(write(tmp_path / "traces", ANSWER, record))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "binary": b"\xff\xfe\x00", "costs": json.dumps(COSTS).encode()}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(HistoryError):
            recorded.load(tmp_path / name)
    (tmp_path / "deep").write_text("[" * 100_000)
    for name in ("missing", "deep"):
        with pytest.raises(HistoryError):
            recorded.load(tmp_path / name)
    other = changed(drafts={"lookup": [None, None]})
    with pytest.raises(HistoryError, match="different drafters"):
        recorded.load(write(tmp_path / "mixed", ANSWER, other))


@examples(150)
@given(st.binary(max_size=12), st.integers(0, 400), st.integers(0, 12))
def test_damage_is_read_or_refused_and_never_breaks(tmp_path_factory: Any, noise: bytes, at: int, cut: int) -> None:
    whole = (json.dumps(COSTS) + "\n" + json.dumps(ANSWER) + "\n").encode()
    path = tmp_path_factory.mktemp("damaged") / "traces"
    path.write_bytes(whole[:at] + noise + whole[at + cut :])
    try:
        world, texts = recorded.load(path)
    except HistoryError:
        return
    assert simulate(world, texts).tokens == sum(max(text.length - 1, 0) for text in texts)
