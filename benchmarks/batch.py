"""Many sequences at a time: total speed against plain decoding and each fixed length, by batch, steady and ramping.

    python benchmarks/batch.py --model demo --json out/batch.json --plot out/batch.svg
    python benchmarks/batch.py --model TARGET.gguf --draft DRAFTER.gguf --seconds 5 --rounds 2

steady  so many requests are kept running: where one ends, the next begins, in turn from the prompts. It is measured for
        --seconds after all have begun to decode and --settle seconds more have passed.
ramp    1, 2, 4 … 32 … 4, 2, 1 requests, --seconds each; to get fewer the newest are aborted.

The modes take turns within a batch and a round, the next round in the other order. A prompt that comes again comes from
another tenant, so nobody replays its own answer, and each mode has a governor of its own that learns from batch to
batch. Steps that read prompts have no plain counterpart of the same kind, so speeds are of the time of all others; the
speed with everything in it stands beside them.

Held against two things. In every batch, `auto` makes at least 0.99 of the best of plain and all fixed lengths, known
afterwards. And in every window of one second, it makes 0.98 of what plain decoding makes with as many sequences, by the
plain steps of all rounds; that the windows of plain decoding itself do not all keep within that says how noisy the
machine is. The crossover is the least batch from which on fewer than 2 of 100 rows that run are drafted.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plots
from common import DRAWS, progress, provenance, read_prompts, write_json
from modes import AUTO, PLAIN, Mode, Modes, arguments, listed, load, sampling
from watch import Step, Watch

from paceline import SamplingParams

OF_BEST, OF_PLAIN, DRAFTED = 0.99, 0.98, 0.02
WINDOW, PIECE = 1.0, 0.25
"""Seconds."""
SHORTEST = 0.5
"""Share of the longest answers that the shortest may have: they are not all to end at the same time."""
Run = list[Step]


@dataclass
class Load:
    """Keeps as many requests running as are wanted, and notes what was said to which prompt."""

    runs: Modes
    mode: Mode
    prompts: Sequence[list[int]]
    longest: SamplingParams
    running: dict[int, int] = field(default_factory=dict)
    """Request -> its prompt's number."""
    said: dict[int, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    begun: int = 0

    def __post_init__(self) -> None:
        self._engine = self.runs.llm.engine

    def step(self, wanted: int) -> None:
        while len(self.running) > wanted:
            self._engine.abort(max(self.running))
            self._collect()
        while len(self.running) < wanted:
            self._begin()
        self._collect()

    def stop(self) -> None:
        for request in self.running:
            self._engine.abort(request)
        while not self._engine.idle:
            self._collect()

    def _begin(self) -> None:
        number = self.begun % len(self.prompts)
        share = SHORTEST + (1 - SHORTEST) * ((7 * self.begun) % 10) / 9
        most = max(1, round(share * self.longest.max_tokens))
        limits = SamplingParams(most, self.longest.temperature, seed=number, ignore_eos=self.longest.ignore_eos)
        self.begun += 1
        self.running[self._engine.add(self.runs.request(self.mode, self.prompts[number], limits))] = number

    def _collect(self) -> None:
        for event in self._engine.step():
            if event.finish_reason and event.request_id in self.running:
                number = self.running.pop(event.request_id)
                self.said[number].append(self._engine.completion(event.request_id).token_ids)


@dataclass
class Texts:
    """The longest answer to each prompt, and how many others, some cut short, begin like it."""

    longest: dict[int, tuple[int, ...]] = field(default_factory=dict)
    compared: int = 0
    equal: int = 0

    def add(self, said: Mapping[int, Sequence[tuple[int, ...]]]) -> None:
        for number, answers in said.items():
            for answer in answers:
                known = self.longest.setdefault(number, answer)
                short = min(len(known), len(answer))
                self.compared += 1
                self.equal += known[:short] == answer[:short]
                self.longest[number] = max(known, answer, key=len)


def main() -> None:
    given = parse()
    if given.plot:
        plots.require()
    llm = load(given, sequences=max(given.batches), context=given.context)
    runs = Modes(llm, sampling(given, ignore_eos=True))
    prompts = [
        llm.chat_prompt([{"role": "user", "content": row["prompt"]}])
        for row in read_prompts(given.prompts, given.per_category)
    ]
    prompts = [prompt for prompt in prompts if len(prompt) <= given.longest_prompt]
    runs.warm_up(given.modes)
    bench = Bench(given, runs, prompts)
    if given.load != "ramp":
        bench.steady()
    if given.load != "steady":
        bench.ramp()
    result = summarise(bench) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)
    if given.plot:
        plot(given.plot, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=96)
    whole = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--batches", type=whole, default=(1, 2, 4, 8, 16, 32))
    parser.add_argument("--modes", type=listed, default=listed("plain,auto,fixed:1,fixed:2,fixed:4,fixed:8"))
    parser.add_argument("--load", choices=("steady", "ramp", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each batch, mode and round")
    parser.add_argument("--settle", type=float, default=0.7, help="seconds of decoding before those")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024, help="most tokens of a sequence")
    parser.add_argument("--longest-prompt", type=int, default=256, help="longer prompts, in tokens, are left out")
    parser.add_argument("--plot", type=Path, help="speed by batch and drafted share, .svg or .png")
    given = parser.parse_args()
    if not {PLAIN, AUTO} <= set(given.modes):
        parser.error("--modes needs plain and auto")
    return given


class Bench:
    """Runs every mode under every load, and keeps the steps."""

    def __init__(self, given: Any, runs: Modes, prompts: Sequence[list[int]]) -> None:
        self.given, self._runs, self._prompts = given, runs, prompts
        self._watch = Watch(runs.llm.engine)
        self.steady_runs: dict[tuple[int, str], list[Run]] = defaultdict(list)
        self.ramps: dict[str, list[Run]] = defaultdict(list)
        self.texts = Texts()
        self._decoded = 0.0
        """Seconds that the last step decoded all that are to run."""

    def steady(self) -> None:
        for turn, batch in itertools.product(range(self.given.rounds), self.given.batches):
            for mode in self.given.modes[:: 1 if turn % 2 == 0 else -1]:
                progress(f"round {turn + 1}, batch {batch}: {mode.name}")
                run = self._loaded(mode, self._hold(batch))
                self.steady_runs[batch, mode.name].append(run)
        progress("")

    def ramp(self) -> None:
        levels = (*self.given.batches, *self.given.batches[-2::-1])
        for turn in range(self.given.rounds):
            for mode in (PLAIN, AUTO)[:: 1 if turn % 2 == 0 else -1]:
                progress(f"round {turn + 1}, ramp: {mode.name}")
                self.ramps[mode.name].append(self._loaded(mode, self._climb(levels)))
        progress("")

    def _loaded(self, mode: Mode, wanted: Callable[[], Iterator[int]]) -> Run:
        """Return the steps that count: what `wanted` yields is how many are to run, negative while it settles."""
        with self._runs.turn(mode):
            load_ = Load(self._runs, mode, self._prompts, self._runs.sampling)
            self._watch.take()
            counted, seen = list[Step](), 0
            for level in wanted():
                load_.step(abs(level))
                taken = self._watch.steps[seen:]
                seen = len(self._watch.steps)
                self._decoded = sum(step.seconds for step in taken if step.sequences >= abs(level))
                if level > 0:
                    counted += taken
            load_.stop()
            self._watch.take()
            self.texts.add(load_.said)
        return counted

    def _hold(self, batch: int) -> Callable[[], Iterator[int]]:
        """Yield the batch until it has decoded for as long as it should; the beginning does not count."""

        def wanted() -> Iterator[int]:
            for sign, seconds in ((-1, self.given.settle), (1, self.given.seconds)):
                left = seconds
                while left > 0:
                    yield sign * batch
                    left -= self._decoded

        return wanted

    def _climb(self, levels: Sequence[int]) -> Callable[[], Iterator[int]]:
        def wanted() -> Iterator[int]:
            yield from self._hold(levels[0])()
            for level in levels[1:]:
                left = self.given.seconds
                while left > 0:
                    yield level
                    left -= self._decoded

        return wanted


def decoding(runs: Sequence[Run]) -> list[Step]:
    return [step for run in runs for step in run if step.decodes]


def pace(steps: Sequence[Step]) -> float:
    """Return tokens a second, all sequences together."""
    return sum(step.committed for step in steps) / sum(step.seconds for step in steps)


def windows(run: Run, seconds: float = WINDOW) -> list[list[Step]]:
    """Cut a run's decoding steps into windows of a second; what is left at the end is no window."""
    found, current, took = [], list[Step](), 0.0
    for step in decoding([run]):
        current.append(step)
        took += step.seconds
        if took >= seconds:
            found.append(current)
            current, took = [], 0.0
    return found


def against(run: Run, plain: Mapping[int, float]) -> list[float]:
    """Return for each window its tokens over those of plain decoding in that time with as many sequences."""
    return [
        sum(step.committed for step in window) / sum(step.seconds * plain[step.sequences] for step in window)
        for window in windows(run)
        if all(step.sequences in plain for step in window)
    ]


def plain_paces(runs: Sequence[Run]) -> dict[int, float]:
    """Return tokens a second of plain decoding by the number of sequences."""
    by_count: dict[int, list[Step]] = defaultdict(list)
    for step in decoding(runs):
        by_count[step.sequences].append(step)
    return {count: pace(steps) for count, steps in by_count.items()}


def ratio(mine: Sequence[Run], others: Sequence[Run]) -> dict[str, float]:
    """Return how many times as fast, with a 95 % interval by bootstrap over pieces of a quarter second.

    The interval knows the noise within a run; what changes slowly on the machine is not in it.
    """
    rng = np.random.default_rng(0)
    draws = drawn(mine, rng) / drawn(others, rng)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"ratio": pace(decoding(mine)) / pace(decoding(others)), "low": float(low), "high": float(high)}


