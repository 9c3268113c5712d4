"""What an answer looks like: plain text, or each token in the colour of the drafter that guessed it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from paceline.core.types import Event
from paceline.models.detokenize import Detokenizer
from paceline.models.tokenizer import Tokenizer

_PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "red")
_VISIBLE = (
    {i: 0x2400 + i for i in range(32) if chr(i) not in "\n\t"} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0))
)
"""What a model writes must not steer the terminal: control characters are shown, or dropped."""


class Screen(Console):
    """A console that leaves a reader who is gone to `run`, as any other output does."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


class Colours:
    """Each drafter's colour."""

    def __init__(self, drafters: Sequence[str]) -> None:
        self._styles = {name: Style(color=_PALETTE[i % len(_PALETTE)]) for i, name in enumerate(drafters)}

    def paint(self, text: str, source: str | None) -> str:
        style = self._styles.get(source or "")
        return style.render(text, color_system=ColorSystem.STANDARD) if style and text else text

    def legend(self) -> Text:
        found = Text("guessed by ")
        for i, (name, style) in enumerate(self._styles.items()):
            found.append(", " if i else "").append(name, style)
        return found.append("; the rest is the target's own") if self._styles else Text("no drafter is in use")


class Attribution:
    """Cuts text as it streams into pieces by the drafter that guessed their tokens.

    A character of several tokens belongs to the one that completes it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._ahead: deque[tuple[str, str | None]] = deque()

    def cut(self, event: Event) -> list[tuple[str, str | None]]:
        """Return the event's text in pieces; text that is held back still waits here, too."""
        for token, source in zip(event.token_ids, event.sources, strict=True):
            self._ahead.append((self._detokenizer.push(token), source))
        if event.finish_reason:
            self._ahead.append((self._detokenizer.flush(), None))
        pieces: list[tuple[str, str | None]] = []
        left = event.text
        while left and self._ahead:
            text, source = self._ahead.popleft()
            now, later = left[: len(text)], text[len(left) :]
            if later:
                self._ahead.appendleft((later, source))
            if now:
                pieces.append((now, source))
            left = left[len(now) :]
        return [*pieces, (left, None)] if left else pieces


class Printer:
    """Writes an answer to stdout as it comes."""

    def __init__(self, colours: Colours | None, attribution: Attribution | None, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._colours, self._attribution = colours, attribution
        self._is_terminal, self._is_open = self._out.isatty(), False

    def show(self, event: Event) -> None:
        self._is_open = self._is_open or bool(event.text)
        if self._colours is None or self._attribution is None:
            self._out.write(self._safe(event.text))
        else:
            for text, source in self._attribution.cut(event):
                self._out.write(self._colours.paint(self._safe(text), source))
        self._out.flush()

    def end(self) -> None:
        self._is_open = False
        self._out.write("\n")
        self._out.flush()

    def break_off(self) -> None:
        """End the line of an answer that goes no further."""
        if self._is_open:
            self.end()

    def _safe(self, text: str) -> str:
        return visible(text) if self._is_terminal else text


def visible(text: str) -> str:
    """Return a text in which no character steers the terminal."""
    return text.translate(_VISIBLE)


def can_colour(out: TextIO | None = None) -> bool:
    """Whether colours may be written; FORCE_COLOR and NO_COLOR have their say."""
    console = Console(file=out or sys.stdout)
    return console.color_system is not None and not console.no_color


def note(text: str | Text) -> None:
    """Write a line beside the answer, to stderr."""
    Screen(stderr=True, highlight=False).print(text, style="dim", soft_wrap=True, markup=False, emoji=False)
