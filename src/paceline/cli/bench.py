"""`paceline bench`: does speculation pay, on this model, this machine and these prompts?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli import INTERRUPTED
from paceline.cli.options import ModelFlags, Text, number, option, whole
from paceline.errors import OptionError

if TYPE_CHECKING:
    from paceline.bench.result import Result
    from paceline.core.types import SamplingParams

PROMPTS, MAX_TOKENS, REPEAT = 3, 48, 1
"""What ends on the demo model in three minutes on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags(ModelFlags):
    model: Annotated[str, option("--model", "Hub id, directory, .gguf file, demo or toy:NAME.", "MODEL")] = ""
    workload: Annotated[
        str,
        option(
            "--workload",
            "ours [default], short, long, one of our categories, or spec-bench:, humaneval:, jsonl:, openai-log:FILE.",
            "NAME",
        ),
    ] = "ours"
    batch: Annotated[str, option("--batch", "Requests at a time, one or several numbers [default: 1].", "N,N")] = "1"
    temperature: Annotated[Text, option("--temperature", "0 [default] takes the most probable token.", "X")] = None
    prompts: Annotated[Text, option("--prompts", f"Prompts of each category [default: {PROMPTS}], or all.", "N")] = None
    max_tokens: Annotated[Text, option("--max-tokens", f"Most tokens of an answer [default: {MAX_TOKENS}].", "N")] = (
        None
    )
    modes: Annotated[
        Text,
        option(
            "--modes",
            "plain,off,auto [default]: the first is the reference, `off` beside `plain` measures the noise; "
            "always, fixed:N, NAME+NAME:N (drafters).",
            "NAMES",
        ),
    ] = None
    arrivals: Annotated[
        Text, option("--arrivals", "closed [default], poisson:RATE or bursts:RATE:SIZE, requests a second.", "HOW")
    ] = None
    repeat: Annotated[Text, option("--repeat", f"Rounds, each there and back [default: {REPEAT}].", "N")] = None
    acceptance: Annotated[
        Text,
        option("--acceptance", "Put this acceptance by depth in the drafters' place: no real result.", "X,X"),
    ] = None
    json: Annotated[Text, option("--json", "Write every number here.", "FILE")] = None
    html: Annotated[Text, option("--html", "Write a page with plots here.", "FILE")] = None
    url: Annotated[
        Text, option("--url", "Measure a running OpenAI-compatible server instead; or NAME=URL,NAME=URL.", "URL")
    ] = None
    api_key: Annotated[Text, option("--api-key", "Of that server [default: $PACELINE_API_KEY].", "KEY")] = None

    def batches(self) -> tuple[int, ...]:
        """Raises OptionError: not whole numbers from 1 to 256."""
        found = tuple(whole("batch", part) or 0 for part in self.batch.split(","))
        if not all(1 <= batch <= 256 for batch in found) or len(set(found)) < len(found):
            raise OptionError(f"batch is {self.batch!r}; allowed: numbers from 1 to 256 with commas between")
        return found

    def sampling(self) -> SamplingParams:
        from paceline.core.types import SamplingParams

        most = whole("max_tokens", self.max_tokens)
        return SamplingParams(
            MAX_TOKENS if most is None else most, number("temperature", self.temperature) or 0.0, seed=1
        )

    def most_prompts(self) -> int | None:
        """Return how many prompts of a category are taken; None is all of them."""
        if self.prompts == "all":
            return None
        return PROMPTS if self.prompts is None else whole("prompts", self.prompts)

    def rounds(self) -> int:
        found = REPEAT if self.repeat is None else whole("repeat", self.repeat)
        if found is None or found < 1:
            raise OptionError(f"repeat is {self.repeat}; allowed: 1 or more")
        return found

    def rates(self) -> tuple[float, ...] | None:
        """Return the acceptance by depth that was asked for."""
        if self.acceptance is None:
            return None
        found = tuple(number("acceptance", part) or 0.0 for part in self.acceptance.split(","))
        if not all(0 <= rate <= 1 for rate in found):
            raise OptionError(f"acceptance is {self.acceptance!r}; allowed: numbers from 0 to 1 with commas between")
        return found

    def check(self) -> None:
        """Raise OptionError for what is missing, or would have no effect."""
        if (self.url is None) == (not self.model):
            raise OptionError("bench needs --model MODEL, or --url URL of a running server; give one of the two")
        if self.url is None:
            if self.api_key is not None:
                raise OptionError("api-key is of the server that --url names; leave it out, or give --url")
            return
        defaults = BenchFlags(model=self.model)
        kept = {"workload", "batch", "temperature", "prompts", "max_tokens", "modes", "repeat", "json", "html", "url"}
        for name in BenchFlags.__dataclass_fields__:
            if name not in kept | {"api_key", "debug"} and getattr(self, name) != getattr(defaults, name):
                flag = name.replace("_", "-")
                raise OptionError(f"--{flag} is for a model that is loaded here, not for --url; leave one of them out")


