"""From an argument list to an exit code: every error becomes one line on stderr."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.app import app
from paceline.errors import PacelineError

REFUSED = 2
BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended."""


def run(arguments: Sequence[str]) -> int:
    debug = "--debug" in arguments
    log = logging.getLogger("paceline")
    log.addHandler(logging.StreamHandler() if debug else logging.NullHandler())
    try:
        return _invoke(arguments or ["--help"])
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            typer.echo(err=True)  # the shell's prompt begins a line of its own
        return INTERRUPTED
    except BrokenPipeError:
        _drop(sys.stdout)
        return BROKEN_PIPE
    except typer.TyperException as error:
        return _refuse(_usage(error))
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _refuse(_reason(error))
    finally:
        del log.handlers[-1:]


def _invoke(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("paceline", list(arguments)) as context:
            code = int(command.invoke(context) or 0)
    except typer.Exit as leaving:
        code = leaving.exit_code
    sys.stdout.flush()
    return code


def _refuse(reason: str) -> int:
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(reason.split()))
    try:
        sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)
    typer.echo(f"paceline: {shown}", err=True)
    return REFUSED


def _reason(error: Exception) -> str:
    if isinstance(error, PacelineError):
        return str(error)
    if isinstance(error, MemoryError):
        return "memory ran out; take a smaller --context or int4 weights, or go without --draft"
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}; --debug shows where"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where, please report it"


def _usage(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "paceline"
    return f"{message[:1].lower()}{message[1:]}; see `{command} --help`"


def _drop(stream: object) -> None:
    """Send what is still buffered nowhere, so that closing the stream at exit does not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass
