"""Results are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from paceline.errors import DiskFull, OptionError


def write(path: Path, text: str) -> None:
    """Write a text file; one that is there is replaced at once, and stays as it is if something fails.

    Raises:
        DiskFull: there is no room for it.
        OptionError: the place cannot be written to.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written ({error.strerror}); name another file") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{str(path)!r} could not be written: its disk is full; free some space") from None
        raise OptionError(f"{str(path)!r} cannot be written ({error.strerror}); name another file") from None
