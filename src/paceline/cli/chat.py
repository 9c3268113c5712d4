"""`paceline chat`: a conversation."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.options import Flags, decode
from paceline.errors import PacelineError, RequestError

if TYPE_CHECKING:
    from paceline.cli.session import Session
    from paceline.core.types import FinishReason

COMMANDS = ("/reset", "/exit")


def chat(flags: Flags) -> int:
    """Talk with a model.

    /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer. Where stdin is not a terminal,
    every line of it is a turn.
    """
    from paceline.cli.session import Session

    expected = flags.expected()
    session = Session.open(flags)
    if not flags.raw:
        session.llm.chat_prompt([{"role": "user", "content": "Hello"}])  # a model without a template is refused now
    conversation = Conversation(session, flags, expected)
    ask = _line_asked if sys.stdin.isatty() else _line_read
    while True:
        line = ask()
        if line is None or line == "/exit":
            return 0
        if not line:
            continue
        if line == "/reset":
            conversation.reset()
        elif re.fullmatch(r"/\w+", line):
            _complain(f"there is no command {line}; allowed: {', '.join(COMMANDS)}")
        elif conversation.turn(line) == "abort" and not sys.stdin.isatty():
            return INTERRUPTED


class Conversation:
    def __init__(self, session: Session, flags: Flags, expected: str | None) -> None:
        self._session, self._raw, self._expected = session, flags.raw, expected
        self._start = [] if flags.system is None else [{"role": "system", "content": flags.system}]
        self.messages = list(self._start)

    def reset(self) -> None:
        self.messages = list(self._start)

    def turn(self, text: str) -> FinishReason:
        """Answer a message; one that cannot be answered is told so, and forgotten."""
        asked = [*self.messages, {"role": "user", "content": text}]
        try:
            completion = self._session.respond(self._prompt(asked), self._expected)
        except PacelineError as error:
            advice = "; /reset starts over" if isinstance(error, RequestError) and self.messages else ""
            _complain(f"{error}{advice}")
            return "error"
        self.messages = [*asked, {"role": "assistant", "content": completion.text}]
        return completion.finish_reason

    def _prompt(self, messages: list[dict[str, str]]) -> str | list[int]:
        if self._raw:
            return "\n".join(message["content"] for message in messages)
        return self._session.llm.chat_prompt(messages)


def _line_read() -> str | None:
    """Return a line of a stdin that is no terminal; None at its end."""
    data = sys.stdin.buffer.readline()
    return decode(data, "stdin").strip() if data else None


def _line_asked() -> str | None:
    """Return what was typed; None for Ctrl-D."""
    if not sys.stdout.isatty():  # stdout is for answers alone
        typer.echo("> ", nl=False, err=True)
        return _line_read()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  its import gives `input` a history
    try:
        return input("> ").strip()
    except EOFError:
        typer.echo()
        return None
    except UnicodeDecodeError:
        raise RequestError("what was typed is not UTF-8 text; check the terminal's encoding") from None


def _complain(reason: str) -> None:
    typer.echo(f"paceline: {' '.join(reason.split())}", err=True)
