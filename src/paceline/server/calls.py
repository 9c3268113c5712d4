"""Finds tool calls in an answer as it comes.

Arguments are passed on as they are written. What only looks like a call, or names a function that there is not, is
text. However an answer is cut into pieces, what is found in it is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from paceline.server.tools import Style

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')
_LONGEST_HEAD = 1024
"""Characters after which a call is read as a whole, at its end."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: text for the reader, or a part of a call."""

    text: str = ""
    call: int | None = None
    """Which call it is a part of, from 0."""
    name: str | None = None
    """The function; in a call's first piece only."""
    arguments: str = ""


class Reader:
    """Splits an answer into text and calls. Blanks around a call are dropped: they belong to its form.

    Args:
        names: functions that there are.
        parallel: whether there may be more than one call; if not, those after the first are dropped.
    """

    def __init__(self, style: Style, names: Collection[str], parallel: bool = True) -> None:
        self._style, self._names, self._parallel = style, names, parallel
        self._held = ""
        """What may yet turn out to be the beginning of something."""
        self._blank = ""
        """Blanks that a call may follow."""
        self._after_call = self._closing = self._plain = False
        self._call: _Call | None = None
        self._calls = 0
        self._pieces: list[Piece] = []

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls > 0

    def push(self, text: str) -> list[Piece]:
        """Return what is now certain."""
        self._held += text
        self._run()
        return self._take()

    def flush(self) -> list[Piece]:
        """Return what was held back, at the end of the answer."""
        while self._call is not None and not self._call.decided():
            self._refuse(self._call)
            self._run()
        if not self._closing:
            self._say(self._held)
        if self._blank and not self.called:
            self._pieces.append(Piece(self._blank))
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _run(self) -> None:
        while self._held and self._advance():
            pass

    def _advance(self) -> bool:
        """Look at what is held; return whether there may be more to do at once."""
        if self._call is not None:
            return self._read(self._call)
        if self._closing:
            return self._close()
        if self._plain:
            return self._pass_on(len(self._held))
        return self._seek(self._style.mark) if self._style.mark else self._expect()

    def _seek(self, mark: str) -> bool:
        """Pass text on up to the mark of a call, or to what may become one."""
        at = self._held.find(mark)
        if at < 0:
            return self._pass_on(len(self._held) - _overlap(self._held, mark))
        self._pass_on(at)
        return self._begin(len(mark))

    def _expect(self) -> bool:
        """Without marks, calls stand before any other text."""
        bare = self._held.lstrip(" \t\r\n;," if self.called else None)
        lead = len(self._held) - len(bare)
        prefix = self._style.prefix
        if bare.startswith("{"):
            return self._begin(lead)
        if prefix and bare.startswith(prefix):
            return self._begin(lead + len(prefix))
        if bare and not prefix.startswith(bare):
            self._plain = True
            return True
        return False

    def _pass_on(self, length: int) -> bool:
        self._say(self._held[:length])
        self._held = self._held[length:]
        return False

    def _say(self, text: str) -> None:
        text = self._blank + text
        if self._after_call:
            text = text.lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        if said:
            self._after_call = False
            self._pieces.append(Piece(said))

    def _begin(self, skipped: int) -> bool:
        self._call = _Call(self._names, self._held[:skipped], self._style.end.strip())
        self._held = self._held[skipped:]
        return True

    def _read(self, call: _Call) -> bool:
        news = not call.decided()
        arguments = call.feed(self._held)
        self._held = ""
        if call.refused:
            return self._refuse(call)
        if not call.decided():
            return False
        if (self._parallel or not self._calls) and (news or arguments):
            self._pieces.append(Piece("", self._calls, call.name if news else None, arguments))
        if call.rest is not None:
            self._end(call.rest)
        return bool(self._held)

    def _end(self, rest: str) -> None:
        self._call, self._held, self._blank = None, rest, ""
        self._calls += 1
        self._after_call, self._closing = True, bool(self._style.end)

    def _refuse(self, call: _Call) -> bool:
        """Take what looked like a call for text; behind its mark there may be another."""
        self._call = None
        self._plain = not self._style.mark
        self._say(call.mark)
        self._held = call.held + (call.rest or "")
        return True

    def _close(self) -> bool:
        """Drop the mark of a call's end; a call without one is a call all the same."""
        bare, end = self._held.lstrip(), self._style.end.strip()
        if bare != end and end.startswith(bare):
            return False
        self._held, self._closing = bare.removeprefix(end), False
        return True


class _Call:
    """One call while it is read: undecided until its name is known, then open until `rest` is set."""

    def __init__(self, names: Collection[str], mark: str, end: str) -> None:
        self.mark = mark
        """The text that announced it."""
        self.name: str | None = None
        self.refused = False
        self.held = ""
        """Its text while it is undecided."""
        self.rest: str | None = None
        """What follows it, once it is closed or refused."""
        self._names, self._stop = names, end
        self._braces = _Braces()
        self._in_arguments = False

    def decided(self) -> bool:
        """Whether it is known for a call."""
        return self.name is not None

    def feed(self, text: str) -> str:
        """Return what a text adds to the arguments."""
        if self.decided():
            return self._open(text)
        for at, char in enumerate(text):
            self.held += char
            arguments = self._decide(char)
            if self.refused:
                self.rest = text[at + 1 :]
                return ""
            if self.decided():
                return arguments + self._open(text[at + 1 :])
        return ""

    def _decide(self, char: str) -> str:
        """Look at a call that one character was added to; return the beginning of its arguments."""
        self._braces.take(char)
        if char == "{" and len(self.held) <= _LONGEST_HEAD and (head := _HEAD.fullmatch(self.held)):
            self._settle(_parsed(head[1]))
            self._in_arguments = True
            return "{"
        if char == "}" and self._braces.depth == 0:
            return self._whole(_parsed(self.held))
        stopped = bool(self._stop) and self.held.endswith(self._stop)
        self.refused = stopped or (self._braces.depth == 0 and not char.isspace())
        return ""

    def _whole(self, call: Any) -> str:
        """Read a call that is complete, whatever the order of its keys."""
        found = call if isinstance(call, dict) else {}
        self._settle(found.get("name"))
        given = found.get("arguments", found.get("parameters", {}))
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

    def _settle(self, name: Any) -> None:
        self.refused = not isinstance(name, str) or name not in self._names
        self.name = None if self.refused else name

    def _open(self, text: str) -> str:
        end = 0
        if self._in_arguments:
            end = self._braces.until(text, 1)
            self._in_arguments = self._braces.depth > 1
        arguments = text[:end]
        if not self._in_arguments:
            end += self._braces.until(text[end:], 0)
            self.rest = text[end:] if self._braces.depth == 0 else None
        return arguments


class _Braces:
    """How deep a place in JSON is; braces in strings do not count."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = self._escaped = False

    def take(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{}":
            self.depth += 1 if char == "{" else -1

    def until(self, text: str, depth: int) -> int:
        """Take in a text up to where it is no deeper than this; return how much of it that was."""
        for at, char in enumerate(text):
            if self.depth <= depth:
                return at
            self.take(char)
        return len(text)


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that a mark begins with."""
    return next(n for n in range(min(len(text), len(mark)), -1, -1) if text.endswith(mark[:n]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
