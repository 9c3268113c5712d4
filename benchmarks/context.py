"""Long contexts: what is verified, and the ratio to plain decoding, by the length of the prompt.

    python benchmarks/context.py --model demo --lengths 512,1024,2048
    python benchmarks/context.py --model TARGET.gguf --draft DRAFTER.gguf --json out/context.json

The prompts are minutes of made-up meetings, as many as fit the length, and a question after them: one whose answer
stands in them word for word, one that asks for a table of them, and one that has little to do with them. All questions
and modes share what the target has read of the minutes, through its prefix cache, and only decoding is timed. The draft
model shares nothing: it reads the minutes anew for each answer for which the governor lets it draft, and that time is
in the answer's (its column: all that the draft model took, in ms an answer).

Each question is decoded plainly, in every mode, and plainly again; --repeat times, in turning order. The governor of
each mode begins anew with each length, so that what it learnt on short texts does not help it on long ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import geometric, progress, provenance, write_json
from modes import AUTO, PLAIN, Mode, Modes, arguments, listed, load, sampling
from trials import ALL, Trial, cell

BOUND = 0.98
PLACES = ("the harbour", "the mill", "the old school", "the market hall", "the bridge", "the library", "the lido")
MATTERS = (
    "a new roof",
    "better lamps",
    "a second door",
    "more benches",
    "a cycle stand",
    "quieter pumps",
    "clean gutters",
)
PEOPLE = ("Ms Arden", "Mr Boyle", "Ms Castle", "Mr Dunmore", "Ms Ellery", "Mr Farrow", "Ms Gray", "Mr Hale")
OPINIONS = (
    "said that the money would be better spent on {place}",
    "asked for three more offers before anything is signed",
    "wanted it done before the winter",
    "doubted that the figures of last year still hold",
    "offered to speak to the builders of {place}",
    "reminded everybody that {matter} had been promised twice",
    "proposed to wait for the report of the engineer",
)
QUESTIONS = {
    "quote": "Repeat the whole of minute {number}, word for word, and nothing else.",
    "table": "List minutes {number} to {last} as a table: minute, place, matter, cost; one row for each.",
    "free": "What makes a meeting of a town council fruitful? Write a short essay that does not mention these minutes.",
}


def minute(number: int) -> str:
    """Return one made-up minute, always the same for the same number."""
    rng = np.random.default_rng(number)

    def pick(options: Sequence[str]) -> str:
        return options[rng.integers(len(options))]

    place, matter, cost = pick(PLACES), pick(MATTERS), int(rng.integers(8, 400)) * 50
    first, second = rng.choice(len(PEOPLE), 2, replace=False)
    said = (pick(OPINIONS).format(place=pick(PLACES), matter=pick(MATTERS)) for _ in range(2))
    votes = int(rng.integers(3, 15))
    return (
        f"Minute {number}. On {matter} for {place}, at a cost of {cost} crowns: {PEOPLE[first]} {next(said)}; "
        f"{PEOPLE[second]} {next(said)}. {votes} were in favour and {15 - votes} were not, so it was "
        f"{'agreed' if votes > 7 else 'put off'}.\n"
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt of about so many tokens."""

    length: int
    question: str
    prompt: list[int]


def prompts(tell: Callable[[str], list[int]], length: int) -> list[Asked]:
    """Return a prompt for each question, with as many minutes as fit."""
    count = most(lambda minutes: len(tell(text("free", minutes))) <= length)
    return [Asked(length, name, tell(text(name, count))) for name in QUESTIONS]


def most(fits: Callable[[int], bool]) -> int:
    """Return the greatest number that fits, 1 at least, by doubling and halving."""
    count, more = 1, 1
    while fits(count + more):
        count, more = count + more, 2 * more
    while more := more // 2:
        count += more * fits(count + more)
    return count


