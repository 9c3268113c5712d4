"""Many clients at a time, few of them well-behaved: is the text right, is anything lost, how fast is it?

Starts a server, lets clients stream, leave, cancel and dawdle with mixed parameters, then does the same with a server
without drafters. Every text that was read to its end is held against what the server without drafters says to the same
request alone. Exit 1 where a text is wrong or something is left behind.

    python benchmarks/load.py --model demo --clients 64 --minutes 5 --json load.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

PROMPTS = (
    "Name three rivers and say where each of them ends.",
    "Repeat after me, twice: a line of riders takes turns at the front.",
    "Write a short function in Python that adds two numbers.",
    "What is the capital of France?",
    "List five animals, one a line.",
    "Explain in two sentences why the sky is blue.",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
    "stop": {"temperature": 0.7, "stop": [".", "\n\n"]},
    "schema": {
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    },
    "two": {"temperature": 0.9, "n": 2},
    "logprobs": {"temperature": 0.5, "logprobs": True, "top_logprobs": 2},
}
BEHAVIOURS = ("read", "read", "read", "read", "leave", "cancel", "dawdle")
WARM_UP = 0.3
"""Share of the time after which memory is looked at."""


@dataclass
class Pass:
    """What clients saw of one server, and what was seen of it."""

    ended: Counter[str] = field(default_factory=Counter)
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    """By case, all texts of it that were read to their end."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, resident bytes)."""
    left: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def cases(max_tokens: int) -> dict[str, dict[str, Any]]:
    """Return the requests that are drawn from, by name."""
    found = {}
    for i, prompt in enumerate(PROMPTS):
        for kind, parameters in KINDS.items():
            for seed in (1, 2):
                messages = [{"role": "user", "content": prompt}]
                body = {"messages": messages, "max_tokens": max_tokens, "seed": seed, **parameters}
                found[f"{kind}/{i}/{seed}"] = body
    return found


@contextmanager
def serving(model: str, sequences: int, *more: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server; yield its address and process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        command = [sys.executable, "-m", "paceline", "serve", "--model", model, "--port", "0", "--context", "2048"]
        with log.open("w") as stderr:
            popen = subprocess.Popen([*command, "--sequences", str(sequences), *more], stderr=stderr, env=os.environ)
        try:
            while not (at := re.search(r"answers at (http://\S+);", log.read_text())):
                if popen.poll() is not None:
                    sys.exit(f"the server has ended: {log.read_text()[-500:]}")
                time.sleep(0.1)
            yield at[1], psutil.Process(popen.pid)
        finally:
            popen.terminate()
            popen.wait(60)


async def ask(client: httpx.AsyncClient, body: dict[str, Any], how: str, seen: Pass, dice: random.Random) -> list[str]:
    """Stream one answer and return its texts; none where it was left or cancelled."""
    texts: dict[int, list[str]] = {}
    begin, first, last, chunks, usage = time.perf_counter(), 0.0, 0.0, 0, 0
    patience = dice.randint(1, 12)
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        if stream.status_code != 200:
            seen.ended[f"status {stream.status_code}"] += 1
            return []
        async for line in stream.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                seen.ended["error"] += 1
                return []
            usage = (chunk.get("usage") or {}).get("completion_tokens", usage)
            for choice in chunk["choices"]:
                texts.setdefault(choice["index"], []).append(choice["delta"].get("content") or "")
                first, last = first or time.perf_counter(), time.perf_counter()
            chunks += 1
            if how == "leave" and chunks >= patience:
                seen.ended["left"] += 1
                return []
            if how == "dawdle":
                await asyncio.sleep(0.2 * dice.random())
    if how == "read":
        seen.ttft_ms.append((first - begin) * 1e3)
        if usage > 1:
            seen.tpot_ms.append((last - first) * 1e3 * body.get("n", 1) / usage)
    seen.tokens += usage
    seen.ended["read"] += 1
    return ["".join(parts) for _, parts in sorted(texts.items())]


async def visit(url: str, model: str, number: int, asked: dict[str, dict[str, Any]], until: float, seen: Pass) -> None:
    """Be one client until the time is over."""
    dice = random.Random(number)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            name, how = dice.choice(list(asked)), dice.choice(BEHAVIOURS)
            body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **asked[name]}
            try:
                limit = dice.uniform(0.05, 3.0) if how == "cancel" else 120
                texts = await asyncio.wait_for(ask(client, body, how, seen, dice), limit)
            except TimeoutError:
                seen.ended["cancelled"] += 1
                continue
            except httpx.TransportError as error:
                seen.ended[type(error).__name__] += 1
                continue
            if texts:
                seen.texts.setdefault(name, []).append(json.dumps(texts))


