"""What the programs that pages show really take."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from paceline.cli.app import app
from tests.benchmarks.scripts import script

from .pages import ROOT

TOP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = dict(TOP.commands)


class Parsed(Exception):
    pass


def cli_options(command: str) -> set[str]:
    return {"--help"} | {name for parameter in COMMANDS[command].params for name in parameter.opts if name[0] == "-"}


def refusal(words: Sequence[str]) -> str | None:
    """Return why a program would not take these words, or None if it would.

    Raises:
        KeyError: it is a program that is not ours.
    """
    program, *given = words
    return CHECKS[program](given)


def paceline(given: Sequence[str]) -> str | None:
    if not given or given[0] not in COMMANDS:
        return None if list(given) in (["--version"], ["--help"]) else f"no such command: {given[:1]}"
    command, *rest = given
    if "--help" in rest:
        return None
    try:
        COMMANDS[command].make_context(command, list(rest))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return None


def python(given: Sequence[str]) -> str | None:
    if given[0] == "-m":
        module = importlib.import_module(given[1])
        return parsed(module.main, given[2:])
    file = Path(given[0])
    if file.parent.name != "benchmarks" or not (ROOT / file).is_file():
        return f"no such script: {file}"
    with tempfile.TemporaryDirectory() as folder:
        for word in given:
            if Path(word).suffix in (".gguf", ".jsonl"):  # files that some scripts look for as they read their options
                (Path(folder) / Path(word).name).touch()
        with contextlib.chdir(folder):
            return parsed(script(file.stem).main, given[1:])


def make(given: Sequence[str]) -> str | None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    return None if given and given[0] in targets else f"no such target: {given[:1]}"


def pip(given: Sequence[str]) -> str | None:
    what = given[-1]
    if what.startswith("./"):
        return None if (ROOT / what / "pyproject.toml").is_file() else f"no such package: {what}"
    extra = re.fullmatch(r"paceline(?:\[([a-z,]+)\])?", what)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    known = extra and all(f"\n{name} = [" in text for name in (extra[1] or "").split(",") if name)
    return None if known else f"no such package: {what}"


CHECKS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "paceline": paceline,
    "python": python,
    "make": make,
    "pip": pip,
}


@contextlib.contextmanager
def parsers_only() -> Iterator[None]:
    """Let argument parsers read what they are given, and end with it."""
    read = argparse.ArgumentParser.parse_args

    def end(self: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
        parsers.append(self)
        read(self, *given, **named)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", end)
        yield


parsers: list[argparse.ArgumentParser] = []
"""Those that `parsers_only` has seen."""


def parsed(main: Callable[[], object], given: Sequence[str]) -> str | None:
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, parsers_only(), contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", ["script", *given])
        try:
            main()
        except Parsed:
            return None
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
    raise AssertionError("it read no options")


@cache
def script_options() -> frozenset[str]:
    """Return every option of every script in benchmarks/, and of the simulator."""
    found: set[str] = set()
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        if "parse_args(" in file.read_text(encoding="utf-8"):
            found |= taken(script(file.stem).main)
    return frozenset(found | taken(importlib.import_module("paceline.bench.simulate").main))


def taken(main: Callable[[], object]) -> set[str]:
    parsers.clear()
    parsed(main, [])
    return {name for action in parsers[-1]._actions for name in action.option_strings}
