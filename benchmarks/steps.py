"""Where a step's time goes, and how near its passes come to what the memory can give.

    python benchmarks/steps.py --model TARGET.gguf --draft DRAFTER.gguf --modes plain,auto --temperatures 0,0.8

Every part of a step is timed around its call, without the parts that it calls. What is left of a step when its forward
passes are taken out is overhead. The bytes of a pass are the weights that it reads, the rows of the head included; the
memory's own speed is that of two threads reading two large arrays at once.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from common import progress, provenance, read_prompts, write_json
from modes import Mode, Modes, arguments, listed, load, sampling
from stopwatch import Stopwatch

import paceline.engine.engine as engine_module
from paceline import LLM
from paceline.engine.engine import Engine
from paceline.models.config import ModelConfig
from paceline.runners.openvino.quantise import HeadForm, Precision, packed_bytes, stored_shapes, tensor_bytes

PARTS = (
    "forward",
    "draft passes",
    "draft loop",
    "other drafters",
    "packing",
    "sampling",
    "cache",
    "governor",
    "scheduler",
    "text",
    "rest",
)
PASSES = ("forward", "draft passes")
_READ = 1 << 30
"""Bytes of each array that is read to know the memory's speed: far beyond any cache."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One mode at one temperature and batch."""

    mode: Mode
    temperature: float
    batch: int

    @property
    def name(self) -> str:
        return f"{self.mode.name}, temperature {self.temperature:g}, batch {self.batch}"


def main() -> None:
    given = parse()
    prompts = [row["prompt"] for row in read_prompts(given.prompts, given.per_category)]
    llm = load(given, sequences=max(given.batches))
    modes, clock = Modes(llm, sampling(given)), Stopwatch()
    modes.warm_up(given.modes)
    attach(clock, llm)
    cells = [Cell(m, t, b) for b in given.batches for t in given.temperatures for m in given.modes]
    found = []
    for cell in cells:
        progress(cell.name)
        found.append(measure(modes, clock, cell, prompts))
    progress("")
    result = {"cells": found, "memory": bandwidth(llm, found), "provenance": provenance()}
    show(result)
    write_json(given.json, result)


def parse() -> Any:
    parser = arguments(__doc__, max_tokens=64)
    parser.add_argument("--modes", type=listed, default=listed("plain,auto"))
    parser.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    return parser.parse_args()


def attach(clock: Stopwatch, llm: LLM) -> None:
    """Let every part of a step be timed."""
    engine = llm.engine
    clock.watch(engine, "step", "rest")
    clock.watch(engine.target, "forward", "packing")
    _watch_passes(clock, engine.target, "forward")
    for name, drafter in engine.desk.drafters.items():
        part = "draft loop" if name == "model" else "other drafters"
        for verb in ("begin", "propose", "observe", "end"):
            clock.watch(drafter, verb, part)
        reader = getattr(drafter, "_reader", None)
        if reader is not None:
            _watch_passes(clock, reader._runner, "draft passes")
    for verb in ("plan", "trim", "value", "observe"):
        clock.watch(engine.governor, verb, "governor")
    for verb in ("commit", "reserve", "room", "open", "close"):
        clock.watch(engine.pool, verb, "cache")
    clock.watch(engine.scheduler, "next", "scheduler")
    clock.watch(engine_module, "verify", "sampling")
    clock.watch(engine_module.LiveSequence, "commit", "text")


def _watch_passes(clock: Stopwatch, runner: Any, part: str) -> None:
    """The pass itself where the runner lets it be told from its packing, else all of the runner's work."""
    program = getattr(runner, "_program", None)
    clock.watch(*((program, "infer") if hasattr(program, "infer") else (runner, "forward")), part)


