"""The comparison of drafters on a toy: every mode is there, says the same, and is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_drafter_and_all_together(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "found.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "drafters.py"), "--model", "toy:ngram", "--max-tokens", "24"]
    done = subprocess.run(
        [*command, "--draft", "toy:ngram-draft", "--per-category", "1", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    modes = {"suffix", "lookup", "recycle", "model", "mixed"}
    assert set(found["text_identical"]) == modes
    assert all(equal == found["prompts"] for equal in found["text_identical"].values())
    cells = {(cell["category"], cell["mode"]): cell for cell in found["cells"]}
    assert {mode for _, mode in cells} == modes | {"plain"}
    assert cells["all", "plain"]["acceptance_length"] == 1
    assert cells["all", "plain"]["ratio"] == 1
    assert {row["category"] for row in found["mixed_against_best_single"]} == {category for category, _ in cells}
    assert "mixed against the best single drafter" in done.stdout
