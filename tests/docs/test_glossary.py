"""The words of the field, and the same in each language."""

from __future__ import annotations

import re

import pytest

from paceline.governor.base import Reason

from .pages import ROOT, blocks

DOCS = ROOT / "docs"
LANGUAGES = sorted(DOCS.glob("glossary*.md"))
READMES = sorted(ROOT.glob("README*.md"))


def codes(text: str) -> set[str]:
    """Return the names in code that a glossary has: they are the same in each language."""
    return set(re.findall(r"`([^`]+)`", text))


def rows(text: str) -> list[int]:
    """Return how many rows each table of a page has."""
    return [len(table.splitlines()) - 2 for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)]


@pytest.mark.parametrize("glossary", LANGUAGES, ids=lambda page: page.name)
def test_every_reason_is_in_it(glossary) -> None:
    found = codes(glossary.read_text(encoding="utf-8"))
    assert {str(reason) for reason in Reason} <= found


@pytest.mark.parametrize("glossary", LANGUAGES, ids=lambda page: page.name)
def test_all_have_the_same_terms(glossary) -> None:
    here, there = glossary.read_text(encoding="utf-8"), (DOCS / "glossary.md").read_text(encoding="utf-8")
    assert rows(here) == rows(there)
    assert codes(there) <= codes(here)


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_all_show_the_same_commands(page) -> None:
    assert shown(page.read_text(encoding="utf-8")) == shown((ROOT / "README.md").read_text(encoding="utf-8"))


def shown(text: str) -> list[str]:
    """Return the lines of a page's blocks without remarks and quoted words: these are translated."""
    lines = [line for block in blocks(text) for line in block.text.splitlines()]
    return [re.sub(r'("[^"]*")|\s+#.*$', "", line).rstrip() for line in lines]


def test_another_command_is_seen() -> None:
    first = '```\nmake demo  # a remark\npaceline generate "Why?" --model demo\n```\n'
    assert shown(first) == shown(first.replace("a remark", "söz").replace("Why?", "Neden?"))
    assert shown(first) != shown(first.replace("--model", "--modle"))
