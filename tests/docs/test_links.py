"""Links lead to files and headings that are there; pages can be found."""

from __future__ import annotations

import re

import pytest

from .pages import PAGES, ROOT, anchors, links, name


def dead(text: str, page) -> list[str]:
    """Return the links of a page's text that lead nowhere in this repository."""
    found = []
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        there = text if not path else target.read_text(encoding="utf-8") if anchor and target.is_file() else ""
        if not target.exists() or (anchor and anchor not in anchors(there)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page) -> None:
    assert dead(page.read_text(encoding="utf-8"), page) == []


def test_a_dead_link_is_seen() -> None:
    text = "## A. Heading, twice\n## A. Heading, twice\n[a](#a-heading-twice) [b](#a-heading-twice-1) "
    wrong = ["#a-heading", "nothing.md", "docs/glossary.md#nothing", "docs/images/no.png"]
    right = "[r](docs/glossary.md#reasons) [h](https://example.org) ![i](docs/images/shift.png)"
    page = ROOT / "README.md"
    assert dead(text + right + " ".join(f"[x]({link})" for link in wrong), page) == wrong


def test_every_image_is_shown() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page.read_text(encoding="utf-8"))}
    images = {file for file in (ROOT / "docs" / "images").iterdir() if file.suffix in (".png", ".svg")}
    assert images <= shown, sorted(file.name for file in images - shown)


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    text = index.read_text(encoding="utf-8")
    listed = {
        file.resolve()
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
        for entry in re.findall(r"^[\w./*-]+$", block, re.MULTILINE)
        for file in ROOT.glob(f"docs/{entry}.md" if entry[0] != "." else f"{entry[3:]}.md")
    }
    assert listed == set(PAGES) - {index}