def text(question: str, count: int) -> str:
    """Return the minutes and a question about some in their middle."""
    number = max(1, count // 2)
    asked = QUESTIONS[question].format(number=number, last=min(count, number + 5))
    return "".join(map(minute, range(1, count + 1))) + "\n" + asked


def main() -> None:
    given = parse()
    llm = load(given, sequences=1, context=max(given.lengths) + given.max_tokens + 64)
    runs = Modes(llm, sampling(given, ignore_eos=True))
    runs.warm_up([PLAIN, *given.modes])
    trials: dict[int, list[Trial]] = {}
    for length in given.lengths:
        for mode in given.modes:
            runs.unlearn(mode)
        asked = prompts(lambda words: llm.chat_prompt([{"role": "user", "content": words}]), length)
        trials[length] = [measure(runs, each, given, i) for i, each in enumerate(asked)]
    progress("")
    result = summarise(trials, given.modes) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=64, prompts=False)
    whole = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--lengths", type=whole, default=(512, 1024, 2048, 4096, 8000), help="tokens of the prompts")
    parser.add_argument("--modes", type=listed, default=(AUTO,), help="what is held against plain; default: auto")
    parser.add_argument("--repeat", type=int, default=1)
    return parser.parse_args()


def measure(runs: Modes, asked: Asked, given: Any, turn: int) -> Trial:
    trial = Trial(asked.question)
    for again in range(given.repeat):
        at = (turn + again) % len(given.modes)
        for mode in (PLAIN, *given.modes[at:], *given.modes[:at], PLAIN):
            progress(f"{asked.length} tokens, {asked.question}: {mode.name}")
            trial.done[mode.name].append(runs.run(mode, asked.prompt))
    return trial


def summarise(trials: dict[int, list[Trial]], modes: Sequence[Mode]) -> dict[str, Any]:
    cells = [row(length, mode.name, group) for length, group in trials.items() for mode in (PLAIN, *modes)]
    everything = [trial for group in trials.values() for trial in group]
    return {
        "cells": cells,
        "all": {mode.name: geometric([trial.ratio(mode.name) for trial in everything]) for mode in modes},
        "text_identical": sum(trial.is_same(mode.name) for trial in everything for mode in modes),
        "texts": len(everything) * len(modes),
        "holds": all(c["ratio"] >= BOUND for c in cells),
    }


def row(length: int, mode: str, group: Sequence[Trial]) -> dict[str, Any]:
    """Return a bucket's cell, with the ratio of each question and the draft model's time an answer."""
    done = [each for trial in group for each in trial.done[mode]]
    spent = Counter[str]()
    for each in done:
        spent.update({name: counts.draft_ms for name, counts in each.speculation.by_drafter.items()})
    return cell(ALL, mode, group) | {
        "length": length,
        "prompt_tokens": sum(each.prompt_tokens for each in done) / len(done),
        "by_question": {trial.category: trial.ratio(mode) for trial in group},
        "draft_ms_an_answer": {name: ms / len(done) for name, ms in spent.items()},
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'prompt':>6} {'mode':8} {'tok/s':>6} {'ratio':>6} {'95 % interval':>15} {'verified':>8} {'τ':>5}", end=" ")
    print(f"{'model':>8}  ratio by question; reasons (steps)")
    for c in result["cells"]:
        asked = ", ".join(f"{name} {ratio:.2f}" for name, ratio in c["by_question"].items())
        reasons = ", ".join(f"{code} {n}" for code, n in sorted(c["reasons"].items(), key=lambda item: -item[1]))
        print(
            f"{c['prompt_tokens']:6.0f} {c['mode']:8} {c['tokens_per_s']:6.1f} {c['ratio']:6.3f} {c['low']:7.3f} – "
            f"{c['high']:5.3f} {c['verified_a_step']:8.2f} {c['acceptance_length']:5.2f} "
            f"{c['draft_ms_an_answer'].get('model', 0.0):8.1f}  {asked}; {reasons or 'none'}"
        )
    print(f"same text as plain, token for token: {result['text_identical']} of {result['texts']}")
    print(f"at least {BOUND} of plain at every length: {'holds' if result['holds'] else 'DOES NOT HOLD'}")


if __name__ == "__main__":
    main()
