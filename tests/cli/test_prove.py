"""`paceline prove` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.prove import prove as proving
from paceline.bench.prove.prove import Effort
from paceline.cli.run import run

TINY = Effort(prompts=1, max_tokens=6, draws=300, timed=1, timed_tokens=6, bad=1)
TOY = ("prove", "--model", "toy:ngram", "--draft", "toy:ngram-draft", "--sequences", "2")


@pytest.mark.parametrize(("memory", "code"), [(1 << 20, 1), (1 << 40, 0)])
def test_it_is_a_gate(memory: int, code: int, tmp_path: Path, monkeypatch, capsys) -> None:
    """Toys are too quick to be sped up, so that any slow-down is allowed here; memory is what decides."""
    monkeypatch.setattr(proving, "QUICK", TINY)
    config, numbers, page = tmp_path / "paceline.toml", tmp_path / "p.json", tmp_path / "p.html"
    config.write_text(f"[targets]\nslowdown = 1000.0\nmemory_bytes = {memory}\n")
    given = [*TOY, "--quick", "--config", str(config), "--json", str(numbers), "--html", str(page)]
    assert run(given) == code
    found = json.loads(numbers.read_text())
    assert found["holds"] is (code == 0) and found["complete"]
    failed = [check["name"] for check in found["checks"] if check["verdict"] == "fails"]
    assert failed == (["memory: target"] if code else [])
    assert ("does not hold: memory: target" if code else "all hold") in capsys.readouterr().out
    assert "Signed off" in page.read_text()


def test_what_was_interrupted_proves_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    def stopped(self, say) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(proving.Prove, "_speed", stopped)
    monkeypatch.setattr(proving, "QUICK", TINY)
    numbers = tmp_path / "p.json"
    assert run([*TOY, "--quick", "--json", str(numbers)]) == 130
    found = json.loads(numbers.read_text())
    assert found["holds"] is False and found["checks"], "what was found is kept"
    assert "proves nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["prove"], "prove needs a model"),
        ([*TOY, "--config", "no.toml"], "cannot be read"),
        ([*TOY, "--json", "no/dir/p.json"], "no/dir"),
        ([*TOY, "--sequences", "0"], "sequences"),
    ],
)
def test_what_cannot_run_is_one_line(given: list[str], said: str, capsys) -> None:
    assert run(given) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1
