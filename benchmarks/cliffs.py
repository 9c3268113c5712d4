"""Cost curves injected into the runner: are the governor's lengths the best ones that each curve allows?

    python benchmarks/cliffs.py
    python benchmarks/cliffs.py --chances 0.7,0.9 --curves cliff --json out/cliffs.json --plot out/cliffs.svg

The target is a toy whose passes wait until they have taken what the curve says: `cliff`, 2 rows and more cost five
times one row; `linear`, each row costs as much; `flat`, rows are free; `stairs`, every fourth row costs. The drafter is
right with a known chance at every position, independently, and says so; with a cost, each of its tokens waits as well.
So the tokens and the time of a step of each length are known, and with them the best length. What the governor chose is
read from the steps after the first --settle tokens: the median of their lengths, plain steps apart, which it makes now
and then on purpose; or 0 where most are plain. It holds if that is within one of the best, or loses less than 1 %
against it (where the choice hardly matters), and if on the cliff none of 1 to 3 is ever chosen. The end of an answer,
where no room is left, is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plots
from common import progress, provenance, write_json
from modes import AUTO, arguments
from watch import Step, Watch

from paceline import SamplingParams
from paceline.bench.wrapped import Wrapped
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import Request
from paceline.drafters.base import Seen, SequenceView
from paceline.engine.drafting import DraftDesk
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Scheduler
from paceline.engine.text import TextStream
from paceline.governor.adaptive import Adaptive
from paceline.governor.costs import Costs
from paceline.models import toy
from paceline.runners.base import Output, Span, Want
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner

Curve = Callable[[int], float]
CURVES: dict[str, Curve] = {
    "cliff": lambda rows: 1.0 if rows <= 1 else 5.0,
    "linear": float,
    "flat": lambda rows: 1.0,
    "stairs": lambda rows: 1.0 + 0.5 * ((rows - 1) // 4),
}
CLOSE = 0.01
"""Share of the best pace by which a length may fall behind and still count as the best."""
PROMPT = (1, 2, 3)
LAW, CONTEXT = toy.LAWS["ngram"], 2048
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def wait(until: float) -> None:
    """Sleep most of the time, then spin: a sleep ends late."""
    while (left := until - time.perf_counter()) > 0:
        if left > 1e-3:
            time.sleep(left - 1e-3)


class Curved(Wrapped):
    """A runner whose passes take what a curve says, in units of so many seconds."""

    def __init__(self, inner: ToyRunner, curve: Curve, unit: float) -> None:
        super().__init__(inner)
        self._curve, self._unit = curve, unit

    def forward(self, spans: Sequence[Span], want: Want = Want()) -> Output:
        start = time.perf_counter()
        output = self._inner.forward(spans, want)
        wait(start + self._unit * self._curve(sum(len(span.tokens) for span in spans)))
        return output


@dataclass
class Known:
    """Right with a known chance at every position; `text` is what the target says."""

    chance: float
    seconds: float
    vocabulary: int
    text: tuple[int, ...] = ()
    name = "model"

    def begin(self, seq: SequenceView) -> None:
        pass

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        start = time.perf_counter()
        drafts = [self._draft(len(seq.tokens), limit) for seq, limit in zip(seqs, limits, strict=True)]
        wait(start + self.seconds * max(map(len, drafts), default=0))
        return drafts

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass

    def end(self, seq: SequenceView) -> None:
        pass

    def _draft(self, begin: int, limit: int) -> Draft:
        at = begin - len(PROMPT)
        tokens = [self._guess(place) for place in range(at, min(at + limit, len(self.text)))]
        return Draft.chain(tokens, self.name, [self.chance] * len(tokens)) if tokens else EMPTY

    def _guess(self, place: int) -> int:
        right = np.random.default_rng(place).random() < self.chance
        return self.text[place] if right else (self.text[place] + 1) % self.vocabulary


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one cell. Costs in passes of one row."""

    curve: str
    chance: float
    draft: float
    other: float
    most: int

    def pace(self, length: int) -> float:
        """Return tokens for the time of one pass of one row, if every step drafts so many."""
        tokens = sum(self.chance**i for i in range(length + 1))
        return tokens / (CURVES[self.curve](1 + length) + self.other + length * self.draft)

    @property
    def best(self) -> int:
        return max(range(self.most + 1), key=self.pace)

    def is_best(self, length: int) -> bool:
        return abs(length - self.best) <= 1 or self.pace(length) >= (1 - CLOSE) * self.pace(self.best)


def main() -> None:
    given = parse()
    if given.plot:
        plots.require()
    cells = []
    for curve in given.curves:
        for draft in given.drafts:
            for chance in given.chances:
                progress(f"{curve}, right {chance}, a drafted token {draft}")
                cells.append(measure(given, curve, chance, draft))
    progress("")
    result = {"cells": cells, "holds": all(c["holds"] for c in cells), "provenance": provenance()}
    show(result)
    write_json(given.json, result)
    if given.plot:
        plot(given.plot, cells, given.max_draft)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=400, prompts=False)
    floats = lambda text: tuple(map(float, text.split(",")))  # noqa: E731
    parser.add_argument("--curves", type=lambda text: text.split(","), default=[*CURVES], help=f"of {','.join(CURVES)}")
    parser.add_argument("--chances", type=floats, default=(0.3, 0.6, 0.8, 0.9, 0.95), help="of a guess to be right")
    parser.add_argument("--drafts", type=floats, default=(0.0, 0.1), help="cost of a drafted token, in passes of 1 row")
    parser.add_argument("--unit", type=float, default=5.0, help="ms of a pass of one row")
    parser.add_argument("--settle", type=int, default=150, help="tokens before what is chosen counts")
    parser.add_argument("--plot", type=Path, help="chosen against best lengths, .svg or .png")
    return parser.parse_args()


