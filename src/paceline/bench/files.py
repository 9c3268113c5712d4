"""Results are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from paceline.errors import DiskFull, OptionError, PacelineError


def write(path: Path, text: str) -> None:
    """Write a text file; one that is there is replaced at once, and stays as it is if something fails.

    Raises:
        DiskFull: there is no room for it.
        OptionError: the place cannot be written to.
    """
    if _is_device(path):
        _fill(path, path, text)
        return
    name = _beside(path)
    try:
        _fill(path, name, text)
        name.chmod(0o644)
        name.replace(path)
    except OSError as error:
        raise _refusal(path, error) from None
    finally:
        name.unlink(missing_ok=True)


def require(*names: str | None) -> None:
    """Check before long work that files can be written; None is no file.

    Raises:
        OptionError: one cannot.
    """
    for path in (Path(name) for name in names if name is not None):
        if os.path.isdir(path):  # unlike Path.is_dir, it answers for names that no file can have
            raise OptionError(f"{str(path)!r} is a directory; name a file in it")
        if not _is_device(path):
            _beside(path).unlink()


def _is_device(path: Path) -> bool:
    """Whether it is written to as it is: a pipe, a terminal or /dev/null must not be replaced."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _beside(path: Path) -> Path:
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _refusal(path, error) from None
    os.close(handle)
    return Path(name)


def _fill(path: Path, place: Path, text: str) -> None:
    """Write to a place that will be the path; what is no Unicode is written as an escape."""
    try:
        with place.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: Path, error: OSError) -> PacelineError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{str(path)!r} could not be written: its disk is full; free some space")
    return OptionError(f"{str(path)!r} cannot be written ({error.strerror}); name another file")
