"""Draft models that are wrong nearly always, governed, against plain decoding: the ratio must not fall below 0.98.

    python benchmarks/bad_drafters.py --model TARGET.gguf --draft DRAFTER.gguf --json out/bad.json

The draft model runs as ever and takes the time it takes; only what comes of its passes is spoilt:

random    its logits are noise, as of random weights, another for each token and position
shuffled  its head is shuffled: each row of logits is permuted, always in the same way, and is as sure as before
once      its drafts are wrong but for the first token of one in twenty, and as sure as before
real      for comparison, nothing is spoilt; with --only real

Each prompt is decoded plainly before and after each of these. The governor knows what a pass of the
draft model costs and is told nothing of how good it is: it starts anew for each prompt, as at the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import progress, provenance, read_prompts, write_json
from modes import PLAIN, Mode, Modes, arguments, load, sampling
from trials import ALL, Trial, cell

from paceline import SpeculationParams
from paceline.bench.wrapped import Wrapped
from paceline.core.tree import Draft
from paceline.drafters.base import Seen, SequenceView
from paceline.drafters.model import ModelDrafter
from paceline.errors import OptionError
from paceline.runners.base import Output, Runner, Span, Want

BOUND = 0.98
SPOILT = ("random", "shuffled", "once")
NAMES = (*SPOILT, "real")
ONE_IN = 20
TABLE = 64
"""Rows of noise, dealt out by token and position."""

Spoil = Callable[[np.ndarray, Sequence[tuple[int, int]]], np.ndarray]
"""Logits [rows, vocabulary] and each row's token and position -> what is answered."""


class Spoilt(Wrapped):
    """A runner whose passes run, and whose answers are spoilt."""

    def __init__(self, inner: Runner, spoil: Spoil) -> None:
        super().__init__(inner)
        self._spoil = spoil

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        output = self._inner.forward(spans, want)
        places = [(int(s.tokens[row]), int(s.row_positions[row])) for s in spans for row in s.wanted]
        return Output(self._spoil(output.logits, places), output.hidden)


def shuffled(columns: int) -> Spoil:
    order = np.random.default_rng(1).permutation(columns)
    return lambda logits, places: logits[:, order]


def random(columns: int) -> Spoil:
    """Noise that spreads as wide as the logits of a model do."""
    table = np.random.default_rng(2).normal(0, 3, (TABLE, columns)).astype(np.float32)
    return lambda logits, places: table[[(31 * token + position) % TABLE for token, position in places]]


@dataclass
class Once:
    """A drafter whose drafts are made by another and are wrong, but for the first token of one in twenty."""

    inner: ModelDrafter
    vocabulary: int
    text: tuple[int, ...] = ()
    """What the target says."""
    name = "model"

    def begin(self, seq: SequenceView) -> None:
        self.inner.begin(seq)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._spoil(seq, d) for seq, d in zip(seqs, self.inner.propose(seqs, limits), strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        self.inner.observe(seq, seen)

    def end(self, seq: SequenceView) -> None:
        self.inner.end(seq)

    def _spoil(self, seq: SequenceView, draft: Draft) -> Draft:
        at = len(seq.tokens) - seq.prompt_len
        truth = self.text[at : at + len(draft)]
        wrong = [(token + 1) % self.vocabulary for token in truth]
        if wrong and np.random.default_rng(at).random() < 1 / ONE_IN:
            wrong[0] = truth[0]
        return Draft.chain(wrong, self.name, draft.confidence[: len(wrong)])


def main() -> None:
    given = parse()
    rows = read_prompts(given.prompts, 1)[: given.count]
    llm = load(given, drafters=("model",))
    runs = Modes(llm, sampling(given, ignore_eos=True))
    drafters = Drafters(runs)
    runs.warm_up([PLAIN, drafters.mode("real")])
    trials = [measure(runs, drafters, row, given.only, i) for i, row in enumerate(rows)]
    progress("")
    result = summarise(trials, given.only) | {"provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=512)
    parser.add_argument("--count", type=int, default=2, help="prompts, of different categories")
    parser.add_argument("--only", type=lambda names: names.split(","), default=SPOILT, help=f"of {','.join(NAMES)}")
    given = parser.parse_args()
    if not given.draft or set(given.only) - set(NAMES):
        parser.error(f"--draft is needed, and --only names some of {','.join(NAMES)}")
    return given


class Drafters:
    """Puts one of them in the place of the draft model, under its name."""

    def __init__(self, runs: Modes) -> None:
        self._desk = runs.llm.engine.desk
        model = self._desk.drafters["model"]
        if not isinstance(model, ModelDrafter):
            raise OptionError(f"the drafter named model is a {type(model).__name__}; leave it as it is")
        self._model, self._runner = model, model._reader._runner
        columns = len(model._columns)
        self._spoils = {"random": random(columns), "shuffled": shuffled(columns)}
        self.once = Once(model, runs.llm.engine.target.info.vocab_size)

    @staticmethod
    def mode(name: str) -> Mode:
        return Mode(name, SpeculationParams())

    @contextmanager
    def instead(self, name: str) -> Iterator[None]:
        if name in self._spoils:
            self._model._reader._runner = Spoilt(self._runner, self._spoils[name])
        self._desk.drafters["model"] = self.once if name == "once" else self._model
        try:
            yield
        finally:
            self._model._reader._runner = self._runner
            self._desk.drafters["model"] = self._model


def measure(runs: Modes, drafters: Drafters, row: dict[str, str], names: Sequence[str], turn: int) -> Trial:
    trial = Trial(row["category"])
    turn %= len(names)
    order = [each for name in (*names[turn:], *names[:turn]) for each in (PLAIN.name, name)]
    for name in (*order, PLAIN.name):
        progress(f"{row['category']}: {name}")
        mode = PLAIN if name == PLAIN.name else drafters.mode(name)
        runs.unlearn(mode)
        with drafters.instead(name):
            trial.done[name].append(runs.run(mode, row["prompt"]))
        drafters.once.text = trial.done[PLAIN.name][0].token_ids
    return trial


def summarise(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, Any]:
    cells = [cell(ALL, name, trials) | {"worst": min(t.ratio(name) for t in trials)} for name in (PLAIN.name, *names)]
    bad = [c for c in cells if c["mode"] in SPOILT]
    return {
        "cells": cells,
        "by_prompt": [{"category": t.category} | {name: t.ratio(name) for name in names} for t in trials],
        "holds": all(c["ratio"] >= BOUND and c["text_identical"] == len(trials) and c["reasons"] for c in bad),
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'drafter':9} {'tok/s':>6} {'ratio':>6} {'95 % interval':>15} {'worst':>6} {'same text':>9}", end="")
    print(f" {'accepted':>8} {'verified':>8} {'draft':>6}  reasons (steps)")
    for c in result["cells"]:
        reasons = ", ".join(f"{code} {n}" for code, n in sorted(c["reasons"].items(), key=lambda item: -item[1]))
        print(
            f"{c['mode']:9} {c['tokens_per_s']:6.1f} {c['ratio']:6.3f} {c['low']:7.3f} – {c['high']:5.3f} "
            f"{c['worst']:6.3f} {c['text_identical']:6} / {c['prompts']} {c['acceptance_rate']:7.2f} "
            f"{c['verified_a_step']:8.3f} {c['draft_ms_a_step']:6.2f}  {reasons}"
        )
    holds = "holds" if result["holds"] else "DOES NOT HOLD"
    print(f"never below {BOUND} × plain, the same text, the reason named: {holds}")
    print("accepted: of the verified; verified: tokens a step; draft: ms a step")


if __name__ == "__main__":
    main()
