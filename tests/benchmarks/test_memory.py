"""The memory benchmark: growth of samples that are known, and a run on a toy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.scripts import found, script

memory = script("memory")


def test_growth_is_a_line_through_all_but_the_first():
    steady = [[0, 10], *([n, 500 + 3 * n] for n in range(50, 501, 50))]
    grown = memory.growth(steady)
    assert grown["bytes_a_request"] == pytest.approx(3)
    assert grown["error"] == pytest.approx(0, abs=1e-9)
    assert grown["first_to_last"] == 3 * 450
    noisy = memory.growth([[0, 10], [50, 700], [100, 500], [150, 700], [200, 500]])
    assert abs(noisy["bytes_a_request"]) < 1.96 * noisy["error"]
    assert memory.growth([[0, 1], [50, 2], [100, 3]]) == {}


def test_a_toy_is_measured_in_a_process_of_its_own(tmp_path: Path):
    given = ("--model", "toy:llama", "--context", "128", "--sequences", "2", "--requests", "150", "--max-tokens", "3")
    shown, written = found("memory", tmp_path / "out.json", *given)
    assert "peak / planned" in shown
    assert "growth from request 50 to 150" in shown
    assert written["settings"]["model"] == "toy:llama"
    assert [requests for requests, _ in written["samples"]] == [0, 50, 100, 150]
    loaded, end = written["looks"]["loaded"], written["looks"]["end"]
    assert loaded["peak"] <= end["peak"]
    assert end["own"] < end["rss"] <= end["peak"]
    sizes = dict(written["planned"])
    total, free = sizes.pop("total"), sizes.pop("free")
    assert 0 < total == sum(sizes.values()) < free
