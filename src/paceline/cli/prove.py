"""`paceline prove`: the rollout gate."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli import INTERRUPTED, options
from paceline.cli.options import ModelFlags, option, whole
from paceline.errors import OptionError

if TYPE_CHECKING:
    from paceline.bench.prove.checks import Report
    from paceline.config import Config
    from paceline.engine.options import Options

SIGNS = {"holds": ("holds", "green"), "fails": ("FAILS", "bold red"), "not asked": ("–", "dim")}
SEQUENCES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveFlags(ModelFlags):
    model: Annotated[str, option("--model", "Hub id, directory, .gguf file, demo or toy:NAME.", "MODEL")] = ""
    config: Annotated[options.Text, option("--config", "paceline.toml: [targets], [audit] and [model].", "FILE")] = None
    sequences: Annotated[
        options.Text, option("--sequences", f"Most requests at a time, the largest batch [default: {SEQUENCES}].", "N")
    ] = None
    quick: Annotated[bool, option("--quick", "Ask less: fewer tokens, fewer prompts.")] = False
    json: Annotated[options.Text, option("--json", "Write every check here.", "FILE")] = None
    html: Annotated[options.Text, option("--html", "Write a page to sign off here.", "FILE")] = None

    def engine_options(self, config: Config) -> Options:
        """Raises OptionError: there is no model, or an option is wrong."""
        from paceline.engine.options import Options

        given = {"sequences": SEQUENCES, **config.model, **self.asked()}
        if self.model:
            given["model"] = self.model
        if (most := whole("sequences", self.sequences)) is not None:
            given["sequences"] = most
        if "model" not in given:
            raise OptionError("prove needs a model: give --model MODEL, or model under [model] in --config FILE")
        # What earlier runs have learnt is left aside: it may be of these very prompts.
        return Options(**(given | {"speculate": self.speculates, "keep_costs": False}))


def prove(flags: ProveFlags) -> int:
    """Hold a model's speculation against its promises, on this machine: same text, same law, never slower, in bounds.

    Exit code 0: all hold; 1: something does not; 2: it could not run.
    """
    from paceline.bench import files
    from paceline.bench.prove import prove as proving
    from paceline.cli.progress import Shown
    from paceline.config import Config
    from paceline.engine.llm import LLM

    files.require(flags.json, flags.html)
    config = Config.load(flags.config) if flags.config is not None else Config()
    options = flags.engine_options(config)
    again = shlex.join(["paceline", *sys.argv[1:]])
    with Shown() as progress:
        progress(f"loading {options.model}", 0, 1)
        llm = LLM.from_options(options, progress)
        effort = proving.QUICK if flags.quick else proving.Effort()
        found = proving.Prove(llm, config, effort, again)
        with suppress(KeyboardInterrupt):
            found.run(progress)
    report = found.report()
    _show(report, flags)
    if not report.complete:
        return INTERRUPTED
    return 0 if report.holds else 1


def _show(report: Report, flags: ProveFlags) -> None:
    """Write the files first: what was found is not lost if a terminal is, nor if a disk is full."""
    try:
        _write(report, flags)
    finally:
        _print(report)


def _write(report: Report, flags: ProveFlags) -> None:
    from paceline.bench import files

    if flags.json is not None:
        files.write(Path(flags.json), json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    if flags.html is not None:
        from paceline.bench.prove import page

        files.write(Path(flags.html), page.page(report))


def _print(report: Report) -> None:
    from rich.text import Text

    from paceline.cli.render import Screen

    screen = Screen(file=sys.stdout, highlight=False)
    for check in report.checks:
        word, style = SIGNS[check.verdict]
        screen.print(Text.assemble((f"{word:9}", style), (check.name, "bold")), soft_wrap=True)
        for line in (f"asked: {check.asked}", f"found: {check.found}", *check.detail):
            screen.print(f"          {line}", markup=False, soft_wrap=True)
    if not report.complete:
        screen.print("not complete: it was interrupted, and proves nothing", style="bold red")
    elif report.holds:
        screen.print("all hold", style="green")
    else:
        failed = [check.name for check in report.checks if check.verdict == "fails"]
        screen.print(f"does not hold: {'; '.join(failed)}", style="bold red", markup=False, soft_wrap=True)
