"""Where a number comes from: command, versions, machine, date."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.engine import identity


def provenance() -> dict[str, Any]:
    here = identity.machine()
    return {
        "argv": [Path(arg).name if "/" in arg else arg for arg in sys.argv],
        "versions": {name: version(name) for name in ("paceline", "openvino", "numpy")},
        "python": platform.python_version(),
        "machine": f"{here['processor']}, {here['kind']}",
        "date": datetime.now(UTC).date().isoformat(),
    }