def measure(modes: Modes, clock: Stopwatch, cell: Cell, prompts: Sequence[str]) -> dict[str, Any]:
    """Run the prompts, so many at a time, and return the milliseconds of each part a step; prefill is left out."""
    given = replace(modes.sampling, temperature=cell.temperature, ignore_eos=True)
    seconds: Counter[str] = Counter()
    steps = tokens = 0
    spans: list[float] = []
    engine = modes.llm.engine
    for start in range(0, len(prompts), cell.batch):
        group = [prompts[(start + i) % len(prompts)] for i in range(cell.batch)]
        with modes.turn(cell.mode):
            ids = [engine.add(modes.request(cell.mode, prompt, given)) for prompt in group]
            while not engine.idle:
                clock.reset()
                begin = time.perf_counter()
                counts = _all_decode(engine, cell.batch)
                committed = sum(len(event.token_ids) for event in engine.step())
                if counts:
                    spans.append(time.perf_counter() - begin)
                    seconds.update(clock.seconds)
                    steps += 1
                    tokens += committed
            engine.forget(ids)
    parts = {name: seconds[name] / steps * 1e3 for name in PARTS if seconds[name]}
    step = statistics.fmean(spans) * 1e3
    return {
        "mode": cell.mode.name,
        "temperature": cell.temperature,
        "batch": cell.batch,
        "steps": steps,
        "tokens_a_step": tokens / steps,
        "step_ms": step,
        "parts_ms": parts,
        "overhead_ms": step - sum(parts.get(name, 0.0) for name in PASSES),
    }


def _all_decode(engine: Engine, batch: int) -> bool:
    """Whether the next step is one of so many sequences, with nothing of a prompt in it."""
    running = engine.scheduler.running
    return len(running) == batch and all(len(seq.tokens) - seq.cache_len == 1 for seq in running)


def bandwidth(llm: LLM, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hold the bytes that a plain pass reads against its time, and both against the memory's own speed."""
    readable = max(_read_speed() for _ in range(5))
    plain = next((c for c in cells if c["mode"] == "plain" and c["batch"] == 1), None)
    found: dict[str, Any] = {"readable_bytes_per_s": readable}
    checkpoint = llm.chosen.target.checkpoint
    if plain is not None and checkpoint is not None:
        size = pass_bytes(checkpoint.config, llm.chosen.weights, llm.chosen.head)
        seconds = plain["parts_ms"]["forward"] / 1e3
        found |= {"pass_bytes": size, "bytes_per_s": size / seconds, "share": size / seconds / readable}
    return found


def pass_bytes(config: ModelConfig, weights: Precision, head: HeadForm | None) -> int:
    """Return the bytes of weights that one pass reads: all but the table of embeddings where that is no head."""
    shapes = stored_shapes(config, head)
    looked_up = tensor_bytes("embed", shapes["embed"], weights) if "head" in shapes else 0
    return packed_bytes(config, weights, head) - looked_up


def _read_speed() -> float:
    """Return bytes a second of two threads that read."""
    arrays = _arrays()
    threads = [threading.Thread(target=array.max) for array in arrays]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(array.nbytes for array in arrays) / (time.perf_counter() - start)


def _arrays(made: list[Any] = []) -> list[Any]:  # noqa: B006 - made once
    if not made:
        made += [np.ones(_READ // 4, np.float32) for _ in range(2)]
    return made


def show(result: dict[str, Any]) -> None:
    cells = result["cells"]
    names = [name for name in PARTS if any(name in cell["parts_ms"] for cell in cells)]
    titles = [f"{c['mode']} T{c['temperature']:g} b{c['batch']}" for c in cells]
    width = max(12, *map(len, titles)) + 1
    print(f"{'ms a step':16}" + "".join(f"{title:>{width}}" for title in titles))
    for name in names:
        print(f"{name:16}" + "".join(f"{cell['parts_ms'].get(name, 0.0):{width}.2f}" for cell in cells))
    for name, key in (("step", "step_ms"), ("overhead", "overhead_ms"), ("tokens a step", "tokens_a_step")):
        print(f"{name:16}" + "".join(f"{cell[key]:{width}.2f}" for cell in cells))
    memory_ = result["memory"]
    print(f"the memory gives {memory_['readable_bytes_per_s'] / 1e9:.1f} GB/s", end="")
    if "share" in memory_:
        print(
            f"; a plain pass reads {memory_['pass_bytes'] / 2**20:,.0f} MiB, {memory_['bytes_per_s'] / 1e9:.1f} GB/s, "
            f"{memory_['share']:.0%} of it",
            end="",
        )
    print()


if __name__ == "__main__":
    main()
