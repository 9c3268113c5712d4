"""What a scenario is, and the running of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.bench import Bench
from paceline.bench.modes import listed
from paceline.bench.result import ALL, Comparison, Result
from paceline.bench.trials import Ask, Say
from paceline.engine.llm import LLM

AUTO = "auto"
BOUND = 0.98
"""Of plain decoding, that `auto` may not fall below."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    what: str
    """What goes wrong, in a sentence."""
    always: str
    """The mode that speculates come what may."""
    asks: Callable[[LLM], Sequence[Ask]]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine, beside the model."""
    prepare: Callable[[LLM, Sequence[Ask]], None] = lambda llm, asks: None
    """Plants what goes wrong."""
    batches: tuple[int, ...] = (1,)
    repeat: int = 1


class Lab:
    """Holds what was measured, so that whoever is interrupted keeps it."""

    def __init__(self, scenario: Scenario, model: str, load: Callable[..., LLM]) -> None:
        self.scenario = scenario
        llm = load(model, keep_costs=False, **{"sequences": max(scenario.batches), **_own(scenario.options, model)})
        asks = tuple(scenario.asks(llm))
        scenario.prepare(llm, asks)
        self._bench = Bench(llm, f"lab {scenario.name}", asks, listed(f"plain,{scenario.always},{AUTO}"))

    def run(self, say: Say) -> None:
        self._bench.run(self.scenario.batches, self.scenario.repeat, say)

    @property
    def seen(self) -> bool:
        return bool(self._bench.seen)

    def result(self) -> Result:
        return self._bench.result()


def fallen(result: Result) -> list[Comparison]:
    """Return where `auto` fell below its bound beyond doubt: the whole interval lies there."""
    return [c for c in result.comparisons if c.mode == AUTO and c.category == ALL and c.high < BOUND]


def _own(options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return a scenario's options; where its draft model is `same`, it is the model itself."""
    return {name: model if (name, value) == ("draft", SAME) else value for name, value in options.items()}


SAME = "same"
