"""The command line of the simulator, and what a cell says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.recorded import load
from paceline.bench.simulate import Cell, main, random_cell, random_cells, recorded_cells, summary
from paceline.bench.simulation import simulate
from paceline.errors import HistoryError

from .test_recorded import ANSWER, COSTS, write


def test_cells_are_drawn_by_their_seed_alone() -> None:
    some = [random_cell(seed, length=60, requests=1) for seed in (3, 4)]
    assert some == [random_cell(seed, length=60, requests=1) for seed in (3, 4)]
    assert some[0] != some[1]
    assert all(cell.oracle >= cell.best - 1e-9 and cell.oracle >= cell.speedup for cell in some)
    assert some[0].label.startswith("seed=3 ")


def test_regret_is_the_share_of_time_that_could_have_been_saved() -> None:
    cell = Cell("", speedup=1.5, best=2.0, oracle=3.0, loss=2.0, longest=1.0, steps=10)
    assert cell.regret == pytest.approx(0.25)
    assert cell.beyond == pytest.approx(0.5)
    better = Cell("", speedup=2.5, best=2.0, oracle=3.0, loss=7.0, longest=1.0, steps=10)
    slower = Cell("", speedup=0.9, best=1.0, oracle=3.0, loss=7.0, longest=1.0, steps=10)
    assert better.regret == pytest.approx(-0.25)
    found = summary([cell, better, slower])
    for part in ("3 cells, 30 steps", "mean 3.33%", "as none 11.67%", "worst 25.00%", "loss 7.0", "in 33.3%"):
        assert part in found


def test_the_summary_of_random_cells_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--cells", "3", "--seed", "5", "--worst", "2"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == summary(list(random_cells(range(5, 8))))
    assert sum("seed=" in line for line in lines) == 2 * 2


def test_recorded_prompts_are_run_by_category(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "traces", COSTS, ANSWER, {**ANSWER, "category": "code"}, ANSWER)
    cells = recorded_cells(path)
    assert [cell.label.split(" best")[0] for cell in cells] == ["qa (2)", "code (1)"]
    world, texts = load(path)
    whole = simulate(world, texts)
    assert sum(cell.steps for cell in cells) == len(whole.steps)
    assert whole.ideal < whole.plain / min(cell.speedup for cell in cells) + 1e-9
    main(["--recorded", str(path)])
    printed = capsys.readouterr().out
    assert "qa (2)" in printed
    assert "2 cells" in printed
    short = {**ANSWER, "category": "one token", "drafts": {name: [None] for name in ANSWER["drafts"]}}
    assert len(recorded_cells(write(path, COSTS, short, ANSWER))) == 1
    path.write_text(json.dumps(COSTS))
    with pytest.raises(HistoryError):
        main(["--recorded", str(path)])
