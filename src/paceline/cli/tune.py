"""`paceline tune`: what to speculate with, if at all."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import options as cli
from paceline.cli.options import ModelFlags, number, option, whole
from paceline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from paceline.bench.tune.tune import Advice, Candidate

PROMPTS, MAX_TOKENS = 2, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags(ModelFlags):
    draft: Annotated[list[str] | None, option("--draft", "A small model that drafts; may be given again.", "MODEL")] = (
        None  # type: ignore[assignment]
    )
    """Several are weighed against each other."""
    workload: Annotated[str, option("--workload", "As for `bench` [default: ours].", "NAME")] = "ours"
    prompts: Annotated[cli.Text, option("--prompts", f"Of each category [default: {PROMPTS}].", "N")] = None
    max_tokens: Annotated[cli.Text, option("--max-tokens", f"Of an answer [default: {MAX_TOKENS}].", "N")] = None
    temperature: Annotated[cli.Text, option("--temperature", "0 [default] takes the likeliest token.", "X")] = None
    write: Annotated[cli.Text, option("--write", "Write a paceline.toml; no file is overwritten.", "FILE")] = None
    emit: Annotated[cli.Text, option("--emit", "vllm or sglang: print their flags, too.", "NAME")] = None
    json: Annotated[cli.Text, option("--json", "Write every number here.", "FILE")] = None

    def check(self) -> None:
        if self.emit not in (None, "vllm", "sglang"):
            raise OptionError(f"emit is {self.emit!r}; allowed: vllm, sglang")
        if not self.speculates:
            raise OptionError("tune weighs drafters; leave out --drafters none and --max-draft 0")
        if self.write is not None and Path(self.write).exists():
            raise OptionError(f"{self.write!r} is there already and is not touched; name another file, or move it away")
        for name in (self.write, self.json):
            if name is not None and not Path(name).absolute().parent.is_dir():
                raise OptionError(f"{name!r} cannot be written: its directory is not there; make it first")


def tune(flags: TuneFlags) -> int:
    """Say which drafter pays, at which lengths, up to which batch size, and check it by a short run.

    Two or three timings and one run at a known length predict the rest. It may say: do not speculate.
    """
    from paceline.bench import files
    from paceline.bench.tune import emit, write
    from paceline.cli.render import Screen

    flags.check()
    found = _measured(flags)
    if flags.json is not None:
        files.write(Path(flags.json), json.dumps(found.as_json(), indent=1, ensure_ascii=False))
    if flags.write is not None:
        files.write(Path(flags.write), write.toml(found))
    screen = Screen(file=sys.stdout, highlight=False)
    for part in _parts(found):
        screen.print(part, soft_wrap=isinstance(part, str), markup=False)
    if flags.emit is not None:
        lengths = [(batch, length) for batch, length, _ in found.best.by_batch]
        said = (emit.vllm if flags.emit == "vllm" else emit.sglang)(found.best.draft, lengths)
        screen.print(said or f"nothing for {flags.emit}: it does not pay", soft_wrap=True, markup=False)
    return 0


def _measured(flags: TuneFlags) -> Advice:
    from paceline.bench.tune.tune import Tuner, advice
    from paceline.bench.workloads import load
    from paceline.cli.progress import Shown
    from paceline.core.types import SamplingParams
    from paceline.engine.llm import LLM
    from paceline.engine.options import Options

    most, count = whole("max_tokens", flags.max_tokens), whole("prompts", flags.prompts)
    sampling = SamplingParams(
        MAX_TOKENS if most is None else most, temperature=number("temperature", flags.temperature) or 0.0, seed=1
    )
    workload = load(flags.workload, PROMPTS if count is None else count)
    candidates: list[Candidate] = []
    checked: dict[str, Any] = {}
    with Shown() as progress:
        drafts: list[str | None] = [*(flags.draft or [])] or [None]
        for draft in drafts:
            progress(f"loading {draft or flags.model}", 0, 1)
            given: dict[str, Any] = replace(flags, draft=None).asked() | {"sequences": 1, "keep_costs": False}
            given |= {"draft": draft} if draft is not None else {}
            llm = LLM.from_options(Options(flags.model, **given), progress)
            tuner = Tuner(llm, draft, workload, sampling)
            known = {candidate.drafter for candidate in candidates if candidate.draft is None}
            mine = [tuner.weigh(name, progress) for name in tuner.drafters() if name not in known]
            candidates += mine
            best = advice(flags.model, candidates, {})
            if best.pays and best.best in mine:
                checked = tuner.check(best.best.best, progress)
            del llm, tuner
    return advice(flags.model, candidates, checked)


def _parts(found: Advice) -> Iterator[RenderableType]:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("drafter", "best length", "expected", "pays up to", "memory MiB"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for each in found.candidates:
        up_to = max((batch for batch, length, _ in each.by_batch if length), default=0)
        memory = "–" if each.memory_bytes is None else f"{each.memory_bytes / 2**20:,.0f}"
        named = each.drafter if each.draft is None else f"{each.drafter} {each.draft}"
        row = (named, str(each.best.length), f"{each.best.ratio:.2f} ×", f"{up_to} at a time" if up_to else "–", memory)
        table.add_row(*row)
    yield table
    best = found.best.best
    yield f"by category, {best.drafter} at {best.length} tokens, predicted and (where it was checked) measured:"
    for category, p in best.by_category.items():
        seen = found.checked.get(category)
        measured = f"; measured {seen.ratio:.2f} ({seen.low:.2f}–{seen.high:.2f})" if seen is not None else ""
        yield f"  {category:14}{p.ratio:.2f} ({p.low:.2f}–{p.high:.2f}){measured}"
    yield _verdict(found)


def _verdict(found: Advice) -> str:
    best = found.best.best
    if not found.pays:
        return f"do not speculate: the best that was found, {best.drafter} at {best.length}, makes {best.ratio:.2f} ×"
    named = best.drafter if best.draft is None else f"the draft model {best.draft}"
    end = "at every batch size asked about" if found.stops_at is None else f"below {found.stops_at} at a time"
    return f"speculate with {named}, about {best.length} tokens a step: {best.ratio:.2f} × plain decoding, {end}"
