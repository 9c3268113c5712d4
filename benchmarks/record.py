"""Record what real drafters guess at every position of real answers, for `python -m paceline.bench.simulate`.

    python benchmarks/record.py --model demo --out out/demo.jsonl
    python benchmarks/record.py --model TARGET.gguf --draft DRAFTER.gguf --prompts A.jsonl --per-category 2 --out FILE

Each prompt is decoded plainly, one token a step; at every step each drafter is asked for a whole draft, which is noted
and never verified. The file's format is that of `paceline.bench.recorded`. Its first line says what passes, drafts and
reading took here, measured apart from the decoding. Drafters come to the prompts one after the other, as in a server,
and remember what they do; `recycle` learns from the rows of committed tokens alone, for no others were run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import progress, read_prompts
from modes import Mode, Modes, arguments, load, sampling

from paceline import LLM
from paceline.core import tree
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.governor.base import Drafting
from paceline.governor.fixed import Fixed
from paceline.runners.base import Span

RECORD = Mode.parse("always")
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32)
ROUNDS = 3


class Shadow(Fixed):
    """Asks every drafter for whole drafts, and has none of them verified."""

    def value(self, seq: Drafting, draft: Draft) -> float:
        return 0.0  # so that the others are asked as well

    def trim(self, seqs: Sequence[Drafting], drafts: Sequence[Draft]) -> list[Draft]:
        return [EMPTY] * len(seqs)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a drafter said when so many tokens of the answer were there."""

    position: int
    draft: Draft
    seconds: float


class Recorder:
    """A drafter, and all that it said about the sequence that runs."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.said: list[Asked] = []
        if hasattr(inner, "_least"):  # it drafts on where it would not pay
            inner._least = lambda: 0.0

    def begin(self, seq: SequenceView) -> None:
        self.said = []
        self._inner.begin(seq)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        start = time.perf_counter()
        drafts = self._inner.propose(seqs, limits)
        took = (time.perf_counter() - start) / len(seqs)
        self.said += [Asked(len(s.tokens) - s.prompt_len, d, took) for s, d in zip(seqs, drafts, strict=True)]
        return drafts

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        self._inner.observe(seq, seen)

    def end(self, seq: SequenceView) -> None:
        self._inner.end(seq)


def main() -> None:
    given = parse()
    prompts = read_prompts(given.prompts, given.per_category)
    llm = load(given, max_draft=given.limit)
    costs = measured(llm, given.context)
    runs, recorders = recording(llm, given)
    runs.warm_up([RECORD])
    lines, times, others = [], Times(), []
    for i, row in enumerate(prompts):
        progress(f"{i + 1}/{len(prompts)} {row['category']}")
        done = runs.run(RECORD, row["prompt"])
        others.append(done.speculation.other_ms / 1e3 / done.speculation.steps)
        said = {name: recorder.said for name, recorder in recorders.items()}
        times.add(said, done.prompt_tokens)
        drafts = {name: entries(each, done.token_ids) for name, each in said.items()}
        lines.append({"category": row["category"], "prompt_tokens": done.prompt_tokens, "drafts": drafts})
    progress("")
    costs |= {"other": statistics.median(others)} | times.costs()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in ({"costs": costs}, *lines))
    given.out.write_text(text, encoding="utf-8")
    show(costs, lines)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=80)
    parser.add_argument("--limit", type=int, default=16, help="tokens that a drafter is asked for")
    parser.add_argument("--context", type=int, default=256, help="tokens of context at which passes are measured")
    parser.add_argument("--out", type=Path, required=True, help="the recording")
    return parser.parse_args()


def recording(llm: LLM, given: Any) -> tuple[Modes, dict[str, Recorder]]:
    """Put a recorder in the place of each drafter, and a governor that only asks in that of the engine's."""
    engine = llm.engine
    recorders = {name: Recorder(drafter) for name, drafter in engine.desk.drafters.items()}
    engine.desk.drafters.update(recorders)
    engine.governor = Shadow(given.limit, engine.governor.costs)
    return Modes(llm, sampling(given)), recorders


def entries(said: Sequence[Asked], answer: Sequence[int]) -> list[list[Any] | None]:
    """Return a drafter's list: for each position its branch held against the answer, None where it had no guess."""
    found: list[list[Any] | None] = [None] * len(answer)
    for asked in said:
        if asked.draft and asked.position < len(answer):
            found[asked.position] = entry(best_branch(asked.draft), answer[asked.position :])
    return found


