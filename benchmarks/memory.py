"""Peak memory against what `paceline inspect` predicts, and whether requests leave anything behind.

    python benchmarks/memory.py --model TARGET.gguf --draft DRAFTER.gguf --json out/memory.json
    python benchmarks/memory.py --model demo --requests 2000 --context 4096

All is measured in a fresh process, from its start on. When the engine is loaded, everything that the plan counts is
made to be there: texts that fill the KV pools of target and draft model, prompts of every length of which kernels are
kept, and what drafters remember of past requests.
Then short requests of mixed kinds run (plain, speculative, sampled, with log-probabilities, aborted), and between them,
after a garbage collection, it is looked at what the process holds. Growth is a straight line through these from the
second on, with the error of its slope.

Peak is VmHWM, what `top` would have shown at most: pages of mapped files included, which the system may take back at
any time. Beside it stands what it may not (RssAnon and RssShmem). Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import progress, provenance, write_json
from numpy.typing import NDArray

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core.types import Request
from paceline.drafters.history import TENANT_TOKENS
from paceline.engine.build import choose
from paceline.engine.options import Options
from paceline.errors import OptionError
from paceline.runners.openvino.runner import COARSE

HERE = Path(__file__).parent
CORPUS = ("docs/*.md", "src/paceline/**/*.py")
SETTINGS = ("model", "draft", "weights", "draft_weights", "head_weights", "kv", "numerics", "context", "sequences")
MIB = 1 << 20
EVERY = 50
"""Requests between two looks."""
LEFT = 24
"""Tokens of the context that a filling prompt leaves free."""
PLAIN, ALWAYS = SpeculationParams("off"), SpeculationParams("always", max_draft=8)


def main() -> None:
    given = parse()
    if given.inside:
        print(json.dumps(measure(given)))
        return
    found = fresh()
    progress("")
    show(found)
    write_json(given.json, found | {"provenance": provenance()})


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name in SETTINGS[1:7]:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def fresh() -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--inside"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(given: Any) -> dict[str, Any]:
    settings = {name: getattr(given, name) for name in SETTINGS if getattr(given, name) is not None}
    chosen = choose(Options(**settings, keep_costs=False))
    if chosen.memory is None:
        raise OptionError(f"nothing is planned for the {chosen.runner} runner; take a model that openvino runs")
    llm = LLM.from_chosen(chosen)
    looks = {"loaded": look()}
    text = corpus(llm, given.context * given.sequences + TENANT_TOKENS)
    fill_pools(llm, text, given.context, given.sequences)
    fill_sizes(llm, text)
    if "suffix" in llm.engine.desk.drafters:
        remember(llm, text)
    looks["filled"] = look()
    samples = [[0, look()["rss"]]]
    kinds = mixed(llm, text, given.max_tokens)
    for done in range(EVERY, given.requests + 1, EVERY):
        progress(f"{done} of {given.requests} requests")
        run(llm, list(islice(kinds, EVERY)), given.sequences)
        samples.append([done, look()["rss"]])
    looks["end"] = look()
    plan = asdict(chosen.memory) | {"total": chosen.memory.total}
    return {"settings": settings, "planned": plan, "looks": looks, "samples": samples, "growth": growth(samples)}


def look() -> dict[str, int]:
    """Return bytes: the peak so far, what is there now, and what of it the system cannot take back."""
    gc.collect()
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    now = {words[0]: int(words[1]) << 10 for words in lines if words[0].startswith(("VmHWM", "VmRSS", "Rss"))}
    return {"peak": now["VmHWM:"], "rss": now["VmRSS:"], "own": now["RssAnon:"] + now["RssShmem:"]}


def corpus(llm: LLM, size: int) -> NDArray[np.int32]:
    """Return so many tokens, or all there are; encoded file by file, which takes little memory."""
    found: list[NDArray[np.int32]] = []
    for path in sorted(path for pattern in CORPUS for path in HERE.parent.glob(pattern)):
        if sum(map(len, found)) < size:
            found.append(np.array(llm.tokenizer.encode(path.read_text(encoding="utf-8")), np.int32))
    return np.concatenate(found)[:size]


def fill_pools(llm: LLM, text: NDArray[np.int32], context: int, sequences: int) -> None:
    """Run as many texts as there is room for, each as long as may be, with drafts: a draft model reads them, too."""
    length = context - LEFT
    progress(f"filling KV pools of {llm.chosen.kv_tokens} tokens")
    sampling = SamplingParams(max_tokens=LEFT, ignore_eos=True)
    parts = [text[i * length : (i + 1) * length].tolist() for i in range(sequences)]
    llm.run([llm.request(part, sampling, read_by_all(llm)) for part in parts if part])


def fill_sizes(llm: LLM, text: NDArray[np.int32]) -> None:
    """Run prompts of every length of which the runner keeps kernels."""
    for rows in range(COARSE, min(llm.chosen.options.prefill_rows, llm.engine.context - 4) + 1, COARSE):
        progress(f"a prompt of {rows} tokens")
        prompt = text[rows : 2 * rows].tolist()
        llm.run([llm.request([*reversed(prompt)], SamplingParams(max_tokens=3, ignore_eos=True), read_by_all(llm))])


def read_by_all(llm: LLM) -> SpeculationParams:
    """Return what makes a draft model read a text, if there is one: no other drafter is asked before it."""
    return replace(ALWAYS, drafters=("model",)) if "model" in llm.engine.desk.drafters else ALWAYS


def remember(llm: LLM, text: NDArray[np.int32]) -> None:
    """Let the suffix drafter have heard as much of one tenant as it keeps."""
    suffix: Any = llm.engine.desk.drafters["suffix"]
    for start in range(0, TENANT_TOKENS, 256):
        suffix.history.add("", text[start : start + 256].tolist())


def mixed(llm: LLM, text: NDArray[np.int32], tokens: int) -> Iterator[Request | None]:
    """Yield short requests of each kind in turn, each of another prompt; None stands for one that is aborted."""
    plain = SamplingParams(max_tokens=tokens)
    kinds = [
        (plain, PLAIN),
        (plain, ALWAYS),
        (SamplingParams(max_tokens=tokens, temperature=0.8, top_p=0.95, seed=1), SpeculationParams()),
        (SamplingParams(max_tokens=tokens, logprobs=5, temperature=1.0), ALWAYS),
    ]
    number = 0
    while True:
        for sampling, speculation in kinds:
            start = number * 37 % (len(text) - 64)
            yield llm.request(text[start : start + 16 + number % 32].tolist(), sampling, speculation)
            number += 1
        yield None


def run(llm: LLM, requests: Sequence[Request | None], sequences: int) -> None:
    asked = [request for request in requests if request is not None]
    for start in range(0, len(asked), sequences):
        llm.run(asked[start : start + sequences])
    for i in range(len(requests) - len(asked)):
        stream = llm.stream(asked[i].prompt)
        next(iter(stream))
        stream.close()


def growth(samples: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return bytes a request and the standard error of that, the first look left out; and first to last in bytes."""
    later = np.array(samples[1:], np.float64)
    if len(later) < 3:
        return {}
    x, y = later[:, 0] - later[:, 0].mean(), later[:, 1] - later[:, 1].mean()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
    return {"bytes_a_request": slope, "error": error, "first_to_last": float(later[-1, 1] - later[0, 1])}


def show(found: dict[str, Any]) -> None:
    planned, looks = dict(found["planned"]), found["looks"]
    planned.pop("free")
    print("planned MiB   " + ", ".join(f"{name} {size / MIB:,.0f}" for name, size in planned.items()))
    for name, seen in looks.items():
        print(
            f"{name:13} peak {seen['peak'] / MIB:7,.0f}, now {seen['rss'] / MIB:7,.0f}, of it its own "
            f"{seen['own'] / MIB:7,.0f}"
        )
    peak, total = looks["end"]["peak"], planned["total"]
    near = abs(peak / total - 1) <= 0.05
    print(f"peak / planned {peak / total:.3f}: {'within' if near else 'NOT within'} 5 %")
    grown = found["growth"]
    if grown:
        count = found["samples"][-1][0]
        print(
            f"growth from request {EVERY} to {count}: {grown['first_to_last'] / MIB:+.2f} MiB; by the slope "
            f"{grown['bytes_a_request'] / 1024:+.2f} ± {1.96 * grown['error'] / 1024:.2f} KiB a request"
        )


if __name__ == "__main__":
    main()
