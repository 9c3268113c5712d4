"""Commands run in this process, or in one of their own where signals, pipes and terminals matter."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.options import Flags
from paceline.cli.run import run as run_command
from paceline.engine.engine import Engine
from paceline.governor.alarms import Alarm
from paceline.models import toy

COLOURS = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def settled(monkeypatch, cache) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(cache))
    for name in COLOURS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(monkeypatch, capsys) -> Run:
    def go(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run_command(arguments)
        return Result(code, *capsys.readouterr())

    return go


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Run what must be refused, and return the one line that says why."""

    def go(*arguments: str, stdin: bytes = b"") -> str:
        result = run(*arguments, stdin=stdin)
        assert (result.code, result.out) == (2, "")
        # A busy machine may take so long over the model's tables that progress is shown first.
        (line,) = (line for line in result.err.splitlines() if not line.endswith(" …"))
        assert line.startswith("paceline: ")
        return line.removeprefix("paceline: ")

    return go


@pytest.fixture
def always(monkeypatch) -> None:
    """Speculate whatever it costs: a toy is so quick that the governor soon calls drafting too dear."""
    auto = Flags.speculation
    monkeypatch.setattr(Flags, "speculation", lambda self: replace(auto(self), mode="always"))


@pytest.fixture
def alarmed(monkeypatch) -> list[Alarm]:
    """Two alarms are on, whatever happens."""
    on = [
        Alarm("repetition", 7, "a text repeats [itself]: " + 40 * "and so on, " + "and so on"),
        Alarm("account_overdrawn", 9, "lost"),
    ]
    monkeypatch.setattr(Engine, "alarms", property(lambda self: {alarm.name: alarm for alarm in on}))
    return on


SLOW = """
import sys, time
from dataclasses import replace
from paceline.cli.options import Flags
from paceline.runners.toy import ToyRunner
whole, auto, calls = ToyRunner.forward, Flags.speculation, 0
def forward(self, spans, *rest):
    global calls
    calls += 1
    if calls == {mark}:
        print("ready", file=sys.stderr, flush=True)
    time.sleep({pause})
    return whole(self, spans, *rest)
ToyRunner.forward = forward
Flags.speculation = lambda self: replace(auto(self), mode="always")
from paceline.cli import main
sys.exit(main())
"""


def slow(*arguments: str, pause: float = 0.01, mark: int = 0) -> list[str]:
    """A command line whose toys take their time, so that there is some to be interrupted, and always speculate.

    Args:
        mark: say "ready" on stderr when this pass begins; the first ones measure.
    """
    return [sys.executable, "-c", SLOW.format(pause=pause, mark=mark), *arguments]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *arguments]


def start(arguments: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, env=os.environ, **({"stdin": pipe, "stdout": pipe, "stderr": pipe} | kwargs))


@pytest.fixture
def directory(tmp_path) -> Path:
    """A model directory with a tokenizer and nothing else."""
    toy.tokenizer()._backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": toy.TEMPLATE}))
    return tmp_path