async def watch(process: psutil.Process, begin: float, seen: Pass) -> None:
    while True:
        seen.memory.append((time.monotonic() - begin, process.memory_info().rss))
        await asyncio.sleep(1)


async def load(url: str, process: psutil.Process, model: str, clients: int, seconds: float, max_tokens: int) -> Pass:
    seen, begin = Pass(), time.monotonic()
    watching = asyncio.create_task(watch(process, begin, seen))
    asked = cases(max_tokens)
    await asyncio.gather(*(visit(url, model, i, asked, begin + seconds, seen) for i in range(clients)))
    seen.seconds = time.monotonic() - begin
    watching.cancel()
    seen.left = await left_behind(url)
    return seen


async def left_behind(url: str) -> dict[str, int]:
    """Return what should be zero once every client has gone."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for _ in range(60):
            state = (await client.get("/api/state")).json()
            left = {name: int(state["batch"][name]) for name in ("running", "waiting")}
            left["kv_used_bytes"] = int(state["memory"]["kv_used_bytes"] or 0)
            if not any(left.values()):
                break
            await asyncio.sleep(0.5)
    return left


def alone(url: str, model: str, names: list[str], max_tokens: int) -> dict[str, str]:
    """Return the texts of cases, asked one at a time."""
    asked, found = cases(max_tokens), {}
    with httpx.Client(base_url=url, timeout=120) as client:
        for name in names:
            body = {"model": model, **asked[name], "speculation": {"mode": "off"}}
            choices = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"]
            found[name] = json.dumps([choice["message"]["content"] for choice in choices])
    return found


def judge(seen: Pass, expected: dict[str, str]) -> None:
    for name, texts in seen.texts.items():
        seen.wrong += [f"{name}: {text} is not {expected[name]}" for text in texts if text != expected[name]]


def slope(memory: list[tuple[float, int]]) -> float:
    """Return by how many MB a minute memory grows after the warm-up."""
    at, size = np.array(memory, float).T
    late = at >= WARM_UP * at[-1]
    return float(np.polyfit(at[late] / 60, size[late] / 1e6, 1)[0]) if late.sum() > 2 else 0.0


def summary(seen: Pass) -> dict[str, Any]:
    def at(values: list[float], share: float) -> float:
        return float(np.quantile(values, share)) if values else 0.0

    return {
        "seconds": seen.seconds,
        "ended": dict(seen.ended),
        "texts": sum(map(len, seen.texts.values())),
        "wrong": len(seen.wrong),
        "left": seen.left,
        "tokens_per_s": seen.tokens / seen.seconds,
        "ttft_ms": {"p50": at(seen.ttft_ms, 0.5), "p95": at(seen.ttft_ms, 0.95)},
        "tpot_ms": {"p50": at(seen.tpot_ms, 0.5), "p95": at(seen.tpot_ms, 0.95)},
        "rss_mb": seen.memory[-1][1] / 1e6,
        "rss_mb_per_minute": slope(seen.memory),
    }


def show(name: str, found: dict[str, Any]) -> None:
    print(f"{name}: {found['texts']} texts read to their end, {found['wrong']} wrong; left behind {found['left']}")
    print(f"    ended {found['ended']}")
    ttft, tpot = found["ttft_ms"], found["tpot_ms"]
    print(
        f"    first token p50 {ttft['p50']:.0f} ms, p95 {ttft['p95']:.0f} ms; a token p50 {tpot['p50']:.1f} ms, ",
        end="",
    )
    print(f"p95 {tpot['p95']:.1f} ms; {found['tokens_per_s']:.0f} tokens/s that were read")
    print(f"    memory {found['rss_mb']:.0f} MB, {found['rss_mb_per_minute']:+.2f} MB a minute after the warm-up")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    passes: dict[str, Pass] = {}
    for name, more in (("speculating", ()), ("plain", ("--drafters", "none"))):
        with serving(given.model, given.sequences, *more) as (url, process):
            arguments = (url, process, given.model, given.clients, given.minutes * 60, given.max_tokens)
            passes[name] = asyncio.run(load(*arguments))
            if name == "plain":
                names = sorted({case for seen in passes.values() for case in seen.texts})
                expected = alone(url, given.model, names, given.max_tokens)
    for seen in passes.values():
        judge(seen, expected)
    found = {name: summary(seen) for name, seen in passes.items()}
    for name, what in found.items():
        show(name, what)
    for line in [line for seen in passes.values() for line in seen.wrong][:5]:
        print(f"wrong: {line}")
    if given.json:
        Path(given.json).write_text(json.dumps({"arguments": vars(given), **found}, indent=2))
    return int(any(what["wrong"] or any(what["left"].values()) for what in found.values()))


if __name__ == "__main__":
    sys.exit(main())
