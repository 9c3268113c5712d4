"""Recorded completions through the drafters that need no model: how far each would have got, in seconds.

    python benchmarks/replay.py
    python benchmarks/replay.py FILE.jsonl … --drafters suffix,lookup --limit 8 --json out/replay.json
    python benchmarks/replay.py --record FILE.jsonl --model MODEL --prompts PROMPTS.jsonl

Every draft is walked as greedy verification would walk it, against the text that was recorded: as a tree, and cut to
its best chain. Each drafter runs alone, then all in one tree, whose best nodes by the drafters' own estimates are kept.
Nothing is trimmed by a governor, so coverage is what a drafter offers, not what would be verified. A drafter sees the
completions in the order of the files, all of one model, and keeps what it remembers of them: "first" and "later" are
the acceptance lengths, as trees, of a category's first completion and of those that follow.

A recording has one completion a line: {"category", "prompt_tokens", "output_tokens"}, and maybe "tenant",
"prediction_tokens", and "top": for each output token the likeliest tokens there with their log-probabilities. Recycle
learns from those of the committed path; where they are missing, from the committed tokens alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from common import progress, provenance, read_prompts, write_json

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core import tree
from paceline.core.law import Law
from paceline.core.rows import hosted
from paceline.core.sampling import Shaping
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import Rule, Verdict
from paceline.core.verify import Randomness, coupled
from paceline.drafters import registry
from paceline.drafters.base import Drafter, Seen
from paceline.drafters.registry import Surroundings
from paceline.errors import OptionError
from paceline.runners.base import RunnerInfo

HERE = Path(__file__).parent
FREE = ("suffix", "lookup", "recycle")
ALL = "all"
TOP = 8
"""Tokens a row that are recorded."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One completion; `top` is empty or as long as the output."""

    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    tenant: str = ""
    prediction: tuple[int, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def largest(self) -> int:
        return max(*self.prompt, *self.output, *self.prediction, *(token for row in self.top for token, _ in row))


@dataclass
class View:
    """A recording as far as it has been replayed, as drafters see it."""

    id: int
    recording: Recording
    tokens: list[int] = field(init=False)
    shaping: Shaping = field(init=False)
    noise: Randomness = field(init=False)
    rule: Rule = "coupled"

    def __post_init__(self) -> None:
        self.tokens = list(self.recording.prompt)
        self.noise = Randomness(0)
        self.shaping = Shaping(SamplingParams(), self.recording.prompt)

    @property
    def prompt_len(self) -> int:
        return len(self.recording.prompt)

    @property
    def prediction(self) -> tuple[int, ...]:
        return self.recording.prediction

    @property
    def tenant(self) -> str:
        return self.recording.tenant

    @property
    def rest(self) -> tuple[int, ...]:
        """The tokens to come."""
        return self.recording.output[len(self.tokens) - self.prompt_len :]


@dataclass
class Counts:
    """Of one completion, or the sum of several."""

    steps: int = 0
    committed: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    seconds: float = 0.0
    """Of a core, in the drafters: for all that they are asked and told, their indexes included."""

    def add(self, other: Counts) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def report(self) -> dict[str, float]:
        return {
            "acceptance_length": self.committed / self.steps,
            "coverage": self.drafted / self.committed,
            "hit_rate": self.accepted / self.verified if self.verified else 0.0,
            "us_a_drafted_token": self.seconds / self.drafted * 1e6 if self.drafted else 0.0,
            "us_a_step": self.seconds / self.steps * 1e6,
        }


class Rows:
    """The target's logits as far as they were recorded; the others are -inf. Arrays are used again and again."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._arrays: list[Any] = []
        self._set: list[list[int]] = []

    def of(self, recording: Recording, begin: int, count: int) -> list[Any]:
        """Return the rows that gave `count` output tokens from `begin` on."""
        while len(self._arrays) < count:
            self._arrays.append(np.full(self._vocabulary, -np.inf, np.float32))
            self._set.append([])
        for i in range(count):
            top = recording.top[begin + i] if recording.top else ((recording.output[begin + i], 0.0),)
            self._arrays[i][self._set[i]] = -np.inf
            self._set[i] = [token for token, _ in top]
            self._arrays[i][self._set[i]] = [value for _, value in top]
        return self._arrays[:count]


class Replay:
    """Drafters, and the texts that they are held against."""

    def __init__(self, drafters: Mapping[str, Drafter], limit: int, trees: bool, vocabulary: int) -> None:
        self._drafters, self._limit, self._trees = drafters, limit, trees
        self._rows, self._end = Rows(vocabulary), vocabulary
        self._begun = 0

    def run(self, recording: Recording) -> Counts:
        self._begun += 1
        seq, counts = View(self._begun, recording), Counts()
        self._tell(counts, lambda drafter: drafter.begin(seq))
        while seq.rest:
            self._step(seq, counts)
        self._tell(counts, lambda drafter: drafter.end(seq))
        return counts

    def _step(self, seq: View, counts: Counts) -> None:
        found: list[Draft] = []
        self._tell(counts, lambda drafter: found.extend(drafter.propose([seq], [self._limit])))
        draft = tree.prune(tree.merge(found), self._limit) if len(found) > 1 else found[0]
        verified = draft if self._trees else tree.best_chain(draft)
        rest, begin = seq.rest, len(seq.tokens) - seq.prompt_len
        answers = [Law.point(token) for token in (*rest, self._end)]
        verdict = coupled(verified, lambda _, path: answers[len(path)], seq.noise, len(seq.tokens))
        committed = rest[: len(verdict.path) + 1]
        pending = seq.tokens[-1]
        seq.tokens += committed
        seen = self._seen(seq, pending, begin, committed)
        self._tell(counts, lambda drafter: drafter.observe(seq, seen))
        counts.add(Counts(1, len(committed), len(draft), len(verified), len(verdict.path)))

    def _seen(self, seq: View, pending: int, begin: int, committed: Sequence[int]) -> Seen:
        """What a pass over the accepted path alone would have shown: of other rows nothing was recorded."""
        path, last = committed[:-1], committed[-1]
        draft = Draft.chain(path, "recorded") if path else EMPTY
        rows = hosted(self._rows.of(seq.recording, begin, len(committed)))
        place = seq.prompt_len + begin - 1
        return Seen(place, (pending, *path), draft, Verdict(tuple(range(len(path))), last), rows, {})

    def _tell(self, counts: Counts, what: Any) -> None:
        start = time.thread_time()
        for drafter in self._drafters.values():
            what(drafter)
        counts.seconds += time.thread_time() - start


@dataclass
class Session:
    """All recordings through all drafters."""

    recordings: Sequence[Recording]
    drafters: tuple[str, ...]
    limit: int

    @cached_property
    def vocabulary(self) -> int:
        return 1 + max(recording.largest for recording in self.recordings)

    def run(self) -> Iterator[tuple[str, str, list[Counts]]]:
        """Yield a mode's name, "tree" or "chain", and its counts, one a recording."""
        alone = [(name, (name,)) for name in self.drafters]
        for mode, names in [*alone, (ALL, self.drafters)] if len(alone) > 1 else alone:
            for trees in (True, False):
                progress(f"{mode}, {'trees' if trees else 'chains'}")
                made = registry.make(names, Surroundings(RunnerInfo(self.vocabulary, 1, 2**20, 16, 1)))
                replay = Replay(made, self.limit, trees, self.vocabulary)
                yield mode, "tree" if trees else "chain", [replay.run(recording) for recording in self.recordings]
        progress("")


def summarise(recordings: Sequence[Recording], counts: Sequence[Counts]) -> dict[str, dict[str, float]]:
    """Return for each category, and all, what its counts come to, and the acceptance length of its first and later
    completions."""
    groups: dict[str, list[Counts]] = defaultdict(list)
    for recording, found in zip(recordings, counts, strict=True):
        groups[recording.category].append(found)
    cells = {name: cell(group[:1], group[1:]) for name, group in groups.items()}
    first = [group[0] for group in groups.values()]
    return cells | {ALL: cell(first, [found for group in groups.values() for found in group[1:]])}


def cell(first: Sequence[Counts], later: Sequence[Counts]) -> dict[str, float]:
    total = add_up([*first, *later])
    paces = {name: add_up(group).report() for name, group in (("first", first), ("later", later)) if group}
    return vars(total) | total.report() | {name: report["acceptance_length"] for name, report in paces.items()}


def add_up(group: Sequence[Counts]) -> Counts:
    total = Counts()
    for counts in group:
        total.add(counts)
    return total


def read(paths: Sequence[Path]) -> list[Recording]:
    """Raises OptionError where a line is not a recording."""
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    found.append(recording(json.loads(line)))
                except (ValueError, KeyError, TypeError) as error:
                    raise OptionError(f"{path}:{number} is not a recording ({error}); make one with --record") from None
    if not found:
        raise OptionError("there is no completion in the files; make some with --record")
    return found


def recording(row: Any) -> Recording:
    if not isinstance(row, dict):
        raise TypeError("it is no object")
    top = tuple(tuple((int(token), float(value)) for token, value in ranked) for ranked in row.get("top", ()))
    prompt, output = tuple(map(int, row["prompt_tokens"])), tuple(map(int, row["output_tokens"]))
    if not prompt or not output or len(top) not in (0, len(output)):
        raise ValueError("prompt and output have a token each at least, and top is as long as the output")
    prediction = tuple(map(int, row.get("prediction_tokens", ())))
    found = Recording(str(row["category"]), prompt, output, str(row.get("tenant", "")), prediction, top)
    if min(*prompt, *output, *prediction, *(token for ranked in top for token, _ in ranked)) < 0:
        raise ValueError("tokens are 0 or more")
    return found


def record(llm: LLM, prompts: Sequence[Mapping[str, str]], max_tokens: int, path: Path) -> None:
    """Answer prompts greedily, one at a time, and write a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sampling = SamplingParams(max_tokens=max_tokens, logprobs=TOP)
    with path.open("w", encoding="utf-8") as file:
        for i, prompt in enumerate(prompts):
            progress(f"{i + 1}/{len(prompts)} {prompt['category']}")
            ids = llm.chat_prompt([{"role": "user", "content": prompt["prompt"]}])
            done = llm.generate(ids, sampling, SpeculationParams(mode="off"))[0]
            row = {
                "category": prompt["category"],
                "prompt_tokens": list(ids),
                "output_tokens": list(done.token_ids),
                "top": [[(token, round(value, 2)) for token, value in at.top] for at in done.logprobs],
            }
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    progress("")


def show(mode: str, cells: Mapping[str, Mapping[str, dict[str, float]]]) -> None:
    for category, c in cells["tree"].items():
        chain = cells["chain"][category]
        parts = [f"{c[name]:6.2f}" if name in c else " " * 6 for name in ("first", "later")]
        print(
            f"{mode:11} {category:14} {c['acceptance_length']:6.2f} {chain['acceptance_length']:6.2f} {parts[0]} "
            f"{parts[1]} {c['coverage']:8.2f} {c['hit_rate']:8.2f} {chain['hit_rate']:6.2f}"
            f" {c['us_a_drafted_token']:9.1f} {c['us_a_step']:8.0f}"
        )


def main() -> None:
    given = arguments()
    if given.record:
        record(LLM(given.model), read_prompts(given.prompts), given.max_tokens, given.record)
        return
    recordings = read(given.recordings)
    drafters = given.drafters or (("prediction",) if any(r.prediction for r in recordings) else ()) + FREE
    by_mode: dict[str, dict[str, Any]] = defaultdict(dict)
    for mode, shape, counts in Session(recordings, drafters, given.limit).run():
        by_mode[mode][shape] = summarise(recordings, counts)
    source = "recorded rows" if all(r.top for r in recordings) else "committed tokens where rows were not recorded"
    print(
        f"{len(recordings)} completions, {sum(len(r.output) for r in recordings)} tokens; recycle learns from {source}"
    )
    print(
        f"{'drafter':11} {'category':14} {'τ tree':>6} {'chain':>6} {'first':>6} {'later':>6} {'coverage':>8} "
        f"{'hit tree':>8} {'chain':>6} {'µs/drafted':>9} {'µs/step':>7}"
    )
    for mode, cells in by_mode.items():
        show(mode, cells)
    write_json(given.json, {"modes": by_mode, "limit": given.limit, "provenance": provenance()})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, default=[HERE / "recorded" / "demo.jsonl"])
    parser.add_argument(
        "--drafters", type=lambda names: tuple(names.split(",")), help="default: all that need no model"
    )
    parser.add_argument("--limit", type=int, default=16, help="most nodes of a draft")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a recording instead of replaying")
    parser.add_argument("--model", default="demo", help="of --record")
    parser.add_argument("--prompts", type=Path, nargs="+", default=[HERE / "prompts.jsonl"], help="of --record")
    parser.add_argument("--max-tokens", type=int, default=160, help="of --record")
    return parser.parse_args()


if __name__ == "__main__":
    main()
