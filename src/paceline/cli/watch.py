"""`paceline watch`: how a running server does, in the terminal or as lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated, Any

import typer

from paceline.cli.options import Text, number
from paceline.errors import OptionError, PacelineError

KEY = "PACELINE_API_KEY"
LEAST_S = 0.1


def watch(
    url: Annotated[str, typer.Argument(help="Where it listens, such as http://127.0.0.1:8000.", metavar="URL")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON each time.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    api_key: Annotated[
        Text, typer.Option("--api-key", help=f"A key of the server [default: ${KEY}].", metavar="KEY")
    ] = None,
    every: Annotated[Text, typer.Option("--every", help="Seconds between two looks [default: 1].", metavar="X")] = None,
) -> int:
    """Show how a server does, once a second: speed against plain decoding, use, acceptance, memory, alarms.

    Into a file or a pipe it writes JSON, a line each time.
    """
    from paceline.cli.remote import Remote

    seconds = number("every", every)
    seconds = 1.0 if seconds is None else seconds
    if not LEAST_S <= seconds < float("inf"):
        raise OptionError(f"every is {every!r}; allowed: {LEAST_S} seconds or more")
    remote = Remote(url, api_key if api_key is not None else os.environ.get(KEY))
    first = remote.state()  # what cannot be reached is refused before anything is drawn
    if as_json or not sys.stdout.isatty():
        _print_lines(remote, first, seconds, once)
    else:
        _draw(remote, first, seconds, once)
    return 0


def _print_lines(remote: Any, state: dict[str, Any], seconds: float, once: bool) -> None:
    while True:
        sys.stdout.write(json.dumps(state, ensure_ascii=True) + "\n")
        sys.stdout.flush()
        if once:
            return
        time.sleep(seconds)
        state = remote.state()


def _draw(remote: Any, state: dict[str, Any], seconds: float, once: bool) -> None:
    from rich.live import Live

    from paceline.cli.panel import panel
    from paceline.cli.render import Screen

    screen = Screen(file=sys.stdout, highlight=False)
    if once:
        screen.print(panel(state, remote.url))
        return
    with Live(panel(state, remote.url), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            gone = None
            try:
                state = remote.state()
            except PacelineError as error:  # it may be back soon: the last state stays, and the reason with it
                gone = str(error)
            live.update(panel(state, remote.url, gone), refresh=True)
