"""Every option is documented, and every documented option exists."""

from __future__ import annotations

import re

import pytest

from .known import COMMANDS, cli_options, script_options
from .pages import OPTION, PAGES, ROOT, name, options

FOREIGN = {
    "--strict": "mypy's",
    "--constraint": "pip's",
    "--max-children": "mutmut's",
    "--prefix": "pip's",
}
"""Options of other programs that a page names."""
REFERENCE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def listed(heading: str) -> set[str]:
    rows = re.findall(r"^\| `(--[^`]*)`", section(heading), re.MULTILINE)
    return {option for row in rows for option in OPTION.findall(row)}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_option_and_no_other(command) -> None:
    heading = f"paceline {command}"
    documented = listed(heading)
    if "[the model](#the-model)" in section(heading):
        documented |= listed("The model")
    assert documented == cli_options(command) - {"--help"}


def test_the_reference_has_every_command_and_no_other() -> None:
    assert re.findall(r"^## paceline (.+)$", REFERENCE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_documented_options_exist(page) -> None:
    assert unknown(page.read_text(encoding="utf-8")) == set()


def unknown(text: str) -> set[str]:
    ours = {option for command in COMMANDS for option in cli_options(command)}
    return options(text) - ours - script_options() - {"--version"} - FOREIGN.keys()


def test_a_misspelt_option_is_seen() -> None:
    assert unknown("`--modle demo`, `--model demo`, `--show-draft` and a line -- of prose --- here") == {"--modle"}
