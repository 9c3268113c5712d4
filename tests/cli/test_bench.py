"""`paceline bench` as a user types it: files, refusals, exit codes, Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import trials
from paceline.cli.run import run
from paceline.core import verify as rules
from paceline.core.types import Verdict
from paceline.engine import engine as engines

TOY = ("bench", "--model", "toy:ngram", "--draft", "toy:ngram-draft", "--workload", "chat", "--prompts", "2")
SHORT = (*TOY, "--max-tokens", "12")


def test_it_measures_and_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers, page = tmp_path / "b.json", tmp_path / "b.html"
    assert run([*SHORT, "--batch", "1,2", "--json", str(numbers), "--html", str(page)]) == 0
    found = json.loads(numbers.read_text())
    assert {cell["mode"] for cell in found["cells"]} == {"plain", "off", "auto"}
    assert {cell["batch"] for cell in found["cells"]} == {1, 2} and found["noise"].keys() == {"1", "2"}
    assert found["text_identical"]["different"] == 0 < found["text_identical"]["equal"]
    shown = capsys.readouterr().out
    assert "noise floor" in shown and "identical" in shown and "\x1b[" not in shown
    assert "<svg" in page.read_text() and "http://" not in page.read_text().replace("http://www.w3.org", "")


def test_chosen_acceptance_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = tmp_path / "b.json"
    assert run([*SHORT, "--acceptance", "0.9,0.5", "--modes", "plain,fixed:2", "--json", str(numbers)]) == 0
    assert "SYNTHETIC acceptance (0.9, 0.5 by depth)" in capsys.readouterr().out
    assert json.loads(numbers.read_text())["synthetic"] == [0.9, 0.5]


def test_another_text_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def trusting(rule: Any, draft: Any, choices: Any, noise: Any, position: int) -> Verdict:
        if draft:
            return Verdict((0,), choices(1, (draft.tokens[0],)).draw(noise.target(position + 1)))
        return rules.verify(rule, draft, choices, noise, position)

    monkeypatch.setattr(engines, "verify", trusting)
    assert run([*SHORT, "--modes", "plain,fixed:4"]) == 1
    assert "parts at token" in capsys.readouterr().out


def test_ctrl_c_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, taken, inner = tmp_path / "b.json", [], trials.take

    def take(*given: Any, **named: Any) -> Any:
        taken.append(1)
        if len(taken) > 6:
            raise KeyboardInterrupt
        return inner(*given, **named)

    monkeypatch.setattr(trials, "take", take)
    assert run([*SHORT, "--json", str(numbers)]) == 130
    assert json.loads(numbers.read_text())["cells"], "six turns were whole"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["bench"], "bench needs --model MODEL, or --url URL"),
        (["bench", "--model", "demo", "--url", "http://x"], "give one of the two"),
        (["bench", "--url", "http://x", "--drafters", "suffix"], "--drafters is for a model that is loaded here"),
        (["bench", "--url", "http://x", "--acceptance", "0.5"], "--acceptance is for a model that is loaded here"),
        (["bench", "--model", "demo", "--api-key", "k"], "api-key is of the server"),
        ([*TOY, "--batch", "0"], "batch is '0'; allowed: numbers from 1 to 256"),
        ([*TOY, "--modes", "plain"], "modes are plain; name two or more"),
        ([*TOY, "--modes", "plain,quick"], "name"),
        ([*TOY, "--acceptance", "1.5"], "acceptance is '1.5'; allowed: numbers from 0 to 1"),
        ([*TOY, "--arrivals", "tide"], "arrivals is 'tide'; allowed: closed, poisson:RATE"),
        ([*TOY, "--repeat", "0"], "repeat is 0; allowed: 1 or more"),
        ([*TOY, "--workload", "jsonl:no.jsonl"], "cannot be read"),
        ([*TOY, "--json", "no/dir/b.json"], "no/dir"),
    ],
)
def test_what_cannot_be_is_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and not shown.out