def drawn(runs: Sequence[Run], rng: np.random.Generator) -> Any:
    """Return [DRAWS] paces of runs put together anew from their pieces."""
    pieces = [piece for run in runs for piece in windows(run, PIECE) or [decoding([run])]]
    sums = np.array([[sum(s.committed for s in piece), sum(s.seconds for s in piece)] for piece in pieces])
    tokens, seconds = sums[rng.integers(len(sums), size=(DRAWS, len(sums)))].sum(1).T
    return tokens / seconds


def summarise(bench: Bench) -> dict[str, Any]:
    given = bench.given
    steady, ramps = bench.steady_runs, bench.ramps
    batches = given.batches if steady else ()
    all_plain = [run for (_, mode), runs in steady.items() if mode == PLAIN.name for run in runs] + ramps[PLAIN.name]
    plain = plain_paces(all_plain)
    points = [point(batch, {m.name: steady[batch, m.name] for m in given.modes}, plain) for batch in batches]
    ramp = {
        name: spread([value for run in runs for value in against(run, plain)]) for name, runs in ramps.items() if runs
    }
    shares = {p["batch"]: p["drafted_share"] for p in points}
    crossover = next((b for b in batches if all(shares[c] < DRAFTED for c in batches if c >= b)), None)
    found = [p["windows"][AUTO.name] for p in points] + ([ramp[AUTO.name]] if ramp else [])
    return {
        "points": points,
        "ramp": ramp,
        "crossover": crossover,
        "text": {"compared": bench.texts.compared, "equal": bench.texts.equal},
        "holds": {
            "of_best": all(p["auto_of_best"]["ratio"] >= OF_BEST for p in points),
            "of_plain": all(each["least"] >= OF_PLAIN for each in found if each["windows"]),
        },
    }


