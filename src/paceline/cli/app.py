"""The commands. What they need beyond their options is imported when they run, so that `--help` stays quick."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline import __version__
from paceline.cli import bench, chat, generate, inspect, lab, prove, report, serve, tune, watch
from paceline.cli.options import spread

app = typer.Typer(
    name="paceline",
    help="Speculative decoding that gives the same text, is measured against plain decoding, and hides nothing.",
    add_completion=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback(epilog="`paceline COMMAND --help` describes a command. Exit codes: 0 done, 1 a check failed, 2 refused.")
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


app.command("generate")(spread(generate.generate))
app.command("chat")(spread(chat.chat))
app.command("inspect")(spread(inspect.inspect))
app.command("bench")(spread(bench.bench))
app.command("prove")(spread(prove.prove))
app.command("serve")(spread(serve.serve))
app.command("tune")(spread(tune.tune))
app.command("lab")(lab.lab)
app.command("report")(report.report)
app.command("watch")(watch.watch)
