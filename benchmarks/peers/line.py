"""A worker's side of the line: requests are JSON lines on stdin, replies go to what was stdout when it started.

Standard library only: every peer's own Python runs it. A worker is started with one argument, JSON, that says what to
load. Its first reply is `{"ready": true, "versions": {…}}`; each request gets one, `{"error": …}` where it failed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

Verb = Callable[[dict[str, Any]], dict[str, Any]]


def main(load: Callable[[dict[str, Any]], dict[str, Verb]], *packages: str) -> None:
    """Load, say so, and answer until stdin ends.

    Args:
        load: takes what is to be loaded and returns what can be done, by name; "answer" at least.
        packages: those whose versions are told.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    end_with_parent()

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    given = json.loads(sys.argv[1])
    keep_to(given["threads"])
    try:
        verbs = load(given)
    except Exception as error:
        say({"error": told(error)})
        raise
    say({"ready": True, "versions": {name: version(name) for name in packages}})
    for text in sys.stdin:
        asked = json.loads(text)
        try:
            reply = verbs[asked["do"]](asked)
        except Exception as error:
            reply = {"error": told(error)}
        say(reply | {"peak_mib": peak_mib()})
    replies.flush()
    os._exit(0)  # what engines do at exit has been seen to hang


def end_with_parent() -> None:
    """Let the kernel kill this process, stopped or not, when the one that started it is gone; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def keep_to(threads: int) -> None:
    """Use so many processors: an engine that takes all it sees then takes as many as the others are told to."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


class Clock:
    """Times one answer, from the request in text to its last token."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: tuple[float, int] | None = None

    def tick(self, tokens: int = 1) -> None:
        """Note that tokens have come, all at once; the first time counts."""
        if tokens:
            self._first = self._first or (time.perf_counter(), tokens)

    def reply(self, tokens: int, prompt_tokens: int | None, text: str) -> dict[str, Any]:
        """End, and return what is sent: seconds, and a digest in the text's place.

        Where the first tokens came several at once, a draft among them, "decode_s" is the time of those after them all.
        """
        end = time.perf_counter()
        first, first_tokens = self._first or (end, tokens)
        return {
            "tokens": tokens,
            "first_tokens": first_tokens,
            "prompt_tokens": prompt_tokens,
            "first_s": first - self._start,
            "decode_s": end - first,
            "digest": hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
            "begins": text[:60],
        }


class Together:
    """Counts the tokens of several answers that run at a time, and times those after all have begun."""

    def __init__(self, answers: int) -> None:
        self._answers, self._counts = answers, dict[Any, int]()
        self._start = time.perf_counter()
        self._begun: tuple[float, int] | None = None

    def add(self, which: Any, tokens: int) -> None:
        if tokens:
            self._counts[which] = self._counts.get(which, 0) + tokens

    def passed(self) -> None:
        """Note the end of a step."""
        if self._begun is None and len(self._counts) == self._answers:
            self._begun = time.perf_counter(), sum(self._counts.values())

    def reply(self) -> dict[str, Any]:
        end, all_of_them = time.perf_counter(), sum(self._counts.values())
        begun, before = self._begun or (end, all_of_them)
        return {
            "tokens": all_of_them - before,
            "seconds": end - begun,
            "all_tokens": all_of_them,
            "all_seconds": end - self._start,
        }


def peak_mib() -> float:
    """Return the most memory that this process and its children have held, in MiB; each at its own peak."""
    return sum(_high_water(process) for process in _family(os.getpid())) / 1024


def _high_water(process: int) -> int:
    return next((int(line.split()[1]) for line in _status(process) if line.startswith("VmHWM")), 0)


def _family(process: int) -> Iterator[int]:
    yield process
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"PPid:\t{process}" in _status(int(entry.name)):
            yield from _family(int(entry.name))


def _status(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # it ended meanwhile, or this is no Linux
        return []