def bench(flags: BenchFlags) -> int:
    """Measure plain decoding and speculation side by side: same prompts, same seeds, taking turns, texts compared.

    Exit code 0: measured, and all texts are the same up to near-ties; 1: one is not. Ctrl-C keeps what there is.
    """
    from paceline.bench import files

    flags.check()
    files.require(flags.json, flags.html)
    if flags.html is not None:
        from paceline.bench import plots

        plots.require()
    result, interrupted = _remote(flags) if flags.url is not None else _local(flags)
    if result is not None:
        _show(result, flags)
    if interrupted:
        return INTERRUPTED
    return 1 if result is not None and result.text_identical.different else 0


def _local(flags: BenchFlags) -> tuple[Result | None, bool]:
    """Return what was found, and whether Ctrl-C cut it short."""
    from paceline.bench.arrivals import Arrivals
    from paceline.bench.bench import Bench
    from paceline.bench.modes import listed
    from paceline.bench.workloads import asks, load
    from paceline.cli.progress import Shown
    from paceline.engine.llm import LLM
    from paceline.engine.options import Options

    workload, used, batches = load(flags.workload, flags.most_prompts()), listed(_modes(flags)), flags.batches()
    arrivals = Arrivals.parse(flags.arrivals or "closed")
    rates, sampling, rounds = flags.rates(), flags.sampling(), flags.rounds()
    # What earlier runs have learnt is left aside: it may be of these very prompts.
    given = flags.asked() | {"sequences": max(batches), "keep_costs": False}
    options = Options(flags.model, speculate=flags.speculates, **given)
    with Shown() as progress:
        progress(f"loading {flags.model}", 0, 1)
        llm = LLM.from_options(options, progress)
        found = Bench(llm, workload.name, asks(llm, workload, sampling), used, arrivals, rates)
        try:
            found.run(batches, rounds, progress)
        except KeyboardInterrupt:
            return (found.result() if found.seen else None), True
    return found.result(), False


def _remote(flags: BenchFlags) -> tuple[Result | None, bool]:
    import os

    from paceline.bench.remote import RemoteBench, parse
    from paceline.bench.workloads import load
    from paceline.cli.progress import Shown

    workload, batches = load(flags.workload, flags.most_prompts()), flags.batches()
    key = flags.api_key if flags.api_key is not None else os.environ.get("PACELINE_API_KEY")
    found = RemoteBench(parse(str(flags.url), flags.modes, key), workload, flags.sampling())
    with Shown() as progress:
        try:
            found.run(batches, flags.rounds(), progress)
        except KeyboardInterrupt:
            return (found.result() if found.seen else None), True
    return found.result(), False


def _modes(flags: BenchFlags) -> str:
    return flags.modes or ("plain,off,auto" if flags.speculates else "plain,off")


def _show(result: Result, flags: BenchFlags) -> None:
    """Write the files first: what was measured is not lost if a terminal is, nor if a disk is full."""
    from paceline.cli import bench_table
    from paceline.cli.render import Screen

    try:
        _write(result, flags)
    finally:
        screen = Screen(file=sys.stdout, highlight=False)
        for part in bench_table.parts(result):
            screen.print(part)


def _write(result: Result, flags: BenchFlags) -> None:
    from paceline.bench import files

    if flags.json is not None:
        files.write(Path(flags.json), json.dumps(result.as_json(), indent=1, ensure_ascii=False))
    if flags.html is not None:
        from paceline.bench import page

        page.write(result, Path(flags.html))
