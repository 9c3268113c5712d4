"""`paceline lab`: how speculation fails, and what the governor does about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.options import Text, option
from paceline.errors import OptionError

if TYPE_CHECKING:
    from paceline.bench.lab.scenario import Scenario
    from paceline.bench.result import Result


def lab(
    scenario: Annotated[
        Text,
        typer.Argument(
            help="collapse, batch, bad-drafter, long-context, cliff or memory; without one they are listed.",
            metavar="[SCENARIO]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, option("--model", "Hub id, directory, .gguf file, demo [default] or toy:NAME.", "M")
    ] = "demo",
    json_file: Annotated[Text, option("--json", "Write every number here.", "FILE")] = None,
    html: Annotated[Text, option("--html", "Write a page with plots here.", "FILE")] = None,
    debug: Annotated[bool, option("--debug", "Show tracebacks and warnings.")] = False,
) -> int:
    """Reproduce a failure of speculation: always on against plain decoding, and against the governor.

    Exit code 1: the governor fell below 0.98 × plain decoding beyond doubt, or a text is another.
    """
    from paceline.bench import files
    from paceline.bench.lab.scenario import Lab, fallen
    from paceline.bench.lab.scenarios import SCENARIOS
    from paceline.cli.progress import Shown
    from paceline.engine.llm import LLM

    if scenario is None:
        for each in SCENARIOS.values():
            typer.echo(f"{each.name:14}{each.what}")
        return 0
    if scenario not in SCENARIOS:
        raise OptionError(f"scenario is {scenario!r}; allowed: {', '.join(SCENARIOS)}")
    files.require(json_file, html)
    if html is not None:
        from paceline.bench import plots

        plots.require()
    interrupted = False
    with Shown() as progress:
        progress(f"loading {model}", 0, 1)
        found = Lab(SCENARIOS[scenario], model, LLM)
        try:
            found.run(progress)
        except KeyboardInterrupt:
            interrupted = True
    if not found.seen:
        return INTERRUPTED
    result = found.result()
    _show(SCENARIOS[scenario], result, json_file, html)
    if interrupted:
        return INTERRUPTED
    return 1 if fallen(result) or result.text_identical.different else 0


def _show(scenario: Scenario, result: Result, json_file: str | None, html: str | None) -> None:
    from paceline.bench import files
    from paceline.bench.lab.scenario import BOUND, fallen
    from paceline.cli import bench_table
    from paceline.cli.render import Screen

    if json_file is not None:
        files.write(Path(json_file), json.dumps({"scenario": scenario.name, **result.as_json()}, indent=1))
    if html is not None:
        from paceline.bench import page

        files.write(Path(html), page.page(result, f"paceline lab: {scenario.name}", scenario.what))
    screen = Screen(file=sys.stdout, highlight=False)
    screen.print(f"{scenario.name}: {scenario.what}", markup=False, soft_wrap=True)
    for part in bench_table.parts(result):
        screen.print(part)
    below = fallen(result)
    for c in below:
        line = f"auto fell below {BOUND} × plain at {c.batch} at a time: {c.ratio:.3f} ({c.low:.3f}–{c.high:.3f})"
        screen.print(line, style="bold red")
    if not below:
        screen.print(f"auto did not fall below {BOUND} × plain", style="green")
