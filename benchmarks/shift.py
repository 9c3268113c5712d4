"""A shift inside one answer: free text, a file of 200 lines repeated verbatim, free text; do the lengths follow?

    python benchmarks/shift.py --model TARGET.gguf --draft DRAFTER.gguf --json out/shift.json --plot out/shift.svg

The prompt shows `shift/ferry.py` and asks for prose, the file unchanged in a code block, and prose again. A model of
1.5B ended after the first prose, in whatever words it was asked; so the answer is led. The model writes --free tokens
of its own, then each token of the file has its logit raised until it is said, then it goes on by itself for as long
again; its end is banned. Every pass runs and takes its time, and drafters see the text, not what it is led by. With
--unled the model is only asked. The answer is decoded plainly and governed, in turn. Its phases are found in its own
text: the copy is between the fences of the code block. Nobody says that a file will be repeated; with --prediction the
file is given as one.

Reported by phase: drafted tokens verified a step, tokens a second, ratio to plain in the same places; and how many
steps into the copy it took until a step verified the most it may, or one less, for passes keep to common sizes; and how
many after it until three steps in a row verified two tokens or fewer.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plots
from common import geometric, progress, provenance, write_json
from modes import AUTO, PLAIN, Modes, arguments, load, one, sampling
from trials import Trial
from watch import Step, Watch

from paceline import LLM, SamplingParams
from paceline.bench.wrapped import Wrapped
from paceline.runners.base import Output, Runner, Span, Want

FILE = Path(__file__).with_name("shift") / "ferry.py"
ASK = """```python
{file}```

Tell a harbour master in plain prose, at length, what this program is for. Then print the whole file again, unchanged,
from its first line to its last, in one code block. Then say in plain prose, at length, what you would improve, and why.
"""
PHASES = ("before", "copy", "after")
FENCE = "```"
ROUNDS, QUIET, CALM = 5, 2, 3
WIDTH = 25
"""Tokens that the plotted speed is a mean of."""
SAID, BANNED = 1e4, -1e4
"""Logits of what is said for sure, and never."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the copy begins and ends, in tokens of the answer; both are its length where there is none."""

    begin: int
    end: int
    length: int

    def bounds(self, phase: str) -> tuple[int, int]:
        return {"before": (0, self.begin), "copy": (self.begin, self.end), "after": (self.end, self.length)}[phase]


class Led(Wrapped):
    """A target that runs as ever and is led to say certain tokens at certain places of the answer to one prompt.

    What is said is a function of the place alone, so it is the same whatever is drafted.
    """

    def __init__(self, inner: Runner, begin: int, script: Sequence[int], never: Sequence[int]) -> None:
        super().__init__(inner)
        self._begin, self._script, self._never = begin, script, list(never)

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        output = self._inner.forward(spans, want)
        logits = output.logits if output.logits.flags.writeable else output.logits.copy()
        places = [int(span.row_positions[row]) + 1 - self._begin for span in spans for row in span.wanted]
        logits[:, self._never] = BANNED
        for row, place in enumerate(places):
            if 0 <= place < len(self._script):
                logits[row, self._script[place]] = SAID
        return Output(logits, output.hidden)


def main() -> None:
    given = parse()
    if given.plot:
        plots.require()
    llm = load(given)
    runs = Modes(llm, sampling(given))
    runs.warm_up([PLAIN, given.mode])
    source = given.file.read_text(encoding="utf-8")
    prompt = llm.chat_prompt([{"role": "user", "content": ASK.format(file=source)}])
    if not given.unled:
        runs.sampling = lead(llm, prompt, source, given)
    watch = Watch(llm.engine)
    trial, steps = Trial("shift"), dict[str, list[list[Step]]]()
    for turn in range(given.repeat):
        for mode in (PLAIN, given.mode) if turn % 2 == 0 else (given.mode, PLAIN):
            progress(f"round {turn + 1} of {given.repeat}: {mode.name}")
            runs.unlearn(mode)
            watch.take()
            prediction = source if given.prediction else None
            trial.done[mode.name].append(runs.run(mode, prompt, prediction=prediction))
            steps.setdefault(mode.name, []).append([step for step in watch.take() if step.decodes])
    progress("")
    result = summarise(given, llm, trial, steps, source) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)
    if given.plot:
        plot(given.plot, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=2400, prompts=False)
    parser.add_argument("--mode", type=one, default=AUTO, help="what is held against plain; default: auto")
    parser.add_argument("--repeat", type=int, default=1, help="rounds; each decodes the answer once in both ways")
    parser.add_argument("--free", type=int, default=100, help="tokens before and after the copy")
    parser.add_argument("--unled", action="store_true", help="only ask the model, for up to --max-tokens")
    parser.add_argument("--file", type=Path, default=FILE, help="what is to be repeated")
    parser.add_argument("--prediction", action="store_true", help="give the file as prediction")
    parser.add_argument("--plot", type=Path, help="lengths and tokens/s by position, .svg or .png")
    return parser.parse_args()


