"""`paceline inspect`: would this run, and with what?"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import ModelFlags, whole

if TYPE_CHECKING:
    from paceline.cli.survey import Survey


def inspect(
    flags: ModelFlags,
    sequences: Annotated[
        str, typer.Option("--sequences", help="Plan memory for so many at a time.", metavar="N", show_default=True)
    ] = "1",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Tell what a model, or a pair, is and needs; nothing large is loaded.

    Exit code 0: it would run as asked; 1: it would not, and the last lines say why.
    """
    from paceline.cli import survey
    from paceline.cli.progress import Shown

    options = flags.options(whole("sequences", sequences))
    with Shown() as progress:
        found = survey.survey(options, progress)
    if as_json:
        typer.echo(json.dumps(survey.as_json(found), ensure_ascii=False))
    else:
        _show(found)
    return 1 if found.problems else 0


def _show(found: Survey) -> None:
    from paceline.cli import tables
    from paceline.cli.render import Screen

    console = Screen(file=sys.stdout, highlight=False)
    for part in tables.tables(found):
        console.print(part)
    lines = [f"not usable: {problem}" for problem in found.problems] or ["usable"]
    lines += [f"unknown until it is loaded: {what}" for what in found.unknown]
    console.print("\n".join(lines), style="red" if found.problems else "green", soft_wrap=True, markup=False)
