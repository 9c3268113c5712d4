"""The most memory that a process had, from one moment on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

_STATUS, _REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Where the system cannot forget an earlier peak, it is that of all time; where it knows none, what is there."""

    def reset(self) -> None:
        with suppress(OSError):
            _REFS.write_text("5")

    def read(self) -> int:
        """Return bytes."""
        with suppress(OSError):
            for line in _STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return int(psutil.Process().memory_info().rss)