def lead(llm: LLM, prompt: Sequence[int], source: str, given: Any) -> SamplingParams:
    """Let the target be led, and return how it is to be sampled."""
    engine = llm.engine
    script = llm.tokenizer.encode(f"\n\n{FENCE}python\n{source}{FENCE}\n\n")
    never = llm.chosen.target.eos_ids
    engine.target = Led(engine.target, len(prompt) + given.free, script, never)
    return sampling(given, max_tokens=2 * given.free + len(script))


def find_phases(pieces: Sequence[bytes]) -> Phases:
    """Find the code block in the bytes of an answer's tokens."""
    text = b"".join(pieces)
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)

    def token_at(place: int) -> int:
        return next((i for i, end in enumerate(ends) if end > place), len(pieces))

    fence = FENCE.encode()
    opens = text.find(fence)
    if opens < 0:
        return Phases(len(pieces), len(pieces), len(pieces))
    first_line = text.find(b"\n", opens)
    closes = text.find(fence, first_line) if first_line >= 0 else -1
    begin = token_at(first_line + 1) if first_line >= 0 else len(pieces)
    return Phases(begin, len(pieces) if closes < 0 else max(begin, token_at(closes)), len(pieces))


def within(steps: Sequence[Step], phases: Phases, phase: str) -> list[Step]:
    """Return the steps that begin in a phase."""
    low, high = phases.bounds(phase)
    return [step for step in steps if low <= step.parts[0].position < high]


def until_most(steps: Sequence[Step], most: int) -> int | None:
    """Return how many steps it takes until one verifies the most or one less, that one counted; None if none does."""
    return next((i for i, step in enumerate(steps, 1) if step.verified >= most - 1), None)


def until_calm(steps: Sequence[Step]) -> int | None:
    """Return after how many steps CALM in a row verify QUIET tokens or fewer each; None if they never do."""
    quiet = [step.verified <= QUIET for step in steps]
    return next((i for i in range(len(quiet) - CALM + 1) if all(quiet[i : i + CALM])), None)


def seconds(steps: Sequence[Step]) -> float:
    """Return the time of a token."""
    return sum(step.seconds for step in steps) / max(1, sum(step.committed for step in steps))


