"""Servers of others as `bench --url` sees them: is what they publish of acceptance what their streams show?

    python benchmarks/peers_url.py --gguf TARGET.gguf --draft DRAFT.gguf --hf DIRECTORY [--json FILE]

Starts llama.cpp's server (n-grams, then the draft model) and vLLM's (n-grams) one after the other, each in an
environment of its own, made once; measures each; and holds the passes that its counts come to against those that can be
seen: pieces of text that come together are of one pass.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from peers.engines import ENGINES
from peers.environments import Environments, directory, say

from paceline.bench.published import total
from paceline.bench.remote import RemoteBench, Round, parse
from paceline.bench.workloads import load
from paceline.core.types import SamplingParams
from paceline.errors import PacelineError

TOGETHER_S = 0.006
"""Pieces nearer than this are of one pass: a server writes them one after the other."""
STARTS_IN_S = 240.0
LLAMA = """
import sys, xllamacpp
target, draft, context, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = target, context, 1, port
params.hostnames, params.endpoint_metrics = ["127.0.0.1"], True
kinds = xllamacpp.common_speculative_type
if draft:
    params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    params.speculative.draft.mparams.path, params.speculative.draft.n_max = draft, 4
else:
    params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
server = xllamacpp.Server(params)
sys.stdin.read()
"""


def main() -> int:
    args = arguments()
    found = {}
    for name, command in commands(args).items():
        say(f"{name}: starting")
        with running(command, args.logs / f"{name}.log") as url:
            found[name] = measured(url, args)
        say(f"{name}: {json.dumps(found[name])}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gguf", type=Path, help="target for llama.cpp's server")
    parser.add_argument("--draft", type=Path, help="its draft model")
    parser.add_argument("--hf", type=Path, help="a directory for vLLM")
    parser.add_argument("--workload", default="ours")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return how each server is started, without its port; those without a model are left out."""
    found = {}
    if args.gguf:
        llama = [str(python("llama-server")), "-c", LLAMA, str(args.gguf)]
        found["llama-ngram"] = [*llama, "", "2048"]
        if args.draft:
            found["llama-draft"] = [*llama, str(args.draft), "2048"]
    if args.hf:
        ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        vllm = [str(python("vllm")), "-m", "vllm.entrypoints.openai.api_server", "--model", str(args.hf)]
        given = ["--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager", "--dtype", "bfloat16"]
        found["vllm-ngram"] = [*vllm, *given, "--speculative-config", json.dumps(ngram), "--port"]
    return found


def python(name: str) -> Path:
    recipe = next(engine.recipe for engine in ENGINES if engine.name == name)
    assert recipe is not None
    return Environments(directory()).make(name, recipe)


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[str]:
    """Start a server on a free port, and yield its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, str(port)], stdin=subprocess.PIPE, stdout=out, stderr=out, env={**os.environ, **more}
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait(url, server, log)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + STARTS_IN_S
    while time.monotonic() < until:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}; see {log}")
        try:
            parse(url, None, None)
        except PacelineError:
            time.sleep(0.5)
        else:
            return
    sys.exit(f"the server does not answer; see {log}")


def measured(url: str, args: argparse.Namespace) -> dict[str, Any]:
    bench = RemoteBench(parse(url, None, None), load(args.workload, args.prompts), SamplingParams(args.max_tokens))
    bench.run([args.batch], 1, lambda what, done, whole: None)
    whole = bench.result()
    return agreement(bench.seen) | {"text_identical": whole.as_json()["text_identical"]}


def agreement(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return what is published, in counts, beside what the streams show."""
    said = total([each.published for each in rounds if each.published is not None])
    answers = [answer for each in rounds for answer in each.answers]
    tokens, seen = sum(a.tokens for a in answers), sum(passes(a.arrivals) for a in answers)
    return {
        "published_by": said.by,
        "answers": len(answers),
        "tokens": tokens,
        "verified": said.verified,
        "accepted": said.accepted,
        "accepted_in_the_text": None if said.passes is None else tokens - said.passes,
        "passes": said.passes,
        "passes_seen": seen,
        "pieces": sum(len(a.arrivals) for a in answers),
        "acceptance_length": said.acceptance_length,
        "acceptance_length_seen": tokens / seen,
        "acceptance_rate": said.acceptance_rate,
        "accepted_at": said.accepted_at,
    }


def passes(arrivals: Sequence[float]) -> int:
    """Return in how many bursts pieces came."""
    return 1 + sum(b - a > TOGETHER_S for a, b in pairwise(arrivals))


if __name__ == "__main__":
    sys.exit(main())
