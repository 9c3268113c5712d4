"""What the pages show: blocks of code, commands, links, headings, options."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md") for page in ROOT.glob(pattern)
)
PROGRAMS = ("paceline", "python", "make", "curl", "pip", "sqlite3", "df")
"""What a line of a block begins with if it is a command; in a block that says `sh`, every line is one."""
FENCED = re.compile(r"^```([\w{}-]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """`text` is what a shell gets: as it is shown, but for the folder of the environment."""

    page: str
    text: str

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The commands between `&&`, `|` and `;`, in words."""
        words = shlex.shlex(self.text.replace("\\\n", " "), posix=True, punctuation_chars="|&;")
        words.whitespace_split, words.commenters = True, "#"
        found: list[list[str]] = [[]]
        for word in words:
            if set(word) <= set("|&;"):
                found.append([])
            else:
                found[-1].append(word)
        return tuple(tuple(part) for part in found)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    return [Block(*found.groups()) for found in FENCED.finditer(text)]


def commands(page: Path) -> list[Command]:
    return found_in(page.read_text(encoding="utf-8"), name(page))


def found_in(text: str, page: str) -> list[Command]:
    """Return the commands of a page's blocks, fenced or indented."""
    shown = [(block.language in ("sh", "bash", "console"), block.text) for block in blocks(text)]
    shown = [each for each in shown if each[0]] + [
        (False, block.text) for block in blocks(text) if block.language == ""
    ]
    shown += [(False, re.sub("^    ", "", found, flags=re.MULTILINE)) for found in INDENTED.findall(prose(text))]
    return [
        Command(page, line)
        for is_shell, block in shown
        for line in whole_lines(block.replace(".venv/bin/", ""))
        if is_shell or line.split()[0] in PROGRAMS
    ]


def whole_lines(block: str) -> Iterator[str]:
    """Yield the lines of a block as a shell reads them: with what continues them."""
    waiting = ""
    for line in block.splitlines():
        waiting += line
        try:
            is_open = waiting.endswith("\\") or not shlex.split(waiting, comments=True)
        except ValueError:  # a quotation goes on
            is_open = True
        if not is_open:
            yield waiting
        waiting = waiting + "\n" if is_open and waiting.strip() else ""
    assert not waiting, f"does not end: {waiting}"


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return FENCED.sub("", text)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """Return what a `#` may lead to, by the rule of the repository's viewer and of the site."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def options(text: str) -> set[str]:
    """Return every option that a page names, in code or prose."""
    return set(OPTION.findall(text))


def spoken(text: str) -> list[tuple[str, ...]]:
    """Return the commands of ours that stand in the middle of a sentence, in words."""
    spans = re.findall(r"(?<!`)`(paceline [a-z]+(?: [^`]*)?|python (?:-m [^\s`]+|[^\s`]+\.py)[^`]*)`(?!`)", prose(text))
    return [tuple(word for word in shlex.split(span) if word != "…") for span in spans]
