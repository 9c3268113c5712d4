"""Workers as the script sees them: started, asked, stopped while others are measured, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

END_S = 5.0
"""Seconds that a worker has to end by itself."""
WARM_UP = {"do": "answer", "prompt": "Count from one to twenty in words.", "max_tokens": 8}


class Failed(Exception):
    """A worker crashed, hung, refused, or said what is no reply."""


class Worker:
    """One process that answers, in a process group of its own.

    Args:
        log: takes what it prints, libraries' chatter included.
        patience: seconds for one reply.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, patience: float) -> None:
        self.name, self._log, self._patience = name, log, patience
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.stopped = False
        self.versions: dict[str, str] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, patience: float) -> None:
        """Wait until it has loaded.

        Raises:
            Failed: it has not.
        """
        reply = self._reply(patience)
        if reply.get("ready") is not True:
            raise self._failed(f"said {reply} where it should say that it is ready")
        self.versions = reply["versions"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises Failed: there is no good reply in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the pipe is broken, or closed
            raise self._failed(f"is gone (exit {self._process.poll()})") from None
        return self._reply(self._patience)

    def pause(self) -> None:
        """Stop it and all its threads: those that wait would spin."""
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.stopped = False

    def end(self) -> None:
        """End it, gently if it lets us; it must not be asked again."""
        self.resume()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self._signal(signal.SIGKILL)  # children that outlived it
        self._reader.join(END_S)
        if not self._reader.is_alive():
            self._process.stdout.close()  # type: ignore[union-attr]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def _reply(self, patience: float) -> dict[str, Any]:
        until = time.monotonic() + patience
        while True:  # a long wait would not be woken by a signal that another thread receives
            try:
                line = self._lines.get(timeout=min(0.5, patience))
                break
            except queue.Empty:
                if time.monotonic() >= until:
                    raise self._failed(f"did not answer within {patience:g} s") from None
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            raise self._failed(f"ended (exit {self._process.poll()})")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise self._failed(f"said {line[:80]!r}, which is no reply")
        if "error" in reply:
            raise self._failed(f"said: {reply['error']}")
        return reply

    def _failed(self, what: str) -> Failed:
        return Failed(f"{self.name} {what}; what it printed is in {self._log}")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def available_gib() -> float:
    return psutil.virtual_memory().available / 2**30


class Crew:
    """Workers of which one runs at a time.

    Args:
        start: starts and loads one, by name.
        room: GiB that must be free before one is started; those that have idled longest are ended for it.
        last: the worker that is ended after all others: what it has learnt would be gone.
    """

    def __init__(
        self, start: Callable[[str], Worker], room: float, last: str = "", free: Callable[[], float] = available_gib
    ) -> None:
        self._start, self._room, self._last, self._free = start, room, last, free
        self._workers: dict[str, Worker] = {}
        """The one that has idled longest first."""
        self.starts: dict[str, int] = {}

    @contextmanager
    def turn(self, name: str, mode: str) -> Iterator[Worker]:
        """Let one worker run, warm, and all others stand still.

        Raises:
            Failed: it cannot be started, or fails within; it is ended then.
        """
        worker = self._workers.pop(name, None)
        try:
            if worker is None:
                self._make_room()
                worker = self._start(name)
                self.starts[name] = self.starts.get(name, 0) + 1
            else:
                worker.resume()
            worker.ask({**WARM_UP, "mode": mode})
            yield worker
            worker.pause()
            self._workers[name] = worker
        except BaseException:
            if worker is not None:
                worker.end()
            raise

    def _make_room(self) -> None:
        while self._workers and self._free() < self._room:
            name = min(self._workers, key=lambda name: name == self._last)  # the first of equals
            self._workers.pop(name).end()
            time.sleep(0.1)

    def end(self) -> None:
        while self._workers:
            self._workers.popitem()[1].end()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
