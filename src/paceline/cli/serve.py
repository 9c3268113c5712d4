"""`paceline serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import INTERRUPTED
from paceline.cli.options import ModelFlags, Text, decode, option, whole
from paceline.errors import OptionError

if TYPE_CHECKING:
    from paceline.config import Config
    from paceline.engine.llm import LLM
    from paceline.engine.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags(ModelFlags):
    model: Annotated[str, option("--model", "Hub id, directory, .gguf file, demo or toy:NAME.", "MODEL")] = ""
    sequences: Annotated[Text, option("--sequences", "Most requests that run at a time [default: 8].", "N")] = None
    host: Annotated[Text, option("--host", "Address to listen at [default: 127.0.0.1].", "ADDRESS")] = None
    port: Annotated[Text, option("--port", "Port to listen at [default: 8000]; 0 takes a free one.", "N")] = None
    config: Annotated[Text, option("--config", "paceline.toml; options given here win over it.", "FILE")] = None
    journal: Annotated[Text, option("--journal", "Keep the numbers of requests, and events, here.", "FILE")] = None
    record_text: Annotated[bool, option("--record-text", "Keep prompts and answers in the journal, too.")] = False
    api_key_file: Annotated[Text, option("--api-key-file", "Lines of NAME:KEY; see also --hash-key.", "FILE")] = None
    hash_key: Annotated[
        bool, option("--hash-key", "Read a key from stdin, print what a file may have in its place, and end.")
    ] = False
    insecure: Annotated[bool, option("--insecure", "Listen to a network without asking for a key.")] = False
    log_json: Annotated[bool, option("--log-json", "Log in lines of JSON.")] = False
    engine: Annotated[Text, option("--engine", "builtin [default].", "NAME")] = None

    def configuration(self) -> Config:
        """Return what the file says, and what is given here on top of it.

        Raises:
            OptionError: something is not allowed.
        """
        from paceline.config import Config

        if self.engine not in (None, "builtin"):
            raise OptionError(f"engine is {self.engine!r}, which cannot be served yet; allowed: builtin")
        config = Config.load(self.config) if self.config is not None else Config()
        given: dict[str, Any] = {"host": self.host, "port": whole("port", self.port), "keys_file": self.api_key_file}
        server = {name: value for name, value in given.items() if value is not None}
        if self.insecure:
            server["insecure"] = True
        journal = replace(
            config.journal,
            file=self.journal or config.journal.file,
            record_text=self.record_text or config.journal.record_text,
        )
        return replace(config, server=replace(config.server, **server), journal=journal)

    def engine_options(self, config: Config) -> Options:
        """Return the engine's options: the file's, and what is given here on top of them.

        Raises:
            OptionError: there is no model, or an option is wrong.
        """
        from paceline.engine.options import Options

        asked: dict[str, Any] = {**config.model, **self.asked()}
        if self.model:
            asked["model"] = self.model
        if self.sequences is not None:
            asked["sequences"] = whole("sequences", self.sequences)
        if not self.speculates:
            asked["speculate"] = False
        if "model" not in asked:
            raise OptionError("there is no model; name one with --model, or as model.model in --config")
        return Options(**asked)


def serve(flags: ServeFlags) -> int:
    """Serve a model to OpenAI's clients.

    Ctrl-C, or SIGTERM, lets what runs come to its end and takes nothing new; a second one cancels what is left.
    """
    if flags.hash_key:
        return _hash_key()
    from paceline.server.keys import Keyring
    from paceline.server.run import bind

    config = flags.configuration()
    options = flags.engine_options(config)
    keys = Keyring.load(config.keys, config.server.keys_file, os.environ)
    with bind(config.server, bool(keys)) as listener, _logged(flags.log_json, flags.debug):
        llm = _load(options)
        return _run(llm, config, listener)


def _load(options: Options) -> LLM:
    from paceline.cli.progress import Shown
    from paceline.engine.build import choose
    from paceline.engine.llm import LLM

    with Shown() as progress:
        chosen = choose(options, progress)
        progress(f"loading {options.model}", 0, 1)
        return LLM.from_chosen(chosen, progress)


def _run(llm: LLM, config: Config, listener: Any) -> int:
    from paceline.server.app import create_app
    from paceline.server.run import Server

    server = Server(create_app(llm, config), config.server, _note)
    server.run([listener])
    return INTERRUPTED if server.interrupted else 0


def _hash_key() -> int:
    from paceline.server.keys import hashed_line

    key = decode(sys.stdin.buffer.readline(), "stdin").strip()
    typer.echo(hashed_line(key))
    return 0


@contextmanager
def _logged(as_json: bool, debug: bool) -> Iterator[None]:
    """Log on stderr, of this project all that is worth a line, of uvicorn what went wrong."""
    from paceline.server.access import JsonLines, Short

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else Short())
    ours, theirs = logging.getLogger("paceline"), logging.getLogger("uvicorn")
    before = ours.handlers, ours.level
    ours.handlers, theirs.handlers = [handler], [handler]
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    theirs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.handlers, ours.level = before
        theirs.handlers = []


def _note(line: str) -> None:
    typer.echo(f"paceline: {line}", err=True)
