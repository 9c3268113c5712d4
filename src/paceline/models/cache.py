"""Files that are dear to make and cheap to keep: converted weights, tokenizers. Named by content, written whole.

The directory is `$PACELINE_CACHE`, or `paceline` in the user's cache directory. Anything in it may be deleted.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from paceline.errors import DiskFull, ResourceError

Progress = Callable[[str, int, int], None]
"""(what is being done, done so far, of how much), called from the thread that works."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


def directory() -> Path:
    """Return the cache directory; it may not exist yet."""
    given = os.environ.get("PACELINE_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def cached(path: Path, write: Callable[[BinaryIO], None], good: Callable[[Path], bool]) -> Path:
    """Return `path`, writing it first unless a good one is there.

    A second process that wants the same file waits for the first. The file appears whole or not at all: what a full
    disk, an error or Ctrl-C interrupts is removed.

    Raises:
        DiskFull: the file did not fit.
        ResourceError: the directory cannot be written.
    """
    try:
        if good(path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not good(path):
                write_whole(path, write)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk is full while writing {path.name} to {path.parent}; "
                "free some space, or set PACELINE_CACHE to a directory that has it"
            ) from None
        raise ResourceError(
            f"{path.parent} cannot be used ({error.strerror or error}); set PACELINE_CACHE to a directory that can"
        ) from None
    return path


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place and move it there: what was there before is replaced at once, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
