"""paceline and its peers on the same prompts: speed, time to first token, peak memory.

    python benchmarks/against_peers.py --model TARGET.gguf --draft DRAFTER.gguf --json out/peers.json
    python benchmarks/against_peers.py --model TARGET.gguf --only paceline,genai,llama-native --limit 1
    python benchmarks/against_peers.py --show out/peers.json

Peers: llama.cpp built here (llama-native), llama.cpp's server prebuilt (llama-server: plain, draft, ngram), OpenVINO
GenAI (genai: plain, draft, lookup), transformers (hf: plain, assisted, lookup; bfloat16), vLLM on the CPU (vllm: plain,
draft, ngram; bfloat16). The environments are made at the first run, and the model converted to what each reads; what
cannot be made, crashes or hangs is reported and left out.

Greedy, one request at a time, the model's own chat template, until its end or --max-tokens. A block of prompts is
answered by every configuration, in an order that is drawn for each block, then the next one; --rounds repeats it all.
Between its turns a process is stopped whole, so that no waiting thread disturbs; after that, a short answer that is not
timed warms it. Nobody finds a prompt read already. The time to the first token counts from the request in text.

--batch N,M also runs so many prompts at once, all to --max-tokens, in paceline and vLLM: tokens a second of all
together, from when all have begun to when all have ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import progress, provenance, read_prompts
from peers import summary
from peers.engines import ALL, IN_BATCHES, OURS, Configuration, Engine, chosen
from peers.environments import HERE, Conversions, Environments, Unavailable, directory
from peers.workers import Crew, Failed, Worker

from paceline.errors import PacelineError
from paceline.models import cache
from paceline.models.source import resolve

LOADING_S = 1800.0
"""Seconds that a worker may take to load: some convert weights or compile at the first time."""
SEQUENCES = 8


def main() -> None:
    given = parse()
    if given.show:
        summary.show(json.loads(given.show.read_text(encoding="utf-8")))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a kill ends the workers as Ctrl-C does
    bench = Bench(given, read_prompts(given.prompts, given.limit))
    try:
        bench.run()
    except KeyboardInterrupt:
        progress("")
        print("interrupted; this is how far it came", file=sys.stderr)
        sys.exit(130)
    finally:
        bench.save(whole=True)
        summary.show(bench.result)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    here = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=here)
    add = parser.add_argument
    add("--model", type=gguf, help="the target, a .gguf file or demo")
    add("--draft", type=gguf, help="a smaller one that drafts; without it those that need one are left out")
    add("--prompts", type=Path, nargs="+", default=[Path(__file__).with_name("prompts.jsonl")])
    add("--limit", type=positive, help="prompts of each category; default: all")
    add("--max-tokens", type=positive, default=128)
    add("--context", type=positive, default=4096, help="most tokens of a sequence")
    add("--draft-tokens", type=positive, default=3, help="of peers whose drafts have a fixed length")
    add("--threads", type=threads, default=processors(), help="default: all processors that may be used")
    add("--only", type=chosen, default=ALL, help="engines or configurations, separated by commas")
    add("--rounds", type=positive, default=1)
    add("--block", type=positive, default=4, help="prompts of a turn")
    add("--seed", type=int, default=0, help="of the order of turns")
    add("--batch", type=several, default=(), help="prompts at once, as 1,4,8")
    add("--patience", type=float, default=600.0, help="seconds for one answer, after which a peer is left out")
    add("--room", type=float, default=8.0, help="GiB to be free before a worker starts; idle ones are ended for it")
    add("--environments", type=Path, default=directory(), help="where they are made; default: %(default)s")
    for form, name in (("hf", "hf"), ("openvino", "ov")):
        for role in ("target", "draft"):
            add(f"--{name}-{role}", type=Path, dest=f"{form}_{role}", help=f"the {role} for {form}, converted already")
    add("--json", type=Path, help="write every measurement, after each turn")
    add("--show", type=Path, help="print what an earlier run wrote, and measure nothing")
    given = parser.parse_args(arguments)
    if not (given.model or given.show):
        parser.error("--model is needed: a .gguf file, or demo")
    if (given.hf_draft or given.openvino_draft) and not given.draft:
        parser.error("--hf-draft and --ov-draft are forms of --draft, which is needed as well")
    if given.batch and not {each.name for each in given.only} & set(IN_BATCHES):
        parser.error(f"--batch is for {', '.join(IN_BATCHES)}; --only has none of them")
    return given


def gguf(text: str) -> Path:
    try:
        source = resolve(text)
    except PacelineError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if source.kind != "gguf":
        raise argparse.ArgumentTypeError(f"{text} is no .gguf file, which is what all peers can be given")
    if not source.path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return source.path.absolute()


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def several(text: str) -> tuple[int, ...]:
    return tuple(map(positive, text.split(",")))


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(text: str) -> int:
    if positive(text) > processors():
        raise argparse.ArgumentTypeError(f"{text} threads; this process may use {processors()} processors")
    return int(text)


class Bench:
    """Prepares what is needed, measures in turns, and keeps every measurement."""

    def __init__(self, given: argparse.Namespace, rows: Sequence[dict[str, str]]) -> None:
        self._given, self._rows = given, rows
        self._environments = Environments(given.environments.absolute())
        self._pythons: dict[str, Path | Unavailable] = {}
        paths = {(f, r): getattr(given, f"{f}_{r}") for f in ("hf", "openvino") for r in ("target", "draft")}
        own = {key: path.absolute() for key, path in paths.items() if path}
        self._models = Conversions(self._environments, self._python, own)
        self._loads: dict[str, tuple[Path, Engine, dict[str, Any]]] = {}
        """Process -> its Python, its engine and what it is told to load."""
        self.result: dict[str, Any] = {
            "provenance": provenance(),
            "arguments": {name: plainly(value) for name, value in vars(given).items()},
            "processes": {each.name: each.process for each in given.only},
            "versions": {},
            "left_out": {},
            "starts": {},
            "measurements": [],
            "batches": [],
        }

    def run(self) -> None:
        self._prepare()
        self._answers()
        if self._given.batch:
            self._batches()

    def save(self, whole: bool = False) -> None:
        """Write what there is; `whole` is with the figures that are made of it."""
        if self._given.json:
            found = self.result | ({"summary": summary.summarise(self.result)} if whole else {})
            self._given.json.parent.mkdir(parents=True, exist_ok=True)
            cache.write_whole(self._given.json, lambda file: file.write(json.dumps(found, indent=1).encode()))

    def _prepare(self) -> None:
        for each in self._given.only:
            try:
                if each.needs_draft and not self._given.draft:
                    raise Unavailable("it needs --draft")
                self._loads[each.process] = self._python(each.engine.name), each.engine, self._loaded(each)
            except Unavailable as error:
                self._leave_out(each, error)

    def _python(self, name: str) -> Path:
        """Return the Python of an engine's environment; what failed once is not tried again."""
        if name not in self._pythons:
            recipe = next(each.engine.recipe for each in (*self._given.only, *ALL) if each.engine.name == name)
            try:
                self._pythons[name] = self._environments.make(name, recipe) if recipe else Path(sys.executable)
            except Unavailable as error:
                self._pythons[name] = error
        found = self._pythons[name]
        if isinstance(found, Unavailable):
            raise found
        return found

    def _loaded(self, each: Configuration) -> dict[str, Any]:
        given, engine = self._given, each.engine
        drafts = given.draft and (engine.together or each.needs_draft)
        return {
            "mode": each.mode,
            "target": str(self._models.find(given.model, engine.form, "target")),
            "draft": str(self._models.find(given.draft, engine.form, "draft")) if drafts else None,
            "threads": given.threads,
            "context": given.context,
            "draft_tokens": given.draft_tokens,
            "sequences": SEQUENCES,
        }

    def _leave_out(self, each: Configuration, error: Exception) -> None:
        progress("")
        self.result["left_out"][each.name] = str(error)
        print(f"left out: {each.name}: {error}", file=sys.stderr, flush=True)

    def _answers(self) -> None:
        rng, given = random.Random(self._given.seed), self._given
        with self._crew(SEQUENCES) as crew:
            for turn, block in blocks(len(self._rows), given.block, given.rounds):
                for each in self._order(given.only, rng):
                    progress(f"round {turn + 1}, {block[-1] + 1}/{len(self._rows)} prompts: {each.name}")
                    self._turn(crew, each, partial(self._block, each, turn, block))
        progress("")

    def _batches(self) -> None:
        rng, given = random.Random(self._given.seed), self._given
        used = [each for each in given.only if each.name in IN_BATCHES]
        with self._crew(max(given.batch)) as crew:
            for turn in range(given.rounds):
                for batch in given.batch:
                    for each in self._order(used, rng):
                        progress(f"round {turn + 1}, {batch} together: {each.name}")
                        self._turn(crew, each, partial(self._batch, each, turn, batch))
        progress("")

    def _order(self, configurations: Sequence[Configuration], rng: random.Random) -> list[Configuration]:
        """Return those that still take part, in an order of their own."""
        order = [each for each in configurations if each.name not in self.result["left_out"]]
        rng.shuffle(order)
        return order

    def _turn(self, crew: Crew, each: Configuration, measure: Callable[[Worker], None]) -> None:
        try:
            with crew.turn(each.process, each.mode) as worker:
                measure(worker)
        except Failed as error:
            self._leave_out(each, error)
        self.result["starts"] = crew.starts
        self.save()

    def _block(self, each: Configuration, turn: int, block: Sequence[int], worker: Worker) -> None:
        for prompt in block:
            row = self._rows[prompt]
            reply = worker.ask(
                {"do": "answer", "mode": each.mode, "prompt": row["prompt"], "max_tokens": self._given.max_tokens}
            )
            where = {"configuration": each.name, "round": turn, "prompt": prompt, "category": row["category"]}
            self.result["measurements"].append(where | reply)

    def _batch(self, each: Configuration, turn: int, batch: int, worker: Worker) -> None:
        prompts = [self._rows[i % len(self._rows)]["prompt"] for i in range(batch)]
        reply = worker.ask(
            {"do": "together", "mode": each.mode, "prompts": prompts, "max_tokens": self._given.max_tokens}
        )
        self.result["batches"].append({"configuration": each.name, "round": turn, "batch": batch} | reply)

    def _crew(self, sequences: int) -> Crew:
        def start(name: str) -> Worker:
            python, engine, told = self._loads[name]
            command = [str(python), str(HERE / engine.script), json.dumps(told | {"sequences": sequences})]
            log = self._environments.root / "logs" / f"{name.replace(':', '-')}.log"
            worker = Worker(name, command, log, self._given.patience)
            try:
                worker.ready(LOADING_S)
            except BaseException:
                worker.end()
                raise
            self.result["versions"][name] = worker.versions
            return worker

        return Crew(start, self._given.room, last=OURS.name)


def blocks(prompts: int, size: int, rounds: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (round, the numbers of some prompts)."""
    for turn in range(rounds):
        for start in range(0, prompts, size):
            yield turn, list(range(start, min(start + size, prompts)))


def plainly(value: Any) -> Any:
    """Return an argument as JSON has it; of a path its name, for where it lies is nobody's business."""
    if isinstance(value, list | tuple):
        return [plainly(each) for each in value]
    if isinstance(value, Configuration | Path):
        return value.name
    return value


if __name__ == "__main__":
    main()
