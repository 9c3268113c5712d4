"""A server in a process of its own, where signals, exit codes and what is on stderr matter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

SLOW = """
import sys, time
from paceline.runners.toy import ToyRunner
whole = ToyRunner.forward
def forward(self, spans, *rest):
    time.sleep({pause})
    return whole(self, spans, *rest)
ToyRunner.forward = forward
from paceline.cli import main
sys.exit(main())
"""


@dataclass(eq=False)
class Process:
    """`url` is where it answers."""

    popen: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    """Of stderr, so far."""
    reader: threading.Thread | None = None

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.popen.wait(60)
        assert self.reader is not None
        self.reader.join(10)
        return code


@contextmanager
def process(
    *arguments: str, pause: float = 0.0, environment: dict[str, str] | None = None, inside: Sequence[str] = ()
) -> Iterator[Process]:
    """Run `paceline serve` on a free port until the end of the block.

    Args:
        pause: seconds that each pass of a toy takes more.
        inside: a command that runs another, which is this one.
    """
    command = [*inside, sys.executable, "-c", SLOW.format(pause=pause), "serve", "--port", "0", *arguments]
    popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    found = Process(popen)
    ready = threading.Event()

    def read() -> None:
        assert popen.stderr is not None
        with popen.stderr:
            for line in popen.stderr:
                found.lines.append(line.rstrip())
                if at := re.search(r"answers at (http://\S+);", line):
                    found.url = at[1]
                    ready.set()
        ready.set()

    found.reader = threading.Thread(target=read, daemon=True)
    found.reader.start()
    try:
        assert ready.wait(60) and found.url, found.lines
        yield found
    finally:
        if popen.poll() is None:
            popen.send_signal(signal.SIGKILL)
        popen.wait(30)
        found.reader.join(10)
