"""`paceline generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.options import Flags, decode
from paceline.errors import OptionError, RequestError


def generate(
    flags: Flags,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.", metavar="PROMPT")],
    prediction: Annotated[
        str | None,
        typer.Option("--prediction", help="Text that the answer may repeat.", metavar="FILE", show_default=False),
    ] = None,
) -> int:
    """Answer a prompt.

    The text goes to stdout as it comes; what it took goes to stderr.
    """
    from paceline.cli.session import Session

    flags.check()
    text = decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty; give a text, or - to read one from stdin")
    expected = None if prediction is None else read_prediction(flags, prediction)
    session = Session.open(flags)
    messages = [{"role": "user", "content": text}]
    if flags.system is not None:
        messages.insert(0, {"role": "system", "content": flags.system})
    completion = session.respond(text if flags.raw else session.llm.chat_prompt(messages), expected)
    return INTERRUPTED if completion.finish_reason == "abort" else 0


def read_prediction(flags: Flags, path: str) -> str:
    """Return the text of a prediction.

    Raises:
        OptionError: it would not be used.
        RequestError: the file cannot be read, is empty or is not UTF-8.
    """
    if not flags.speculates:
        raise OptionError(f"prediction is {path!r} and speculation is off; leave --prediction out or speculation on")
    named = flags.drafter_names()
    if named is not None and "prediction" not in named:
        raise OptionError(
            f"prediction is {path!r} and drafters is {flags.drafters!r}, which does not use it; "
            "add 'prediction' to --drafters or leave --prediction out"
        )
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"prediction {path!r} cannot be read ({error.strerror}); give a text file") from None
    if not data:
        raise RequestError(f"prediction {path!r} is empty; give a text file, or leave --prediction out")
    return decode(data, f"prediction {path!r}")
