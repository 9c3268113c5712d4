"""`paceline report`: from a server's journal, what speculation saved, cost and got wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Text, number, option

DAYS = 7.0


def report(
    journal: Annotated[str, typer.Argument(help="The file that `serve --journal` was given.", metavar="JOURNAL")],
    days: Annotated[Text, option("--days", "How many days of 24 hours, up to now [default: 7].", "X")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with every number.")] = False,
    html: Annotated[Text, option("--html", "Write a page with plots here.", "FILE")] = None,
    debug: Annotated[bool, option("--debug", "Show tracebacks and warnings.")] = False,
) -> int:
    """Tell what speculation saved, cost and got wrong, and what is worth looking at.

    The journal is only read; its server may go on. Texts that it holds are not looked at.
    """
    from paceline.bench import files, plots
    from paceline.cli.progress import Shown
    from paceline.server.account_report import read

    if html is not None:
        plots.require()  # before the work, not after it
    asked = number("days", days)
    with Shown() as progress:
        progress(f"reading {journal}", 0, 1)
        account = read(Path(journal), DAYS if asked is None else asked, time.time())
    if html is not None:
        from paceline.cli.report_page import page

        files.write(Path(html), page(account))
    if as_json:
        typer.echo(json.dumps(account.as_json(), ensure_ascii=True, allow_nan=False))
        return 0
    from paceline.cli.render import Screen
    from paceline.cli.report_table import parts

    screen = Screen(file=sys.stdout, highlight=False)
    for part in parts(account):
        screen.print(part)
    return 0
