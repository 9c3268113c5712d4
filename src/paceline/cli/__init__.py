"""The command line: one module a command."""

from __future__ import annotations

import os
import sys
import warnings

INTERRUPTED = 130


def main() -> int:
    """Run the command that the program was started with, and return its exit code."""
    try:
        if "--debug" not in sys.argv and not sys.warnoptions:
            warnings.simplefilter("ignore")
        if not sys.stderr.isatty():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        from paceline.cli.run import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