def measure(given: Any, curve: str, chance: float, draft: float) -> dict[str, Any]:
    """Decode one answer and hold the lengths that were chosen against the best one."""
    unit = given.unit / 1e3
    drafter = Known(chance, draft * unit, toy.VOCAB_SIZE)
    engine = built(given, Curved(ToyRunner(LAW, context=CONTEXT), CURVES[curve], unit), drafter)
    drafter.text = plainly(given.max_tokens)
    watch = Watch(engine)
    engine.add(Request(PROMPT, SamplingParams(max_tokens=given.max_tokens, ignore_eos=True), AUTO.params))
    said: list[int] = []
    while not engine.idle:
        said += [token for event in engine.step() for token in event.token_ids]
    steps = [step for step in watch.take() if step.decodes]
    took = sum(step.seconds - step.draft_s for step in steps)
    ran = sum(CURVES[curve](1 + step.verified) for step in steps)
    other = max(0.0, (took / unit - ran) / len(steps))
    setting = Setting(curve, chance, draft, other, given.max_draft)
    settled = [s for s in steps if given.settle <= s.parts[0].position < given.max_tokens - given.max_draft - 1]
    return judged(setting, settled) | {"text_identical": tuple(said) == drafter.text}


def judged(setting: Setting, steps: Sequence[Step]) -> dict[str, Any]:
    """Return what was chosen and whether it is what should have been."""
    lengths = Counter(step.verified for step in steps)
    chosen = usual(lengths)
    forbidden = sum(lengths[n] for n in (1, 2, 3)) if setting.curve == "cliff" else 0
    return {
        **asdict(setting),
        "best": setting.best,
        "chosen": chosen,
        "lengths": {str(n): count for n, count in sorted(lengths.items())},
        "on_the_cliff": forbidden,
        "pace_of_chosen": setting.pace(chosen) / setting.pace(setting.best),
        "holds": setting.is_best(chosen) and not forbidden,
    }


def usual(lengths: Counter[int]) -> int:
    """Return the median of those above 0, or 0 where most are."""
    drafted = sorted(lengths - Counter({0: lengths[0]}), key=int)
    there = [n for n in drafted for _ in range(lengths[n])]
    return int(statistics.median_low(there)) if 2 * len(there) > sum(lengths.values()) else 0


def plainly(count: int) -> tuple[int, ...]:
    """Return what the target says, one token at a time."""
    text = list(PROMPT)
    while len(text) < len(PROMPT) + count:
        text.append(int(LAW.logits(text).argmax()))
    return tuple(text[len(PROMPT) :])


def built(given: Any, runner: Curved, drafter: Known) -> Engine:
    """Return an engine whose costs were measured at start, as they ever are."""
    pool = Pool(CONTEXT // runner.info.block_size, runner.info.block_size, runner.move)
    runner.allocate(pool.num_blocks)
    tokenizer = toy.tokenizer()
    return Engine(
        target=runner,
        pool=pool,
        scheduler=Scheduler(pool, 1, 256),
        desk=DraftDesk({"model": drafter}, runner.info),
        governor=Adaptive(given.max_draft, measured(runner, pool, drafter, given.max_draft), ("model",)),
        text=lambda request: TextStream(tokenizer, request),
    )


def measured(runner: Curved, pool: Pool, drafter: Known, most: int) -> Costs:
    costs, table = Costs(), np.arange(pool.num_blocks, dtype=np.int32)
    for rows in sorted({*ROWS, most + 1}):
        for _ in range(2):
            start = time.perf_counter()
            runner.forward([Span.causal([0] * rows, 0, table, range(rows), stepwise=True)])
            costs.learn(rows, time.perf_counter() - start)
    costs.learn_draft("model", 1, max(drafter.seconds, 1e-5))
    return costs


def show(result: dict[str, Any]) -> None:
    print(f"{'curve':8} {'draft':>5} {'chance':>6} {'best':>4} {'chosen':>6} {'pace':>6} {'holds':>5}  lengths (steps)")
    for c in result["cells"]:
        lengths = ", ".join(f"{n} ({count})" for n, count in c["lengths"].items())
        print(
            f"{c['curve']:8} {c['draft']:5.2f} {c['chance']:6.2f} {c['best']:4} {c['chosen']:6} "
            f"{c['pace_of_chosen']:6.3f} {'yes' if c['holds'] else 'NO':>5}  {lengths}"
        )
    same = sum(c["text_identical"] for c in result["cells"])
    print(f"same text as plain, token for token: {same} of {len(result['cells'])}")
    print(
        f"the best length, within one, and never 1 to 3 on the cliff: {'holds' if result['holds'] else 'DOES NOT HOLD'}"
    )
    print("draft: cost of a drafted token in passes of one row; pace: of the chosen length against that of the best")


def plot(path: Path, cells: Sequence[dict[str, Any]], most: int) -> None:
    names = list(dict.fromkeys((c["curve"], c["draft"]) for c in cells))
    with plots.drawing(path, "Lengths chosen, and the best for each curve", len(names)) as axes:
        for axis, (curve, draft) in zip(axes, names, strict=True):
            mine = [c for c in cells if (c["curve"], c["draft"]) == (curve, draft)]
            chances = [c["chance"] for c in mine]
            axis.plot(chances, [c["best"] for c in mine], "k--", label="best")
            axis.plot(chances, [c["chosen"] for c in mine], "o", label="chosen")
            axis.set(ylabel="tokens", ylim=(-0.5, most + 0.5), title=f"{curve}, a drafted token costs {draft}")
            axis.legend()
        axes[-1].set_xlabel("chance of a guess to be right")


if __name__ == "__main__":
    main()
