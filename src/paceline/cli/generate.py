"""`paceline generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.options import Flags, decode
from paceline.errors import RequestError


def generate(
    flags: Flags,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.", metavar="PROMPT")],
) -> int:
    """Answer a prompt.

    The text goes to stdout as it comes; what it took goes to stderr.
    """
    from paceline.cli.session import Session

    flags.check()
    text = decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty; give a text, or - to read one from stdin")
    expected = flags.expected()
    session = Session.open(flags)
    messages = [{"role": "user", "content": text}]
    if flags.system is not None:
        messages.insert(0, {"role": "system", "content": flags.system})
    completion = session.respond(text if flags.raw else session.llm.chat_prompt(messages), expected)
    return INTERRUPTED if completion.finish_reason == "abort" else 0
