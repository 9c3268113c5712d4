"""`paceline lab`: each scenario runs; a governor that never stops, and another text, are found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.bench.lab import scenarios
from paceline.bench.lab.scenario import Lab, Scenario, fallen
from paceline.bench.result import Comparison, Result, Texts
from paceline.bench.trials import Ask
from paceline.cli.run import run
from paceline.core.types import SamplingParams

SMALL = SamplingParams(6, seed=1, ignore_eos=True)


def few(llm: LLM) -> list[Ask]:
    return [Ask("toys", (97 + i, 98, 99), SMALL) for i in range(2)]


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_each_scenario_runs(name: str) -> None:
    """With its own engine, faults and batches, and few short prompts."""
    whole = scenarios.SCENARIOS[name]
    small = Scenario(name, whole.what, whole.always, few, whole.options, whole.prepare, whole.batches[:2])
    lab = Lab(small, "toy:ngram", LLM)
    lab.run(lambda what, done, of: None)
    result = lab.result()
    assert {cell.mode for cell in result.cells} == {"plain", whole.always, "auto"}
    assert result.text_identical.different == 0 < result.text_identical.equal


def test_prompts_of_the_scenarios_fit_the_demo_model() -> None:
    llm = LLM("demo", keep_costs=False)
    for scenario in scenarios.SCENARIOS.values():
        asks = scenario.asks(llm)
        assert asks and all(len(a.prompt) + a.sampling.max_tokens <= llm.engine.context for a in asks)


def test_a_cliff_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(scenarios.time, "sleep", slept.append)
    llm = LLM("toy:ngram", keep_costs=False)
    scenarios.cliff(llm, ())
    rows: list[int] = []
    inner = llm.engine.target.forward

    def forward(spans: Sequence[Any], *rest: Any) -> Any:
        rows.append(sum(len(span.tokens) for span in spans))
        return inner(spans, *rest)

    llm.engine.target.forward = forward  # type: ignore[method-assign]
    llm.generate([[97, 98], [97] * 9], SMALL)
    assert len(slept) == sum(n > scenarios.CLIFF for n in rows) > 0
    assert any(n <= scenarios.CLIFF for n in rows)


def found(low: float, high: float, different: int = 0) -> Result:
    both = [
        Comparison("lab", "all", 1, mode, "plain", (low + high) / 2, low, high, "same") for mode in ("fixed:8", "auto")
    ]
    return Result({}, (), tuple(both), Texts(1, 1 + different, 0, different))


def test_only_what_is_beyond_doubt_fails() -> None:
    assert not fallen(found(0.90, 0.99)) and not fallen(found(0.985, 1.0))
    assert [c.mode for c in fallen(found(0.90, 0.97))] == ["auto"], "what always speculates may lose"


@pytest.mark.parametrize(("result", "code"), [(found(0.9, 0.97), 1), (found(0.99, 1.1), 0), (found(1, 1.1, 1), 1)])
def test_exit_codes(result: Result, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Lab, "run", lambda self, say: None)
    monkeypatch.setattr(Lab, "result", lambda self: result)
    monkeypatch.setattr(Lab, "seen", True)
    file = tmp_path / "lab.json"
    monkeypatch.setattr(scenarios, "SCENARIOS", {"x": Scenario("x", "a test", "fixed:4", few)})
    assert run(["lab", "x", "--model", "toy:ngram", "--json", str(file)]) == code
    assert json.loads(file.read_text())["scenario"] == "x"


def test_a_list_and_a_name_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(scenarios.SCENARIOS)
    assert run(["lab", "nope"]) == 2
    assert "scenario is 'nope'; allowed: collapse, batch" in capsys.readouterr().err