def entry(chain: Draft, rest: Sequence[int]) -> list[Any]:
    """Return [right, length, confidence, wrong] of a chain, given what came."""
    right = next((i for i, token in enumerate(chain.tokens) if i >= len(rest) or token != rest[i]), len(chain))
    sure = [round(confidence, 2) for confidence in chain.confidence]
    found = [right, len(chain), sure[0] if len(set(sure)) == 1 else sure]
    return found if right == len(chain) else [*found, chain.tokens[right]]


def best_branch(draft: Draft) -> Draft:
    """Return the branch of which most nodes are expected to be taken; of equals the first."""
    if draft.is_chain:
        return draft
    hope: list[float] = []
    for survival, parent in zip(tree.survivals(draft), draft.parents, strict=True):
        hope.append(survival + (0.0 if parent == ROOT else hope[parent]))
    return tree.select(draft, tree.path_to(draft.parents, max(range(len(draft)), key=hope.__getitem__)))


class Times:
    """What drafting took."""

    def __init__(self) -> None:
        self._each: dict[str, list[float]] = defaultdict(list)
        self._first: dict[str, list[tuple[float, int, int]]] = defaultdict(list)

    def add(self, said: Mapping[str, Sequence[Asked]], prompt_tokens: int) -> None:
        """Take in one request; a drafter's first draft is the one before which it reads the prompt."""
        for name, (first, *others) in ((name, asked) for name, asked in said.items() if asked):
            self._each[name] += [asked.seconds / depth(asked.draft) for asked in others]
            self._first[name].append((first.seconds, depth(first.draft), prompt_tokens))

    def costs(self) -> dict[str, dict[str, float]]:
        """Return the medians, in seconds, of one drafted token, and of one that is read beforehand."""
        drafts = {name: statistics.median(each) for name, each in self._each.items() if each}
        reading = {
            name: statistics.median(max(0.0, took - n * drafts[name]) / tokens for took, n, tokens in self._first[name])
            for name in drafts
        }
        return {"drafts": drafts, "reading": reading}


def depth(draft: Draft) -> int:
    return max(tree.depths(draft.parents), default=1)


def measured(llm: LLM, context: int) -> dict[str, Any]:
    """Time passes by their rows, in turns, each size twice: the second has no change, which is timed as well."""
    pool, runner = llm.engine.pool, llm.engine.target
    context = min(context, runner.info.context - max(ROWS))
    slot = pool.open([0] * (context + max(ROWS)), shared=0)
    pool.reserve(slot, context + max(ROWS))
    runner.forward([Span.causal([0] * context, 0, slot.table, [])])

    def timed(rows: int) -> float:
        start = time.perf_counter()
        runner.forward([Span.causal([0] * rows, context, slot.table, range(rows), stepwise=True)]).logits.argmax(-1)
        return time.perf_counter() - start

    taken: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for turn in range(ROUNDS + 1):
        for rows in ROWS:
            progress(f"measuring passes of {rows} rows")
            pair = timed(rows), timed(rows)
            if turn:  # the first of its size prepares more than a change does
                taken[rows].append(pair)
    pool.close(slot)
    passes = {rows: statistics.median(kept for _, kept in pairs) for rows, pairs in taken.items()}
    switch = statistics.median(first - kept for pairs in taken.values() for first, kept in pairs)
    return {
        "passes": {str(rows): seconds for rows, seconds in passes.items()},
        "switch": max(0.0, switch) if runner.info.fills_up else 0.0,
    }


def show(costs: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    print("passes, ms:", ", ".join(f"{rows}: {1e3 * s:.1f}" for rows, s in costs["passes"].items()))
    print(f"{'drafter':11} {'had a guess':>11} {'first right':>11} {'right':>6} {'length':>6} {'ms a token':>10}")
    for name in costs["drafts"]:
        said = [each for line in lines for each in line["drafts"][name][1:]]
        there = [each for each in said if each]
        n = max(1, len(there))
        print(
            f"{name:11} {len(there) / max(1, len(said)):11.2f} {sum(e[0] > 0 for e in there) / n:11.2f} "
            f"{sum(e[0] for e in there) / n:6.2f} {sum(e[1] for e in there) / n:6.2f} "
            f"{1e3 * costs['drafts'][name]:10.3f}"
        )


if __name__ == "__main__":
    main()