def point(batch: int, runs: Mapping[str, list[Run]], plain: Mapping[int, float]) -> dict[str, Any]:
    """Return what a batch came to in every mode."""
    speeds = {mode: pace(decoding(mine)) for mode, mine in runs.items()}
    best = max((mode for mode in speeds if mode != AUTO.name), key=speeds.__getitem__)
    auto = decoding(runs[AUTO.name])
    rows = sum(step.sequences + step.verified for step in auto)
    return {
        "batch": batch,
        "tokens_per_s": speeds,
        "tokens_per_s_with_reading": {mode: pace([s for run in mine for s in run]) for mode, mine in runs.items()},
        "best": best,
        "auto_of_best": ratio(runs[AUTO.name], runs[best]),
        "auto_of_plain": ratio(runs[AUTO.name], runs[PLAIN.name]),
        "drafted_share": sum(step.verified for step in auto) / rows,
        "windows": {
            name: spread([value for run in runs[name] for value in against(run, plain)])
            for name in (PLAIN.name, AUTO.name)
        },
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return how many windows there were, the slowest, and how many stay below the bound."""
    if not values:
        return {"windows": 0, "least": 0.0, "median": 0.0, "below": 0}
    below = sum(value < OF_PLAIN for value in values)
    return {"windows": len(values), "least": min(values), "median": float(np.median(values)), "below": below}


def show(result: dict[str, Any]) -> None:
    if points := result["points"]:
        modes = list(points[0]["tokens_per_s"])
        print(f"{'batch':>5}", *(f"{mode:>8}" for mode in modes), "  auto / best (95 %), best", " " * 6, end="")
        print("/ plain  drafted  least window: auto, plain")
    for p in points:
        best, ours, plain = p["auto_of_best"], p["windows"][AUTO.name], p["windows"][PLAIN.name]
        print(
            f"{p['batch']:5}",
            *(f"{speed:8.1f}" for speed in p["tokens_per_s"].values()),
            f"  {best['ratio']:.3f} ({best['low']:.3f} – {best['high']:.3f}) {p['best']:9} "
            f"{p['auto_of_plain']['ratio']:8.3f} {p['drafted_share']:8.3f} "
            f"{ours['least']:9.3f} ({ours['below']} of {ours['windows']} below), {plain['least']:.3f}",
        )
    for name, each in result["ramp"].items():
        print(
            f"ramp, {name}: windows of a second against plain: least {each['least']:.3f}, median {each['median']:.3f}, "
            f"{each['below']} of {each['windows']} below {OF_PLAIN}"
        )
    crossover = "beyond all measured" if result["crossover"] is None else result["crossover"]
    print(f"crossover, the batch from which next to nothing is drafted: {crossover}")
    print(f"answers that begin as the others to their prompt, token for token: {result['text']}")
    for name, holds in result["holds"].items():
        what = f"{OF_BEST} of the best" if name == "of_best" else f"{OF_PLAIN} of plain in every window"
        print(f"at least {what}: {'holds' if holds else 'DOES NOT HOLD'}")


def plot(path: Path, result: dict[str, Any]) -> None:
    points = result["points"]
    if not points:
        return
    batches = [p["batch"] for p in points]
    with plots.drawing(path, "Speed by batch", 2) as (speed, share):
        for mode in points[0]["tokens_per_s"]:
            style = {AUTO.name: "k-o", PLAIN.name: "k--"}.get(mode, "-")
            ratios = [p["tokens_per_s"][mode] / p["tokens_per_s"][PLAIN.name] for p in points]
            speed.plot(batches, ratios, style, ms=4, label=mode)
        speed.set_ylabel("tokens/s, of plain")
        speed.legend()
        share.plot(batches, [p["drafted_share"] for p in points], "k-o", ms=4)
        share.set(ylabel="drafted share of rows, auto", xlabel="sequences", xscale="log", xticks=batches)
        share.set_xticklabels([str(batch) for batch in batches])


if __name__ == "__main__":
    main()
