"""Are `bench`'s verdicts right? Plain against plain must come out `same`, a planted slow-down `slower`.

    python benchmarks/verdicts.py --model demo --runs 20 --json out/verdicts.json

Each run is one of `bench`: prompts in several categories, two rounds there and back, plain decoding against itself. In
every second run the other one's passes take --slower (3 %) longer, by spinning after each. A run that is in the JSON
file already is not measured again, so that it can be done in pieces.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import progress, provenance, write_json
from modes import Mode, Modes, arguments, listed, load, sampling

from paceline.bench.bench import Bench
from paceline.bench.result import ALL
from paceline.bench.workloads import asks
from paceline.bench.workloads import load as load_workload
from paceline.bench.wrapped import Wrapped
from paceline.runners.base import Output, Span, Want

CATEGORIES = ("chat", "code", "maths", "creative")
PROMPTS, ROUNDS = 3, 2
EXPECTED = {"same": 0.0, "slower": 1.0}


class Slowed(Wrapped):
    """A runner whose passes take longer while it is told so."""

    share = 0.0

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        begin = time.perf_counter()
        found = self._inner.forward(spans, want)
        until = begin + (time.perf_counter() - begin) * (1 + self.share)
        while time.perf_counter() < until:
            pass
        return found


def main() -> None:
    parser = arguments(__doc__, max_tokens=24, prompts=False)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--slower", type=float, default=0.03, help="how much longer passes take in every second run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    runs: list[dict[str, Any]] = _kept(given.json)
    llm = load(given, drafters=())
    slowed = llm.engine.target = Slowed(llm.engine.target)  # type: ignore[assignment]
    while len(runs) < 2 * given.runs and time.monotonic() < end:
        expected = "same" if len(runs) % 2 == 0 else "slower"
        progress(f"run {len(runs) + 1} of {2 * given.runs}")
        runs.append(one(llm, slowed, given, expected))
        write_json(given.json, {"runs": runs, "provenance": provenance()})
    progress("")
    show(runs)


def one(llm: Any, slowed: Slowed, given: Any, expected: str) -> dict[str, Any]:
    asked = [ask for name in CATEGORIES for ask in asks(llm, load_workload(name, PROMPTS), sampling(given))]
    bench = Bench(llm, "verdicts", asked, listed("plain,off"))
    bench.modes = _Planted(bench.modes, slowed, EXPECTED[expected] * given.slower)  # type: ignore[assignment]
    begin = time.monotonic()
    bench.run([1], ROUNDS, lambda what, done, of: None)
    [found] = [c for c in bench.result().comparisons if c.category == ALL]
    kept = {"ratio": found.ratio, "low": found.low, "high": found.high, "verdict": found.verdict}
    return {"expected": expected, **kept, "seconds": time.monotonic() - begin}


class _Planted:
    """Modes of which one is slowed down."""

    def __init__(self, inner: Modes, slowed: Slowed, share: float) -> None:
        self._inner, self._slowed, self._share = inner, slowed, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def turn(self, mode: Mode) -> Iterator[None]:
        self._slowed.share = self._share if mode.name == "off" else 0.0
        try:
            with self._inner.turn(mode):
                yield
        finally:
            self._slowed.share = 0.0


def show(runs: Sequence[dict[str, Any]]) -> None:
    for expected in EXPECTED:
        mine = [run for run in runs if run["expected"] == expected]
        counts = Counter(run["verdict"] for run in mine)
        print(f"{expected:7} expected in {len(mine):3}: {dict(counts)}")
        for run in mine:
            print(
                f"    {run['ratio']:.4f} ({run['low']:.4f}–{run['high']:.4f}) {run['verdict']}, {run['seconds']:.0f} s"
            )


def _kept(path: Path | None) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["runs"]) if path is not None and path.exists() else []


if __name__ == "__main__":
    main()
