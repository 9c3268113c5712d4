"""What the OpenVINO runner does to stay small: few numbers of rows, and tables that are given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.models import toy
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span, Want
from paceline.runners.openvino import store
from paceline.runners.openvino.runner import OpenVINORunner
from paceline.runners.openvino.store import open_weights

CONFIG = toy.CONFIGS["llama"]
LONGEST = 70


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))


def checkpoint() -> Checkpoint:
    return Checkpoint(CONFIG, toy.RandomWeights(CONFIG))


def watched(runner: OpenVINORunner, patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each pass adds its number of rows."""
    ran: list[int] = []
    inner: Any = runner._program.run

    def run(inputs: Any) -> Any:
        ran.append(len(inputs["embeds"]))
        return inner(inputs)

    patch.setattr(runner._program, "run", run)
    return ran


def test_passes_have_few_sizes_and_answer_as_they_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = OpenVINORunner(checkpoint(), "fp32", "fast", taps=[0])
    runner.allocate(4)
    ran = watched(runner, monkeypatch)
    text, blocks = list(range(LONGEST)), np.arange(3, dtype=np.int32)
    whole = np.array(runner.forward([Span.causal(text, 0, blocks, range(LONGEST))]).logits)
    for rows in range(1, LONGEST):
        output = runner.forward([Span.causal(text[:rows], 0, blocks, range(rows))], Want((0,)))
        np.testing.assert_allclose(output.logits, whole[:rows], atol=1e-4)
        assert len(output.hidden[0]) == rows
    assert ran == [72, *range(1, 17), *(-(-rows // 8) * 8 for rows in range(17, LONGEST))]


@pytest.mark.parametrize(("asked", "ran"), [(2, 3), (5, 5), (16, 16), (33, 40)])
def test_a_pass_that_is_filled_up_has_such_a_size(asked: int, ran: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = OpenVINORunner(checkpoint(), "fp32", "fast")
    runner.allocate(4)
    sizes = watched(runner, monkeypatch)
    output = runner.forward([Span.causal([1, 2, 3], 0, np.arange(1, dtype=np.int32), [2])], Want(rows=asked))
    assert (sizes, output.logits.shape) == ([ran], (1, CONFIG.vocab_size))


def test_tables_are_given_back_after_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch: Any = open_weights(checkpoint(), "int8")
    given_back = []
    inner = fetch._give_back
    monkeypatch.setattr(fetch, "_give_back", lambda: given_back.append(inner()))
    table = fetch("embed")
    before = table.rows(np.arange(5)).copy()
    fetch.looked_up(store.LOOK_UPS - 1)
    assert not given_back
    fetch.looked_up(1)
    assert len(given_back) == 1
    np.testing.assert_array_equal(table.rows(np.arange(5)), before)
    fetch.looked_up(store.LOOK_UPS - 1)
    assert len(given_back) == 1


def test_a_runner_says_what_it_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = OpenVINORunner(checkpoint(), "int8")
    noted: list[int] = []
    monkeypatch.setattr(runner._borrowed[0], "looked_up", noted.append)
    runner.embed(np.arange(3))
    runner.embed(np.arange(7))
    assert noted == [3, 7]