def summarise(given: Any, llm: Any, trial: Trial, steps: dict[str, list[list[Step]]], source: str) -> dict[str, Any]:
    name, done = given.mode.name, trial.done[given.mode.name][-1]
    phases = find_phases([llm.tokenizer.token_bytes(token) for token in done.token_ids])
    rows = []
    for phase in PHASES:
        mine = [within(each, phases, phase) for each in steps[name]]
        plain = [within(each, phases, phase) for each in steps[PLAIN.name]]
        low, high = phases.bounds(phase)
        row: dict[str, Any] = {"phase": phase, "begin": low, "end": high}
        if high > low and all(mine) and all(plain):
            row |= geometric([seconds(p) / seconds(m) for p, m in zip(plain, mine, strict=True)])
            row |= {
                "tokens_per_s": 1 / statistics.fmean(map(seconds, mine)),
                "plain_tokens_per_s": 1 / statistics.fmean(map(seconds, plain)),
                "verified_a_step": statistics.fmean(step.verified for each in mine for step in each),
                "committed_a_step": statistics.fmean(step.committed for each in mine for step in each),
            }
        rows.append(row)
    copies = [within(each, phases, "copy") for each in steps[name]]
    afters = [within(each, phases, "after") for each in steps[name]]
    return {
        "mode": name,
        "most": given.max_draft,
        "phases": rows,
        "rounds_until_most": [until_most(each, given.max_draft) for each in copies],
        "rounds_until_calm": [until_calm(each) for each in afters],
        "whole_file": source.strip() in done.text,
        "lines": len(source.splitlines()),
        "finish_reason": done.finish_reason,
        "text": done.text,
        "text_identical": trial.is_same(name),
        "ratio": trial.ratio(name),
        "reasons": {str(code): n for code, n in done.speculation.reasons.items()},
        "draft_ms": {each: counts.draft_ms for each, counts in done.speculation.by_drafter.items()},
        "trace": [
            [s.parts[0].position, s.parts[0].drafted, s.verified, s.committed, round(s.seconds * 1e3, 2)]
            for s in steps[name][-1]
        ],
        "plain_trace": [[s.parts[0].position, round(s.seconds * 1e3, 2)] for s in steps[PLAIN.name][-1]],
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'phase':7} {'tokens':>12} {'verified':>8} {'committed':>9} {'tok/s':>6} {'plain':>6} {'ratio':>6}")
    for row in result["phases"]:
        if "ratio" not in row:
            print(f"{row['phase']:7} {row['begin']:5} – {row['end']:4}  nothing to measure")
            continue
        print(
            f"{row['phase']:7} {row['begin']:5} – {row['end']:4} {row['verified_a_step']:8.2f} "
            f"{row['committed_a_step']:9.2f} {row['tokens_per_s']:6.1f} {row['plain_tokens_per_s']:6.1f} "
            f"{row['ratio']:6.2f}"
        )
    print(f"the file of {result['lines']} lines stands whole in the answer: {'yes' if result['whole_file'] else 'NO'}")
    print(
        f"same text, token for token: {'yes' if result['text_identical'] else 'NO'}; whole answer {result['ratio']:.2f}"
    )
    most = ", ".join("never" if n is None else str(n) for n in result["rounds_until_most"])
    calm = ", ".join("never" if n is None else str(n) for n in result["rounds_until_calm"])
    print(f"steps into the copy until {result['most'] - 1} tokens were verified: {most} (wanted: at most {ROUNDS})")
    print(f"steps after the copy until {QUIET} or fewer were, {CALM} times in a row: {calm}")
    print(f"reasons: {result['reasons'] or 'none'}; drafting, ms: {result['draft_ms']}")


def smoothed(points: Sequence[tuple[int, int, float]]) -> tuple[list[int], list[float]]:
    """Return positions, and the tokens/s of the last WIDTH tokens there; a point is (position, committed, ms)."""
    places, speeds, window = [], [], list[tuple[int, float]]()
    for position, committed, ms in points:
        window.append((committed, ms))
        while sum(count for count, _ in window[1:]) >= WIDTH:
            window.pop(0)
        places.append(position)
        speeds.append(1e3 * sum(count for count, _ in window) / sum(ms for _, ms in window))
    return places, speeds


def plot(path: Path, result: dict[str, Any]) -> None:
    trace = result["trace"]
    with plots.drawing(path, "Free text, a file repeated verbatim, free text", 2) as (lengths, speed):
        lengths.step([t[0] for t in trace], [t[2] for t in trace], where="post", lw=0.8, label="verified")
        lengths.plot([t[0] for t in trace], [t[3] - 1 for t in trace], ".", ms=3, label="accepted")
        lengths.set_ylabel("drafted tokens of a step")
        speed.plot(*smoothed([(t[0], t[3], t[4]) for t in trace]), label=result["mode"])
        speed.plot(*smoothed([(t[0], 1, t[1]) for t in result["plain_trace"]]), label="plain")
        speed.set(ylabel=f"tokens/s, mean of {WIDTH}", xlabel="token of the answer")
        for axis in (lengths, speed):
            for row in result["phases"][1:]:
                axis.axvline(row["begin"], color="grey", ls=":")
            axis.legend()


if __name__ == "__main__":
    main()
