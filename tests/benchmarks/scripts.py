"""The scripts of `benchmarks/`, which are no package: imported and run as a user runs them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAIR = ("--model", "toy:ngram", "--draft", "toy:ngram-draft")


def script(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module(name)


def run(name: str, *given: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done


def found(name: str, out: Path, *given: object) -> tuple[str, dict[str, Any]]:
    """Run a script with --json, and return what it printed and what it wrote."""
    shown = run(name, *given, "--json", out).stdout
    written = json.loads(out.read_text(encoding="utf-8"))
    assert {"argv", "versions", "machine", "date"} <= written["provenance"].keys()
    return shown, written
