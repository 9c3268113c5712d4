"""What each form of weights, head and keys costs in quality, and what a pass of it takes.

    python benchmarks/weights.py --model MODEL.gguf --tokens 2000 --json out/weights.json
    python benchmarks/weights.py --model demo --presets fp32 int8 int8/kv=u8

A preset is the form of the weights, and after slashes that of the head and of keys and values. The first is what the
others are held against. The text is this project's own, its prose and its code, cut into windows of 512 tokens, each
read from its beginning. Passes are timed in turns, a pass of each preset after the other, at a context of 256 tokens.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from common import progress, provenance, write_json
from numpy.typing import NDArray

from paceline.models.load import Model, load
from paceline.models.source import resolve
from paceline.runners.base import Span
from paceline.runners.openvino.quantise import PRECISIONS, HeadForm, KVForm, Precision, packed_bytes
from paceline.runners.openvino.runner import OpenVINORunner

HERE = Path(__file__).parent
CORPUS = ("docs/*.md", "benchmarks/prompts.jsonl", "src/paceline/**/*.py")
PRESETS = ("bf16", "int8", "int4", "int4/head=int4", "int4/kv=u8")
ROWS = (1, 4, 8, 16)
WINDOW, CHUNK, CONTEXT = 512, 128, 256

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    weights: Precision
    head: HeadForm | None = None
    kv: KVForm = "f16"

    @classmethod
    def parse(cls, text: str) -> Preset:
        weights, *others = text.split("/")
        given = dict(other.split("=", 1) for other in others if "=" in other)
        fine = weights in PRECISIONS and len(given) == len(others) and given.keys() <= {"head", "kv"}
        fine = fine and given.get("head", "int8") in get_args(HeadForm) and given.get("kv", "f16") in get_args(KVForm)
        if not fine:
            raise argparse.ArgumentTypeError(f"{text!r}; a preset is {'|'.join(PRECISIONS)}[/head=int4|int8][/kv=u8]")
        return cls(text, weights, **given)  # type: ignore[arg-type]

    def open(self, model: Model) -> OpenVINORunner:
        assert model.checkpoint is not None
        runner = OpenVINORunner(model.checkpoint, self.weights, head=self.head, kv=self.kv)
        runner.allocate(WINDOW // runner.info.block_size)
        return runner


@dataclass(slots=True)
class Quality:
    """Sums over positions."""

    positions: int = 0
    loss: float = 0.0
    kl: float = 0.0
    same: int = 0
    worst: list[float] = field(default_factory=list)

    def add(self, logs: Floats, base: Floats, truth: Ints) -> None:
        """Count log-probabilities [positions, vocabulary] against those of the reference."""
        each = np.einsum("pv,pv->p", np.exp(base), base - logs)
        self.positions += len(truth)
        self.loss -= float(logs[np.arange(len(truth)), truth].sum())
        self.kl += float(each.sum())
        self.same += int((logs.argmax(1) == base.argmax(1)).sum())
        self.worst.append(float(each.max()))

    def summary(self) -> dict[str, float]:
        nats = self.loss / self.positions
        return {
            "nats": nats,
            "perplexity": math.exp(nats),
            "kl": self.kl / self.positions,
            "worst_kl": max(self.worst),
            "same_top": self.same / self.positions,
        }


def main() -> None:
    given = parse()
    model = load(resolve(given.model))
    text = windows(model, given.tokens)
    base = answers(given.presets[0], given.presets[0].open(model), text)
    runners, cells = {}, {}
    for preset in given.presets:
        runners[preset.name] = runner = preset.open(model)
        cells[preset.name] = size(model, preset, runner) | quality(preset, runner, text, base)
        if preset == given.presets[0] and not given.time_reference:
            del runners[preset.name], runner
    for name, seconds in times(runners, text[0], given.rounds).items():
        cells[name]["milliseconds"] = seconds
    progress("")
    result = {"model": Path(given.model).name, "positions": sum(len(w) - 1 for w in text), "presets": cells}
    show(result)
    write_json(given.json, result | {"provenance": provenance()})


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--presets", nargs="+", type=Preset.parse, default=[Preset.parse(text) for text in PRESETS])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=20, help="passes of each preset and number of rows")
    parser.add_argument("--time-reference", action="store_true", help="time the first preset, too, beside the others")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def windows(model: Model, tokens: int) -> list[Ints]:
    """Return windows spread evenly over the corpus."""
    found = sorted(path for pattern in CORPUS for path in HERE.parent.glob(pattern))
    ids = np.array(model.tokenizer.encode("\n".join(path.read_text(encoding="utf-8") for path in found)), np.int64)
    count = max(1, tokens // WINDOW)
    starts = np.linspace(0, len(ids) - WINDOW, count).astype(int)
    return [ids[start : start + WINDOW] for start in starts]


def logs_of(runner: OpenVINORunner, window: Ints) -> Iterator[Floats]:
    """Yield the log-probabilities of every row, a chunk at a time."""
    blocks = np.arange(WINDOW // runner.info.block_size, dtype=np.int32)
    for begin in range(0, len(window), CHUNK):
        rows = window[begin : begin + CHUNK]
        logits = runner.forward([Span.causal(rows, begin, blocks, range(len(rows)))]).logits
        shifted = logits - logits.max(1, keepdims=True)
        yield shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def answers(preset: Preset, runner: OpenVINORunner, text: Sequence[Ints]) -> list[list[Floats]]:
    kept = []
    for i, window in enumerate(text):
        progress(f"reference {preset.name}: window {i + 1} of {len(text)}")
        kept.append(list(logs_of(runner, window)))
    return kept


def quality(
    preset: Preset, runner: OpenVINORunner, text: Sequence[Ints], base: Sequence[Sequence[Floats]]
) -> dict[str, float]:
    found = Quality()
    for i, window in enumerate(text):
        progress(f"{preset.name}: window {i + 1} of {len(text)}")
        for part, (logs, known) in enumerate(zip(logs_of(runner, window), base[i], strict=True)):
            truth = window[part * CHUNK + 1 : (part + 1) * CHUNK + 1]  # none follows the last row
            found.add(logs[: len(truth)], known[: len(truth)], truth)
    return found.summary()


def size(model: Model, preset: Preset, runner: OpenVINORunner) -> dict[str, Any]:
    assert model.checkpoint is not None
    return {
        "packed_bytes": packed_bytes(model.checkpoint.config, preset.weights, preset.head),
        "kv_bytes_a_token": runner.info.block_bytes // runner.info.block_size,
    }


def times(runners: dict[str, OpenVINORunner], window: Ints, rounds: int) -> dict[str, dict[int, float]]:
    """Return medians in milliseconds by the number of rows; the first round warms up."""
    blocks = np.arange(WINDOW // 32, dtype=np.int32)
    for runner in runners.values():
        runner.forward([Span.causal(window[:CONTEXT], 0, blocks, [])])
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    for rows in ROWS:
        for i in range(rounds + 1):
            progress(f"passes of {rows} rows: {i} of {rounds}")
            for name, runner in runners.items():
                span = Span.causal(window[CONTEXT : CONTEXT + rows], CONTEXT, blocks, range(rows), stepwise=True)
                begin = time.perf_counter()
                runner.forward([span])
                if i:
                    taken[name, rows].append(1000 * (time.perf_counter() - begin))
    return {name: {rows: statistics.median(taken[name, rows]) for rows in ROWS} for name in runners}


def show(result: dict[str, Any]) -> None:
    print(f"{result['model']}, {result['positions']} positions; ms a pass of {', '.join(map(str, ROWS))} rows")
    print(f"{'preset':24} {'MiB':>6} {'KV B':>7} {'nats':>8} {'ppl':>8} {'KL':>8} {'worst':>7} {'same':>6}  ms")
    for name, cell in result["presets"].items():
        ms = " ".join(f"{cell['milliseconds'][rows]:6.1f}" for rows in ROWS) if "milliseconds" in cell else "-"
        print(
            f"{name:24} {cell['packed_bytes'] / 2**20:6.0f} {cell['kv_bytes_a_token']:7d} {cell['nats']:8.4f} "
            f"{cell['perplexity']:8.4f} {cell['kl']:8.5f} {cell['worst_kl']:7.3f} {cell['same_top']:6.1%}  {ms}"
        )


if __name__ == "__main__":
    main()
